"""What is captured elsewhere: the callbacks themselves, and the model that is trained with all its parts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from xptrain.state.values.held import variables_of


class Known:
    """Says of an object whether its state is captured elsewhere.

    Args:
        callbacks: The callbacks of a fit, before `on_train_begin`, each with its model set.
        model: The model, if the callbacks do not have it.
        others: What else is captured elsewhere, such as the data.
    """

    def __init__(self, callbacks: Sequence[Any], model: Any = None, others: Sequence[Any] = ()) -> None:
        self._elsewhere = {id(value) for value in (*callbacks, *others)}
        # Each callback of a fit is given the same model.
        self._model = next((c.model for c in callbacks if getattr(c, "model", None) is not None), model)
        self._first_values: dict[int, tuple[Any, list[Any]]] = {}

    def __call__(self, value: Any) -> bool:
        if id(value) in self._elsewhere or (value is self._model and value is not None):
            return True
        variables = variables_of(value)
        return bool(variables) and {id(v) for v in variables or ()} <= self._trained()

    def remember(self, value: Any) -> None:
        """Note the first values of a layer or model that a callback was given."""
        import keras

        if isinstance(value, keras.Layer):
            # Not the values themselves: a teacher's old weights would stay in memory.
            first = [weakref.ref(v.value) for v in variables_of(value) or ()]
            self._first_values[id(value)] = (value, first)

    def is_untouched(self, value: Any) -> bool:
        """Say whether the variables of a remembered object hold the very arrays that they held first."""
        if id(value) not in self._first_values:
            return False
        first = self._first_values[id(value)][1]
        now = variables_of(value) or ()
        return len(first) == len(now) and all(ref() is v.value for ref, v in zip(first, now, strict=True))

    def _trained(self) -> set[int]:
        model = self._model
        if model is None:
            return set()
        parts = [*(variables_of(model) or ()), *getattr(model, "metrics_variables", ())]
        return {id(variable) for variable in parts}
