"""Host facts: cores, CPU, memory, system. Starts no backend."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import blake3
import psutil

_CPUINFO: Final = Path("/proc/cpuinfo")
_FEATURE_LINES: Final = ("flags", "Features")  # x86, ARM
_MODEL_LINES: Final = ("model name", "Model", "cpu model", "CPU part")


def capture_machine(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Capture what is known of the host.

    Args:
        env: Environment; default `os.environ`.

    Returns:
        JSON: `host`, `system`, `arch`, `cpu` (`model`, `features` digest), `cores` (`logical`,
        `physical`, `usable` by this process, `threads` that XLA takes on CPU) and `memory` in bytes.

    Example:
        >>> capture_machine()["cores"]["usable"] >= 1
        True
    """
    model, features = cpu_model_and_features()
    usable = usable_cores()
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "cpu": {"model": model, "features": blake3.blake3(features.encode()).hexdigest(16)},
        "cores": {
            "logical": psutil.cpu_count(logical=True) or usable,
            "physical": psutil.cpu_count(logical=False) or usable,
            "usable": usable,
            "threads": xla_threads(usable, os.environ if env is None else env),
        },
        "memory": psutil.virtual_memory().total,
    }


def usable_cores() -> int:
    """Return how many cores this process may run on (its affinity), at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def xla_threads(usable: int, env: Mapping[str, str]) -> int:
    """Return the number of threads XLA takes on CPU: `PJRT_NPROC`, else `NPROC`, else the usable cores."""
    for name in ("PJRT_NPROC", "NPROC"):
        if env.get(name, "").strip().isdigit() and int(env[name]) > 0:
            return int(env[name])
    return usable


def cpu_model_and_features() -> tuple[str, str]:
    """Return the CPU's model name and its instruction-set features, sorted, both as text."""
    if _CPUINFO.exists():
        return parse_cpuinfo(_CPUINFO.read_text("utf-8", "replace"))
    if platform.system() == "Darwin":
        model = _sysctl("-n", "machdep.cpu.brand_string")
        flags = _sysctl("-n", "machdep.cpu.features", "machdep.cpu.leaf7_features")
        return model or platform.processor(), " ".join(sorted((flags or _sysctl("hw.optional")).split()))
    return platform.processor() or platform.machine(), ""


def parse_cpuinfo(text: str) -> tuple[str, str]:
    """Return model and features of the first processor in the text of `/proc/cpuinfo`."""
    pairs: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        pairs.setdefault(name.strip(), value.strip())
    model = next((pairs[name] for name in _MODEL_LINES if pairs.get(name)), platform.machine())
    features = next((pairs[name] for name in _FEATURE_LINES if pairs.get(name)), "")
    return model, " ".join(sorted(features.split()))


def _sysctl(*arguments: str) -> str:
    done = subprocess.run(
        ["/usr/sbin/sysctl", *arguments], capture_output=True, text=True, timeout=5, check=False
    )
    return done.stdout.strip()
