"""The way back from a graph of values, into the objects that are there; see `graph_encoder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from xptrain.state.values import held
from xptrain.state.values.anchors import HELD, OPAQUE, Anchors
from xptrain.state.values.codec import KIND, Decoder
from xptrain.state.values.containers import CONTAINERS


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
        self._nodes = {node["n"]: node for node in nodes(data)}
        self._made: dict[int, Any] = {}
        self._claims: dict[int, int] = {}
        self._fills: list[Callable[[], None]] = []

    def decode(self, data: Any) -> Any:
        """Return the value of `data`; objects in it get their contents by `fill`.

        Raises:
            ValueError: If an object that is to be filled is not there, or is another.
        """
        made, claims, fills = dict(self._made), dict(self._claims), list(self._fills)
        try:
            return self._decoder.decode(data)
        except ValueError:
            self._made, self._claims, self._fills = made, claims, fills
            raise

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
                raise ValueError("an object is shared with a callback that is gone")
            self._make(self._nodes[number])
        return self._made[number]

    def _make(self, node: Mapping[str, Any]) -> None:
        kind, number = node["kind"], node["n"]
        if kind in HELD:
            self._make_held(node)
            return
        there = self._anchors.objects.get(self._place(node["at"])) if node["at"] else None
        if there is not None and self._claims.setdefault(id(there), number) != number:
            there = None
        if kind == "array":
            value = self._decoder.decode(node["v"])
            self._made[number] = there if _fits_array(there, value) else value
            if self._made[number] is there:
                self._fills.append(partial(np.copyto, there, value))
            return
        container = CONTAINERS[kind]
        fits = there is not None and container.fits(there, node["head"])
        made = self._made[number] = there if fits else container.fresh(node["head"])
        decoder = self._opaque if kind in OPAQUE else self._decoder
        items = [decoder.decode(item) for item in node["v"]]
        self._fills.append(partial(container.fill, made, items))

    def _make_held(self, node: Mapping[str, Any]) -> None:
        number, path, is_new = node["n"], node["at"].removeprefix("~"), node["at"].startswith("~")
        there = self._there(path)
        found = held.head_of(there)
        if found != node["head"]:
            raise ValueError(f"the checkpoint holds {_shown(node['head'])}, here is {_shown(found)}")
        if is_new:
            there = held.empty_like(there)
        elif self._claims.setdefault(id(there), number) != number:
            raise ValueError(f"one {found['class']} stands in two places")
        self._made[number] = there
        items = [self._decoder.decode(item) for item in node["v"]]
        if not node.get("untouched"):
            self._fills.append(partial(held.fill, there, node.get("names", []), items))

    def _there(self, path: str) -> Any:
        value = self._anchors.objects.get(self._place(path))
        if value is None:
            raise ValueError(f"the checkpoint expects an object that is not there ({path})")
        return value


def _fits_array(there: Any, value: Any) -> bool:
    return (
        type(there) is np.ndarray
        and there.flags.writeable
        and (there.shape, there.dtype) == (value.shape, value.dtype)
    )


def _shown(head: Mapping[str, Any]) -> str:
    return f"{head['class']} {head['variables']}" if "variables" in head else str(head["class"])


def nodes(data: Any) -> list[Any]:
    """Return every object in encoded data."""
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
