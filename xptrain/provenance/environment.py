"""The environment variables that move bits, and the environment to start a resumed process with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xptrain.secrets.names import is_secret_name
from xptrain.secrets.redact import redact_text

_MOVERS: Final = re.compile(
    r"""(?x)^(?:
    KERAS_\w+ | XLA_\w+ | JAX_\w+ | TF_(?:XLA|CUDNN|DETERMINISTIC|ENABLE|DISABLE|USE|GPU|NUM|FORCE)\w*
    | NVIDIA_TF32_OVERRIDE | CUBLAS\w* | CUDNN_\w+ | CUDA_\w+ | NCCL_\w+
    | HIP_\w+ | ROCR_\w+ | ROCM_\w+ | MIOPEN_\w+ | TPU_\w+ | LIBTPU_\w+ | PYTHONHASHSEED | PYTHONPATH
    | PYTHONOPTIMIZE | OMP_\w+ | OPENBLAS_\w+ | GOTO_NUM_THREADS | MKL_\w+ | KMP_\w+ | BLIS_\w+
    | VECLIB_MAXIMUM_THREADS | NUMEXPR_\w+ | NPY_\w+ | GLIBC_TUNABLES | NPROC | PJRT_NPROC
    | LD_LIBRARY_PATH | DYLD_LIBRARY_PATH | VIRTUAL_ENV | CONDA_PREFIX
    )$"""
)
# Of this process in its job, not of the run: a resumed process gets its own.
_OF_THE_PROCESS: Final = re.compile(
    r"^(?:JAX_(?:COORDINATOR|PROCESS|NUM_PROCESSES|LOCAL_DEVICE)\w*|TPU_(?:WORKER|PROCESS)\w*|NCCL_COMM_ID)$"
)
_VISIBLE: Final = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that move bits, by name; never secrets.

    Args:
        env: Environment; default `os.environ`.

    Returns:
        Name to value, sorted. A variable with a secret name is left out; a secret in a value is redacted.

    Example:
        >>> environment({"XLA_FLAGS": "", "HOME": "/root", "JAX_TOKEN": "x"})
        {'XLA_FLAGS': ''}
    """
    source = os.environ if env is None else env
    names = sorted(name for name in source if _MOVERS.match(name) and not is_secret_name(name))
    return {name: redact_text(source[name])[0] for name in names}


def resume_environment(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to start a resumed process with.

    Args:
        recorded: What `environment` returned in the attempt to go on from.
        current: The whole environment of the resuming process.

    Returns:
        `current` with every variable that moves bits as recorded: set again, or taken away where it was
        not set. What belongs to the process (ranks, coordinator) stays current; so do visible devices
        when as many are visible as then, because a scheduler gives out other ones each time.

    Example:
        >>> resume_environment({"NPROC": "2"}, {"HOME": "/root", "XLA_FLAGS": "--x"})
        {'HOME': '/root', 'NPROC': '2'}
    """
    kept = {n: v for n, v in current.items() if not _replaced(n, recorded.get(n), v)}
    set_again = {
        n: v
        for n, v in recorded.items()
        if n not in kept and not _OF_THE_PROCESS.match(n) and "<redacted>" not in v
    }
    return {**kept, **set_again}


def environment_changes(
    recorded: Mapping[str, str], current: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return (name, now, then) for each variable that `resume_environment` would change ("" for unset)."""
    after = resume_environment(recorded, current)
    names = sorted(set(after) | set(current))
    return [
        (name, current.get(name, ""), after.get(name, ""))
        for name in names
        if current.get(name) != after.get(name)
    ]


def keras_config(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what Keras's config file sets (floatx, epsilon, backend, …), without importing Keras.

    Args:
        env: Environment; default `os.environ`. `KERAS_HOME` names the folder of `keras.json`.

    Returns:
        The file's JSON, empty when there is none or it cannot be read (Keras ignores it then, too).
    """
    source = os.environ if env is None else env
    home = Path(source.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        config = json.loads((home / "keras.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _replaced(name: str, then: str | None, now: str) -> bool:
    if not _MOVERS.match(name) or is_secret_name(name) or _OF_THE_PROCESS.match(name):
        return False
    if name in _VISIBLE and then is not None:
        return len(then.split(",")) != len(now.split(","))
    return True
