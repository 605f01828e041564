"""XLA flags: which are set, what they say, and whether the installed jaxlib knows one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from xptrain.errors import UsageError

_PROBE: Final = "import jax; jax.local_devices(backend='cpu')"


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
