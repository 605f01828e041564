"""Which packages were installed: all of them, and those whose version moves bits."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from xptrain.secrets.redact import redact_text

_MOVERS: Final = frozenset({"jax", "jaxlib", "keras", "numpy", "ml-dtypes", "libtpu", "libtpu-nightly"})
_MOVER_PREFIXES: Final = (
    "jax-cuda",
    "jax-rocm",
    "jax-metal",
    "jax-plugin",
    "nvidia-",
    "intel-extension-for-openxla",
)


def capture_packages(paths: Iterable[str] | None = None) -> dict[str, Any]:
    """Capture the installed distributions and the Python that runs them.

    Args:
        paths: Folders to look in; default `sys.path`.

    Returns:
        JSON: `python` (version, implementation), `installed` {name: version}, `bit_movers` (the subset
        whose version moves bits) and `requirements` (text, see `requirements_text`).

    Example:
        >>> capture_packages()["python"]["version"] == platform.python_version()
        True
    """
    folders = tuple(sys.path if paths is None else paths)
    found = _distributions(folders, tuple(_changed_ns(folder) for folder in folders))
    installed = {name: version for name, (version, _) in sorted(found.items())}
    return {
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "installed": installed,
        "bit_movers": bit_movers(installed),
        "requirements": requirements_text(found),
    }


@cache
def _distributions(folders: tuple[str, ...], changed_ns: tuple[int, ...]) -> dict[str, tuple[str, str]]:
    """Return version and mark by name; read once for each state of the folders, since it takes a while.

    Args:
        folders: Where to look.
        changed_ns: When each of them last changed: another package makes another entry in it.
    """
    found: dict[str, tuple[str, str]] = {}
    for distribution in importlib.metadata.distributions(path=list(folders)):
        name, version = _name_and_version(distribution)
        # Left-overs of broken uninstalls have no name; the first one on the path is the one imported.
        if name and version and normal_name(name) not in found:
            found[normal_name(name)] = (version, _mark(distribution.read_text("direct_url.json")))
    return found


def _changed_ns(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str | None, str | None]:
    try:
        # Parsed anew each time that it is asked for.
        metadata = distribution.metadata
    except FileNotFoundError:
        # The importlib_metadata backport, once a library loads it, raises where Python returns None.
        return None, None
    return metadata["Name"], metadata["Version"]


def bit_movers(installed: Mapping[str, str]) -> dict[str, str]:
    """Return the packages whose version moves bits: JAX, its plugins and CUDA libraries, Keras, NumPy."""
    return {n: v for n, v in installed.items() if n in _MOVERS or n.startswith(_MOVER_PREFIXES)}


def requirements_text(found: Mapping[str, tuple[str, str]]) -> str:
    """Return sorted `name==version` lines.

    Args:
        found: Version and mark by name; a mark says where a distribution came from if not from an index:
            `editable`, `local`, `archive` or a VCS address, without credentials.

    Returns:
        One line each, the mark as a comment. No index or archive host is named.
    """
    lines = [f"{n}=={v}{f'  # {mark}' if mark else ''}" for n, (v, mark) in sorted(found.items())]
    return "\n".join(lines) + "\n" if lines else ""


def normal_name(name: str) -> str:
    """Return a distribution's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _mark(direct_url: str | None) -> str:
    if not direct_url:
        return ""
    try:
        origin = json.loads(direct_url)
    except ValueError:
        return "origin unreadable"
    if origin.get("dir_info", {}).get("editable"):
        return "editable"
    vcs = origin.get("vcs_info")
    if vcs:
        # Any user name in the address may be a token, so none is kept.
        url = re.sub(r"://[^/@\s]*@", "://", redact_text(str(origin.get("url", "")))[0])
        return f"{vcs.get('vcs', 'vcs')}+{url.partition('?')[0]}@{vcs.get('commit_id', '')}"
    return "local" if str(origin.get("url", "")).startswith("file:") else "archive"
