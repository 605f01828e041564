"""Things that can say where they are and be put back there."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """An object whose state a checkpoint holds: a callback with a memory of its own, for example.

    The state is plain data: None, numbers, text, bytes, arrays, and lists, tuples, sets and dicts of these.
    It is stored without pickle, and given back as it was.

    Example:
        >>> class Counter(keras.callbacks.Callback):  # doctest: +SKIP
        ...     def get_state(self):
        ...         return {"seen": self.seen}
        ...
        ...     def set_state(self, state):
        ...         self.seen = state["seen"]
    """

    def get_state(self) -> Any:
        """Return the state as plain data."""

    def set_state(self, state: Any) -> None:
        """Go back to a state that `get_state` returned."""
