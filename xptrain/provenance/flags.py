"""XLA flags: which are set, what they say, and whether the installed jaxlib knows one."""

from __future__ import annotations

import importlib.util
import mmap
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from xptrain.errors import UsageError

_PROBE: Final = "import jax; jax.local_devices(backend='cpu')"
# By XLA's page on determinism: no operation that may differ between runs, and no choice of kernels by timing.
_DETERMINISTIC: Final = "--xla_gpu_deterministic_ops"
_EXCLUDE: Final = "--xla_gpu_exclude_nondeterministic_ops"


def xla_flags(env: Mapping[str, str]) -> dict[str, str]:
    """Return the XLA flags of an environment, by name.

    Args:
        env: Environment with `XLA_FLAGS`: flags, or the name of a file that holds them.

    Returns:
        Flag name (with `--`) to its value; `true` for a flag without one. The last one wins, as in XLA.

    Example:
        >>> xla_flags({"XLA_FLAGS": "--xla_a=1 --xla_b"})
        {'--xla_a': '1', '--xla_b': 'true'}
    """
    text = env.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        path = Path(text)
        text = path.read_text("utf-8") if path.is_file() else ""
    pairs = (flag.partition("=") for flag in shlex.split(text, comments=True))
    return {name: value if equals else "true" for name, equals, value in pairs}


def is_true(value: str | None) -> bool:
    """Say whether a flag's value means true (XLA takes `true`, `1` and a flag without a value)."""
    return value is not None and value.lower() in {"true", "1", ""}


def with_flags(env: Mapping[str, str], flags: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the environment whose `XLA_FLAGS` also has `flags`, which win over equal names."""
    merged = {**xla_flags(env), **flags}
    return {
        **env,
        "XLA_FLAGS": " ".join(
            f"{name}={shlex.quote(value) if value else ''}" for name, value in merged.items()
        ),
    }


def make_deterministic(
    started: bool, env: MutableMapping[str, str] | None = None, python: str = sys.executable
) -> None:
    """Put the flags for deterministic GPU kernels into `XLA_FLAGS`. XLA ignores them on other devices.

    Args:
        started: Whether JAX's backend has started, which reads the flags once.
        env: Environment to change; default `os.environ`.
        python: Interpreter whose jaxlib is asked when its files do not tell which flags it knows.

    Raises:
        UsageError: It is too late, the environment says the contrary, or this jaxlib cannot do it.
    """
    env = os.environ if env is None else env
    have = xla_flags(env)
    for name in (_DETERMINISTIC, _EXCLUDE):
        if name in have and not is_true(have[name]):
            raise UsageError(
                "deterministic=True and XLA_FLAGS contradict each other",
                expected=f"{name}=true, or the flag left out",
                found=f"{name}={have[name]}",
                remedy="take the flag out of XLA_FLAGS, or leave out deterministic=True",
            )
    if _DETERMINISTIC in have:
        return
    if started:
        raise UsageError(
            "deterministic=True comes too late: JAX has started, and it reads its flags once",
            expected=f"{_DETERMINISTIC}=true in XLA_FLAGS before the first JAX computation",
            found=f"XLA_FLAGS={env.get('XLA_FLAGS', '')!r}",
            remedy=f"start the script with XLA_FLAGS={_DETERMINISTIC}=true, or start the run before models "
            "and arrays are made; `xptrain resume` sets what the run had",
        )
    missing = {name: "true" for name in (_DETERMINISTIC, _EXCLUDE) if name not in have}
    unknown = [name for name in missing if not _in_the_binary(name)]
    if unknown:
        unknown = unknown_flags([f"{name}=true" for name in unknown], env, python)
    if _DETERMINISTIC in unknown:
        raise UsageError(
            "deterministic=True is not possible with this jaxlib",
            expected=f"one that knows {_DETERMINISTIC}",
            found="one that would abort the process",
            remedy="install the jaxlib that belongs to a supported JAX, or leave out deterministic=True",
        )
    for name in unknown:
        del missing[name]
    env["XLA_FLAGS"] = with_flags(env, missing)["XLA_FLAGS"]


def _in_the_binary(flag: str) -> bool:
    """Tell whether every installed library that reads XLA's flags has this one's name in it.

    The libraries of jaxlib and of its plugins each read the flags, and abort on one that they do not know.
    """
    places = [importlib.util.find_spec(package) for package in ("jaxlib", "jax_plugins")]
    folders = [folder for place in places if place for folder in place.submodule_search_locations or ()]
    answers = []
    for file in sorted({file for folder in folders for file in Path(folder).glob("**/*.so")}):
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
            if text.find(b"\0XLA_FLAGS\0") >= 0:
                answers.append(text.find(f"\0{flag[2:]}\0".encode()) >= 0)
    return bool(answers) and all(answers)


def unknown_flags(flags: Iterable[str], env: Mapping[str, str], python: str = sys.executable) -> list[str]:
    """Return the flags that the installed jaxlib does not know; setting one would abort the process.

    Args:
        flags: Flags as in `XLA_FLAGS`, such as `--xla_cpu_max_isa=AVX2`.
        env: Environment for the throwaway process that finds out (about 2 s).
        python: Interpreter whose jaxlib is asked.

    Returns:
        Names of the unknown flags, in the order given.

    Raises:
        UsageError: The throwaway process failed for another reason.

    Example:
        >>> unknown_flags([], {})
        []
    """
    asked = list(flags)
    if not asked:
        return []
    trial = {**env, "XLA_FLAGS": " ".join(asked), "JAX_PLATFORMS": "cpu"}
    # The message is needed even where logs are silenced.
    trial["TF_CPP_MIN_LOG_LEVEL"] = "0"
    done = subprocess.run(
        [python, "-c", _PROBE], env=trial, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 0:
        return []
    match = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", done.stderr)
    if not match:
        raise UsageError(
            "the XLA flags could not be tried",
            found=(done.stderr.strip().splitlines() or ["no message"])[-1],
            remedy="start Python with these flags and import jax to see what is wrong with them",
        )
    named = {flag.partition("=")[0] for flag in match[1].split()}
    return [name for name in (flag.partition("=")[0] for flag in asked) if name in named]
