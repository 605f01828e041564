"""What must hold before a model can be trained here, and Keras's debugging limits."""

from __future__ import annotations

import warnings
from typing import Any

from xptrain.errors import BackendError, NotCompiledError


def check_backend() -> None:
    """Raise BackendError unless Keras runs on JAX, in its plain (not NNX) mode."""
    import keras

    if keras.config.backend() != "jax":
        raise BackendError(
            "xptrain trains Keras models on JAX, but Keras runs on another backend",
            expected="KERAS_BACKEND=jax",
            found=f"the {keras.config.backend()} backend",
            remedy="set it before Keras is imported: `KERAS_BACKEND=jax python train.py`, or "
            '`os.environ["KERAS_BACKEND"] = "jax"` as the first lines of the script',
        )
    if keras.config.is_nnx_enabled():
        raise BackendError(
            "Keras runs in NNX mode, whose state lives in other objects",
            expected="KERAS_NNX_ENABLED unset or false",
            found="NNX enabled",
            remedy="run without KERAS_NNX_ENABLED",
        )


def check_compiled(model: Any, method: str) -> None:
    """Raise NotCompiledError unless `model.compile(...)` was called."""
    if not getattr(model, "compiled", False):
        raise NotCompiledError(
            f"the model must be compiled before {method}()",
            expected="model.compile(optimizer, loss, …)",
            found="a model that was not compiled",
            remedy="call model.compile(…) first",
        )


def capped(name: str, value: int | None) -> int | None:
    """Return `value` cut to Keras's debugging limit of that name (`max_epochs`, `max_steps_per_epoch`)."""
    import keras

    limit = getattr(keras.config, name)()
    if limit and (not value or limit < value):
        warnings.warn(f"Limiting {name.removeprefix('max_')} to {limit}", stacklevel=3)
        return int(limit)
    return value
