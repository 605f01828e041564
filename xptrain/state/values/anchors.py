"""The objects that are there when a fit begins, by their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xptrain.state.values import held
from xptrain.state.values.codec import SCALARS
from xptrain.state.values.constants import is_constant
from xptrain.state.values.containers import CONTAINERS, container_of

HELD = ("variables", "dataclass")
# Kinds that JSON can take as they are when they hold nothing but numbers and texts.
FLAT = ("list", "deque")
# Their states are read and set whole.
OPAQUE = ("Generator", "RandomState", "Random")


class Anchors:
    """Finds objects by their places, and places by their objects.

    Args:
        is_known: Says of an object whether its state is captured elsewhere.
    """

    def __init__(self, is_known: Callable[[Any], bool] = lambda value: False) -> None:
        self.is_known = is_known
        self.objects: dict[str, Any] = {}
        self.heads: dict[str, Any] = {}
        self._paths: dict[int, str] = {}

    def add(self, path: str, value: Any) -> None:
        """Note the object at `path`, and those in it."""
        if type(value) in SCALARS:
            return
        kind = kind_of(value, self.is_known)
        if kind is None and type(value) is tuple:
            for i, item in enumerate(value):
                self.add(f"{path}[{i}]", item)
            return
        if kind is None and not is_constant(value, self.is_known, with_closure=False):
            return
        self.objects[path] = value
        if id(value) in self._paths:
            return
        self._paths[id(value)] = path
        if kind in HELD:
            self.heads[path] = held.head_of(value)
        is_flat = kind in FLAT and SCALARS.issuperset(map(type, value))
        if kind != "variables" and kind not in OPAQUE and not is_flat:
            for place, item in children_of(kind, value):
                self.add(path + place, item)

    def path_of(self, value: Any) -> str | None:
        """Return the first place at which this very object lay."""
        return self._paths.get(id(value))


def kind_of(value: Any, is_known: Callable[[Any], bool]) -> str | None:
    """Return the kind of a mutable object, or None for any other value."""
    if type(value) is np.ndarray:
        return None if value.dtype.hasobject else "array"
    container = container_of(value)
    if container is not None:
        return container.name
    if is_known(value) or type(value).__module__.partition(".")[0] == "xptrain":
        return None
    return held.kind_of(value)


def children_of(kind: str | None, value: Any) -> Sequence[tuple[str, Any]]:
    """Return what is in a mutable object of that kind, each with its place."""
    if kind in CONTAINERS:
        return CONTAINERS[kind].items(value)
    if kind in HELD:
        return held.contents(value)
    return ()
