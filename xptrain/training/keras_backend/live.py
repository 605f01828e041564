"""The train state while it is outside the model."""

from __future__ import annotations

from typing import Any

from xptrain.state.capture import without_aliases
from xptrain.training.keras_backend.variables import groups

# The groups of variables in the states of Keras's three kinds of steps.
TRAIN = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
TEST = (TRAIN[0], TRAIN[1], TRAIN[3])
PREDICT = (TRAIN[0], TRAIN[1])


class LiveState:
    """The train state while steps run: out of the model, and back in it when somebody may look.

    A step gives its inputs away, so the model's own variables are empty meanwhile and memory is not held
    twice. Keras callbacks that read `self.model` all the same call `jax_state_sync`, which finds the newest
    arrays in `model._jax_state`.

    Args:
        model: A built, compiled model.
        names: Which groups of variables make up the state, in order: `TRAIN`, `TEST` or `PREDICT`.
    """

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        self._model = model
        self._names = names
        every = dict(zip(TRAIN, groups(model), strict=True))
        self._variables = [every[name] for name in names]
        self._newest: dict[str, Any] = {}
        # Plain attribute writes: Keras's own __setattr__ would wrap the dict and is slow.
        object.__setattr__(model, "_jax_state", self._newest)
        object.__setattr__(model, "_jax_state_synced", True)
        self._state: tuple[list[Any], ...] = ()

    def take(self) -> tuple[list[Any], ...]:
        """Return the state for the next step; empties the model if it holds the newest values."""
        if self._model._jax_state_synced:
            if not self._is_unchanged():
                self._gather()
            for variables in self._variables:
                for variable in variables:
                    variable._value = None
            # A callback may have called evaluate or predict, which leave another dict (or none) here.
            object.__setattr__(self._model, "_jax_state", self._newest)
            self.put(self._state)
        return self._state

    def put(self, state: tuple[list[Any], ...]) -> None:
        """Note what a step returned as the newest values."""
        self._state = state
        newest = self._newest
        for name, arrays in zip(self._names, state, strict=True):
            newest[name] = arrays
        object.__setattr__(self._model, "_jax_state_synced", False)

    def attach(self) -> None:
        """Put the newest values back into the model's variables, for whoever reads them by any way."""
        if self._model._jax_state_synced:
            return
        for variables, arrays in zip(self._variables, self._state, strict=True):
            for variable, array in zip(variables, arrays, strict=True):
                # Not assign(): it converts and checks what came out of a step with the very same variables.
                variable._value = array
        object.__setattr__(self._model, "_jax_state_synced", True)

    def close(self) -> None:
        """Attach, and end Keras's access to the arrays."""
        self.attach()
        object.__setattr__(self._model, "_jax_state", None)

    @property
    def lost(self) -> bool:
        """True when a step failed after it had taken its inputs: the buffers are gone, or hold its error."""
        if self._model._jax_state_synced:
            return False
        return any(_is_lost(array) for arrays in self._state for array in arrays)

    def forget(self) -> None:
        """Drop the newest values; whoever calls this writes the variables anew."""
        object.__setattr__(self._model, "_jax_state_synced", True)
        object.__setattr__(self._model, "_jax_state", None)

    def _is_unchanged(self) -> bool:
        """Tell whether the variables hold the very arrays that `attach` gave them."""
        return bool(self._state) and all(
            variable._value is array
            for variables, arrays in zip(self._variables, self._state, strict=True)
            for variable, array in zip(variables, arrays, strict=True)
        )

    def _gather(self) -> None:
        seen: set[int] = set()
        self._state = tuple(
            without_aliases([v.value for v in variables], seen) for variables in self._variables
        )


def _is_lost(array: Any) -> bool:
    if array.is_deleted():
        return True
    try:
        array.block_until_ready()
    except RuntimeError:
        # JAX gives arrays out before they are computed; one whose step failed raises when it is looked at.
        return True
    return False


def out_shardings(model: Any, names: tuple[str, ...]) -> Any:
    """Return the shardings that a step's state must come out with, or None without a distribution."""
    import keras

    if keras.distribution.distribution() is None:
        return None
    every = dict(zip(TRAIN, model._get_state_sharding_spec(), strict=True))
    return tuple(every[name] for name in names)
