"""What must hold before a model can be trained here, and Keras's debugging limits."""

from __future__ import annotations

import re
import warnings
from typing import Any

from xptrain.errors import BackendError, NotCompiledError, UsageError


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


def is_compiled(model: Any) -> bool:
    """Tell whether the model's steps are compiled, not run as Python."""
    return bool(not model.run_eagerly and model.jit_compile)


def check_fusable(model: Any) -> None:
    """Raise UsageError unless the model's train step is compiled."""
    if not is_compiled(model):
        raise UsageError(
            "fused=True needs a compiled step",
            expected="a model compiled with jit_compile=True (or auto) and without run_eagerly",
            found=f"jit_compile={model.jit_compile}, run_eagerly={model.run_eagerly}",
            remedy="compile the model so, or leave out fused=True",
        )


def check_layouts(model: Any) -> None:
    """Raise UsageError if a key of the current distribution's LayoutMap matches nothing of the model.

    Keras would replicate what the key was meant for, without a word.
    """
    import keras

    layouts = getattr(keras.distribution.distribution(), "_layout_map", None)
    if layouts is None:
        return
    optimizer = model.optimizer.variables if model.optimizer is not None else []
    paths = [variable.path for variable in (*model.variables, *optimizer)]
    paths += [f"{layer.path}/output" for layer in model._flatten_layers()]
    idle = [key for key in layouts if not any(key == path or re.fullmatch(key, path) for path in paths)]
    if idle:
        shown = [variable.path for variable in model.trainable_variables][:8]
        raise UsageError(
            "a key of the LayoutMap matches no variable, so what it is meant for would be replicated",
            expected=f"keys that match whole paths, such as {', '.join(shown)}",
            found=", ".join(map(repr, idle)),
            remedy="correct the key (a regular expression for the whole path), or leave it out",
        )


def explain(model: Any, error: BaseException) -> None:
    """Add to an error of a step what the user should know, where its own text says nothing.

    A metric that `call` updates has no value there: Keras passes the variables of metrics to the step apart
    from those that `call` may use. What comes of it is "'NoneType' object is not callable".
    """
    if not isinstance(error, TypeError) or "'NoneType' object is not callable" not in str(error):
        return
    if any(metric.variables and metric.variables[0]._value is None for metric in model.metrics):
        error.add_note(
            "xptrain: a metric has no value inside call(); if call() updates one, update it in train_step, "
            "compute_loss or compute_metrics, or pass it to compile(metrics=…)"
        )


class Unchanged:
    """Checks that the model is still the one that the fit began with.

    Keras would go on with a mixture of both, or end in an obscure error.

    Args:
        model: The model, its train step made.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._function = model.train_function
        self._trainable = [id(variable) for variable in model.trainable_variables]

    def check(self, *, quick: bool = False) -> None:
        """Raise UsageError if a callback compiled the model anew, or froze or unfroze layers of it.

        Args:
            quick: Look only whether it was compiled: cheap enough for every batch.
        """
        if self._model.train_function is not self._function:
            raise UsageError(
                "a callback compiled the model anew in the middle of a fit",
                expected="the optimizer, loss and step that the fit began with",
                found="another train step",
                remedy="end the fit, compile, and fit again: one run holds several fits",
            )
        now = self._trainable if quick else [id(variable) for variable in self._model.trainable_variables]
        if now != self._trainable:
            raise UsageError(
                "a callback changed which variables are trainable in the middle of a fit",
                expected=f"the {len(self._trainable)} trainable variables that the fit began with",
                found=f"{len(now)}" if len(now) != len(self._trainable) else "others",
                remedy="end the fit, set layer.trainable, compile, and fit again: one run holds several fits",
            )


def capped(name: str, value: int | None) -> int | None:
    """Return `value` cut to Keras's debugging limit of that name (`max_epochs`, `max_steps_per_epoch`)."""
    import keras

    limit = getattr(keras.config, name)()
    if limit and (not value or limit < value):
        warnings.warn(f"Limiting {name.removeprefix('max_')} to {limit}", stacklevel=3)
        return int(limit)
    return value
