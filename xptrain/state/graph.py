"""Values as a graph: which objects are one and the same, and which of them were there when the fit began.

A list that two callbacks share, or that the script handed to one, must stay one list. So every mutable object
is written once, with the place at which it lay when the fit began; on the way back the object at that place
is filled, and only what came later is made anew.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from xptrain.state import held
from xptrain.state.codec import KIND, Decoder, Encoder, Unencodable
from xptrain.state.constants import is_constant
from xptrain.state.containers import CONTAINERS, container_of

_OPAQUE = ("Generator", "RandomState", "Random")


class Anchors:
    """The objects that are there when a fit begins, by their places.

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
        kind = _kind(value, self.is_known)
        if kind is None:
            if type(value) is tuple:
                for i, item in enumerate(value):
                    self.add(f"{path}[{i}]", item)
                return
            if not is_constant(value, self.is_known, with_closure=False):
                return
        self.objects[path] = value
        if id(value) in self._paths:
            return
        self._paths[id(value)] = path
        if kind in ("variables", "dataclass"):
            self.heads[path] = held.head_of(value)
        for place, item in _children(kind, value):
            self.add(path + place, item)

    def path_of(self, value: Any) -> str | None:
        """Return the first place at which this very object lay."""
        return self._paths.get(id(value))


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
        self._seen: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._claims: dict[str, int] = {}

    def encode(self, value: Any, path: str) -> Any:
        """Return the data of `value`; after an error everything is as before.

        Raises:
            Unencodable: If something in it can be neither stored nor filled again.
        """
        before = len(self._arrays), len(self._seen), dict(self._claims)
        try:
            return self._encoder.encode(value, path)
        except (Unencodable, RecursionError) as error:
            for store, count in ((self._arrays, before[0]), (self._seen, before[1]), (self._numbers, before[1])):
                for key in list(store)[count:]:
                    del store[key]  # type: ignore[attr-defined]
            self._claims = before[2]
            if isinstance(error, RecursionError):
                raise Unencodable(f"{path}: nested too deeply") from None
            raise

    def _around(self, value: Any, where: str) -> Any:
        kind = _kind(value, self._anchors.is_known)
        if kind is None:
            return self._kept(value, where)
        if id(value) in self._numbers:
            return {KIND: "same", "v": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._numbers)
        self._seen[id(value)] = value
        node: dict[str, Any] = {KIND: "object", "n": number, "kind": kind}
        if kind in ("variables", "dataclass"):
            node["at"] = self._place(value, where)
            node["head"] = held.head_of(value)
            if kind == "variables" and self._is_untouched(value):
                return {**node, "untouched": True, "v": []}
        else:
            node["at"] = self._anchors.path_of(value)
        if kind == "array":
            return {**node, "v": self._encoder.plain(value, where)}
        if kind in CONTAINERS:
            node["head"] = CONTAINERS[kind].head(value)
        encoder = Encoder(self._arrays) if kind in _OPAQUE else self._encoder
        children = _children(kind, value)
        if kind == "dataclass":
            node["names"] = [place.removeprefix(".") for place, _ in children]
        return {**node, "v": [encoder.encode(item, where + place) for place, item in children]}

    def _kept(self, value: Any, where: str) -> Any:
        if not _is_object(value) or not is_constant(value, self._anchors.is_known, with_closure=False):
            return None
        at = self._anchors.path_of(value)
        if at is None and _same_code(self._anchors.objects.get(where), value):
            at = where
        if at is None:
            return None
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


