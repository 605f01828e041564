"""Whether Keras can be imported here, and runs on JAX; a run is often what imports it first."""

from __future__ import annotations

import os
from typing import Final

from xptrain.errors import BackendError
from xptrain.training.keras_backend.checks import check_backend

# What Keras imports for its other backends.
_BACKENDS: Final = ("tensorflow", "torch", "openvino")


def check() -> None:
    """Raise BackendError unless Keras runs on JAX, also where Keras itself cannot be imported."""
    try:
        check_backend()
    except ModuleNotFoundError as error:
        if error.name not in _BACKENDS:
            raise
        raise BackendError(
            "Keras cannot be imported: its backend is not installed",
            expected="KERAS_BACKEND=jax",
            found=f"{error.name}, since KERAS_BACKEND is {os.environ.get('KERAS_BACKEND') or 'not set'}",
            remedy="set it before Keras is imported: `KERAS_BACKEND=jax python train.py`, or "
            '`os.environ["KERAS_BACKEND"] = "jax"` as the first lines of the script',
        ) from None
