"""Values as a graph: which objects are one and the same, and which of them were there when the fit began.

A list that two callbacks share, or that the script handed to one, must stay one list. So every mutable object
is written once, with the place at which it lay when the fit began; on the way back the object at that place
is filled, and only what came later is made anew.
"""

from __future__ import annotations

import types
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np

from xptrain.state.values import held
from xptrain.state.values.anchors import FLAT, HELD, OPAQUE, Anchors, children_of, kind_of
from xptrain.state.values.codec import KIND, Encoder, Unencodable, is_flat
from xptrain.state.values.constants import is_constant
from xptrain.state.values.containers import CONTAINERS, keeps_order


class GraphEncoder:
    """Encodes values with the identities of their objects.

    Args:
        anchors: What was there when the fit began.
        arrays: Receives the arrays.
        is_untouched: Says of an object whether its variables are those of the beginning.
    """

    def __init__(
        self,
        anchors: Anchors,
        arrays: MutableMapping[str, Any],
        is_untouched: Callable[[Any], bool] = lambda value: False,
    ) -> None:
        self._anchors = anchors
        self._arrays = arrays
        self._is_untouched = is_untouched
        self._encoder = Encoder(arrays, self._around)
        # The objects themselves, since a number of a dead one may be given to another.
        self._alive: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._claims: dict[str, int] = {}
        # By the array that owns their memory.
        self._views: dict[int, list[Any]] = {}

    def encode(self, value: Any, path: str) -> Any:
        """Return the data of `value`; after an error everything is as before.

        Raises:
            Unencodable: If something in it can be neither stored nor filled again.
        """
        arrays, numbers, claims = list(self._arrays), list(self._numbers), dict(self._claims)
        try:
            return self._encoder.encode(value, path)
        except (Unencodable, RecursionError) as error:
            for key in list(self._arrays)[len(arrays) :]:
                del self._arrays[key]
            for identity in list(self._numbers)[len(numbers) :]:
                del self._numbers[identity]
            self._claims = claims
            if isinstance(error, RecursionError):
                raise Unencodable(f"{path}: nested too deeply") from None
            raise

    def holds(self, value: Any) -> bool:
        """Say whether the contents of an object are among what was encoded."""
        return id(value) in self._numbers

    def encode_known(self, value: Any, path: str, report: Callable[[str], None]) -> Any:
        """Return the data of a dict without what cannot be stored; `report` is told of each such value."""
        if type(value) is not dict or id(value) in self._numbers:
            return self.encode(value, path)
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        items: list[Any] = []
        for key, item in value.items():
            try:
                items += [self.encode(key, path), self.encode(item, f"{path}[{key!r}]")]
            except Unencodable as error:
                report(str(error))
        at = self._anchors.path_of(value)
        return {KIND: "object", "n": number, "kind": "dict", "at": at, "head": None, "v": items}

    def _around(self, value: Any, where: str) -> Any:
        kind = kind_of(value, self._anchors.is_known)
        if kind is None:
            return self._leaf(value, where)
        if id(value) in self._numbers:
            return {KIND: "same", "v": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        node: dict[str, Any] = {KIND: "object", "n": number, "kind": kind}
        if kind in HELD:
            node["at"] = self._place(value, where)
            node["head"] = held.head_of(value)
            if kind == "variables" and self._is_untouched(value):
                return {**node, "untouched": True, "v": []}
        else:
            node["at"] = self._anchors.path_of(value)
        if kind == "array":
            self._check_alone(value, where)
            return {**node, "v": self._encoder.plain(value, where)}
        if kind in CONTAINERS:
            node["head"] = CONTAINERS[kind].head(value)
        if kind == "set" and not keeps_order(value):
            raise Unencodable(f"{where}: a set whose order cannot be made again (use a dict or a list)")
        if kind in FLAT and is_flat(value):
            return {**node, "v": list(value)}
        encoder = Encoder(self._arrays) if kind in OPAQUE else self._encoder
        children = children_of(kind, value)
        if kind == "dataclass":
            node["names"] = [place.removeprefix(".") for place, _ in children]
        return {**node, "v": [encoder.encode(item, where + place) for place, item in children]}

    def _check_alone(self, value: Any, where: str) -> None:
        """Raise for an array of which another one is a view: each would come back with its own memory."""
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        for other in self._views.get(id(root), ()):
            is_shared = other is not value and np.may_share_memory(other, value)
            if is_shared and not (self._anchors.path_of(value) and self._anchors.path_of(other)):
                raise Unencodable(f"{where}: an array that shares its memory with another one (copy it)")
        self._views.setdefault(id(root), []).append(value)

    def _leaf(self, value: Any, where: str) -> Any:
        try:
            return self._encoder.plain(value, where)
        except Unencodable:
            at = None
            if is_constant(value, self._anchors.is_known, with_closure=False):
                at = self._anchors.path_of(value)
                if at is None and _same_code(self._anchors.objects.get(where), value):
                    at = where
            if at is None:
                raise
            return {KIND: "kept", "v": at}

    def _place(self, value: Any, where: str) -> str:
        """Return where the object lies that will be filled, or `~` and where one of its class lies."""
        at = self._anchors.path_of(value)
        there = self._anchors.objects.get(where)
        name = held.class_name(value)
        if at is None and (there is None or held.class_name(there) != name):
            raise Unencodable(f"{where}: {name}, made after the fit began")
        if held.variables_of(value) is None:
            return at or f"~{where}"
        target = at or self._anchors.path_of(there)
        assert target is not None, "an anchored object has a place"
        if self._anchors.heads[target] != held.head_of(value):
            raise Unencodable(f"{where}: {name}, built after the fit began")
        if self._claims.setdefault(target, id(value)) != id(value):
            raise Unencodable(f"{where}: {name}, one of two in the place of one")
        return target


def _same_code(before: Any, now: Any) -> bool:
    both = isinstance(before, types.FunctionType) and isinstance(now, types.FunctionType)
    return both and before.__code__ == now.__code__
