"""Variables that Keras gives to no step: above all the states of stateful recurrent layers.

A compiled step reads them as constants, and what it assigns to them is lost. Only what runs outside of steps
moves them (`layer.reset_state()`, `model(x)` in a callback). All of that is kept as it is in Keras; a
checkpoint holds both what they are now and what the compiled steps see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from xptrain.state import rng
from xptrain.state.capture import own_copy
from xptrain.state.digest import digest_array


def held_by(layer: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Return the variables that a layer holds as attributes, also in lists, tuples and dicts.

    Args:
        layer: A layer, or a container.
        seen: Identities of the containers that were searched.
    """
    import keras

    seen = set() if seen is None else seen
    inside = layer if isinstance(layer, (list, tuple, dict)) else vars(layer)
    for value in inside.values() if isinstance(inside, dict) else inside:
        if isinstance(value, keras.Variable):
            yield value
        elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))
            yield from held_by(value, seen)


class Constants:
    """What is baked into the compiled form of one step: what such variables held when it was first traced,
    and what its Python code drew from the global generators then (as `AugMix` does).

    JAX traces a step again for another shape, and a resumed process traces it anew. Both would read what
    the variables hold by then, and draw other numbers.

    Args:
        variables: Returns the variables, in an order that is the same in every attempt.
    """

    def __init__(self, variables: Callable[[], Sequence[Any]]) -> None:
        self._variables = variables
        self._values: list[Any] = []
        self._generators: Any = None

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as it is to be traced."""

        # The name is that of the compiled program, in profiles and in the cache.
        @wraps(function)
        def traced(*arguments: Any) -> Any:
            variables = self._variables()
            now = [variable.value for variable in variables]
            self._values = self._values or now
            _put(variables, self._values)
            generators = rng.global_states()
            if self._generators is not None:
                rng.put_global_states(self._generators)
            try:
                return function(*arguments)
            finally:
                _put(variables, now)
                if self._generators is not None:
                    rng.put_global_states(generators)
                elif not rng.are_equal(generators, rng.global_states()):
                    # The first time moves them, as in Keras; later ones only repeat it.
                    self._generators = generators

        return traced

    def get_state(self) -> dict[str, Any]:
        """Return what is baked in; empty if nothing is."""
        generators = {} if self._generators is None else {"generators": self._generators}
        return generators | ({"values": self._values} if self._values else {})

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Take what another attempt's step was traced with; returns whether that is something else."""
        values = [own_copy(value) for value in state.get("values", [])]
        generators = state.get("generators")
        if [*map(digest_array, values)] == [*map(digest_array, self._values)] and (
            generators is None or (self._generators and rng.are_equal(generators, self._generators))
        ):
            return False
        self._values, self._generators = values, generators
        return True


def _put(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        # Not assign(), which asks Keras's scopes.
        variable._value = value