class GraphDecoder:
    """Decodes what `GraphEncoder` made, into the objects that are there; writes nothing before `fill`.

    Args:
        anchors: What is there when the fit goes on.
        arrays: The arrays that were set aside.
        data: Everything that will be decoded, to find the objects that it names.
        place: Translates a place of the checkpoint into one of `anchors`.
    """

    def __init__(
        self,
        anchors: Anchors,
        arrays: Mapping[str, Any],
        data: Any,
        place: Callable[[str], str] = lambda path: path,
    ) -> None:
        self._anchors = anchors
        self._place = place
        self._decoder = Decoder(arrays, self._around)
        self._opaque = Decoder(arrays)
        self._nodes = {node["n"]: node for node in _nodes(data)}
        self._made: dict[int, Any] = {}
        self._fills: list[Callable[[], None]] = []
        self.problems: list[str] = []

    def decode(self, data: Any) -> Any:
        """Return the value of `data`; objects in it get their contents by `fill`."""
        return self._decoder.decode(data)

    def fill(self) -> None:
        """Give all objects met by `decode` their contents."""
        for fill in self._fills:
            fill()

    def _around(self, data: Mapping[str, Any]) -> Any:
        kind = data[KIND]
        if kind == "kept":
            return self._there(data["v"])
        if kind not in ("object", "same"):
            return NotImplemented
        number = data["n"] if kind == "object" else data["v"]
        if number not in self._made:
            if number not in self._nodes:
                self.problems.append("an object is shared with a callback that is gone")
                return None
            self._make(self._nodes[number])
        return self._made[number]

    def _make(self, node: Mapping[str, Any]) -> None:
        kind, number = node["kind"], node["n"]
        if kind == "array":
            self._made[number] = self._array(node)
            return
        if kind in ("variables", "dataclass"):
            self._make_held(node)
            return
        container = CONTAINERS[kind]
        there = self._anchors.objects.get(self._place(node["at"])) if node["at"] else None
        fits = there is not None and container.fits(there, node["head"])
        value = self._made[number] = there if fits else container.fresh(node["head"])
        decoder = self._opaque if kind in _OPAQUE else self._decoder
        items = [decoder.decode(item) for item in node["v"]]
        self._fills.append(partial(container.fill, value, items))

    def _make_held(self, node: Mapping[str, Any]) -> None:
        path, is_new = node["at"].removeprefix("~"), node["at"].startswith("~")
        there = self._there(path)
        self._made[node["n"]] = there
        if there is None:
            return
        found = held.head_of(there)
        if found != node["head"]:
            self.problems.append(f"{path}: the checkpoint holds {_shown(node['head'])}, here is {_shown(found)}")
            return
        if is_new:
            there = self._made[node["n"]] = held.empty_like(there)
        items = [self._decoder.decode(item) for item in node["v"]]
        if not node.get("untouched"):
            self._fills.append(partial(held.fill, there, node.get("names", []), items))

    def _array(self, node: Mapping[str, Any]) -> Any:
        value = self._decoder.decode(node["v"])
        there = self._anchors.objects.get(self._place(node["at"])) if node["at"] else None
        if type(there) is not np.ndarray or not there.flags.writeable:
            return value
        if (there.shape, there.dtype) != (value.shape, value.dtype):
            return value
        self._fills.append(lambda: np.copyto(there, value))
        return there

    def _there(self, path: str) -> Any:
        value = self._anchors.objects.get(self._place(path))
        if value is None:
            self.problems.append(f"{path}: the checkpoint expects an object here")
        return value


def _kind(value: Any, is_known: Callable[[Any], bool]) -> str | None:
    if type(value) is np.ndarray:
        return None if value.dtype.hasobject else "array"
    container = container_of(value)
    if container is not None:
        return container.name
    if is_known(value) or type(value).__module__.partition(".")[0] == "xptrain":
        return None
    return held.kind_of(value)


def _children(kind: str | None, value: Any) -> Sequence[tuple[str, Any]]:
    if kind in CONTAINERS:
        return CONTAINERS[kind].items(value)
    if kind in ("variables", "dataclass"):
        return held.contents(value)
    return ()


def _is_object(value: Any) -> bool:
    return not isinstance(value, (type(None), bool, int, float, complex, str, bytes, tuple, frozenset))


def _same_code(before: Any, now: Any) -> bool:
    both = isinstance(before, types.FunctionType) and isinstance(now, types.FunctionType)
    return both and before.__code__ == now.__code__


def _shown(head: Mapping[str, Any]) -> str:
    return f"{head['class']} {head['variables']}" if "variables" in head else str(head["class"])


def _nodes(data: Any) -> list[Any]:
    found = []
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            if item.get(KIND) == "object":
                found.append(item)
            stack += item.values()
    return found
