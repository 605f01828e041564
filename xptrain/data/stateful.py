"""Things that can say where they are and be put back there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np


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


class StateDicts:
    """A loader with `state_dict` and `load_state_dict`, as an iterable that is `Stateful`.

    Args:
        loader: For example a `torchdata.nodes.Loader`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._iterator: Any = None

    def __iter__(self) -> StateDicts:
        self._iterator = None
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self.loader)
        return next(self._iterator)

    def get_state(self) -> Any:
        """Return the loader's state, with tensors as arrays."""
        return _map_leaves(self.loader.state_dict(), _to_plain)

    def set_state(self, state: Any) -> None:
        """Put the loader where it was; its next iterator begins there."""
        self._iterator = None
        self.loader.load_state_dict(_map_leaves(state, _from_plain))


def has_state_dict(data: Any) -> bool:
    """Tell whether `data` is an iterable that says where it is as PyTorch's objects do."""
    return all(hasattr(data, name) for name in ("__iter__", "state_dict", "load_state_dict"))


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    changed = change(value)
    if changed is not value:
        return changed
    if isinstance(value, dict):
        return {name: _map_leaves(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_leaves(inner, change) for inner in value)
    return value


def _to_plain(value: Any) -> Any:
    return {"__tensor__": value.detach().cpu().numpy()} if _is_tensor(value) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"__tensor__"}:
        return sys.modules["torch"].from_numpy(np.array(value["__tensor__"]))
    return value
