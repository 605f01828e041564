"""Names what changes while a fit trains and is in no checkpoint: its grade must not claim too much."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from xptrain.secrets.names import is_secret_name
from xptrain.state.python.functions import cells_of
from xptrain.state.python.parts import objects_in, slots_of_part
from xptrain.state.python.reach import Watch, classes
from xptrain.state.python.slots import attribute_names, slots_of, value_of
from xptrain.state.values.held import variables_of


class Witness:
    """Compares what the callbacks, the model and the data can reach with what it was when the fit began.

    Args:
        callbacks: The callbacks, by the names that a grade gives them.
        owners: The model and its parts, by name.
        others: Further objects of the script, such as a function that makes the data.
        apart: Objects that somebody else watches, or that speak for themselves.
        kept: The variables that a checkpoint holds.
    """

    def __init__(
        self,
        callbacks: Sequence[tuple[str, Any]],
        owners: Mapping[str, Any],
        others: Mapping[str, Any],
        apart: Sequence[Any],
        kept: Sequence[Any],
    ) -> None:
        self._callbacks = [callback for _, callback in callbacks]
        self._owners = list(owners.values())
        numbered = {f"{name}#{i}" if i else name: c for i, (name, c) in _numbered(callbacks)}
        # By their ids: what is watched must not live longer for it.
        ids = [{id(value) for value in values} for values in (self._callbacks, apart, kept)]
        self._watch = Watch({**numbered, **owners, **others}, partial(_parts_of, *ids))
        self._classes = {cls for _, c in callbacks for cls in classes(c).values()}
        self._warned: set[str] = set()

    def begin(self) -> None:
        """Note what is there when the fit begins."""
        self._watch.look()

    def uncaptured(self, holds: Callable[[Any], bool], reported: Sequence[str]) -> list[str]:
        """Return the places that have changed and that a checkpoint does not hold.

        Args:
            holds: Says of an object whether the checkpoint that was just made has its contents.
            reported: What is named already, each as `place: reason`.
        """
        changes = self._watch.changes()
        if not changes:
            return []
        places = {slot.place for callback in self._callbacks for slot in slots_of(callback)}
        places |= {slot.place for owner in self._owners for slot in slots_of_part(owner)}
        known = tuple(text.partition(": ")[0] for text in reported)
        found: dict[str, None] = {}
        for name, part, owner in changes:
            if holds(owner) and (not part or variables_of(owner) is None):
                continue
            if _place_of(owner, part) in places or any(_is_within(name, outer) for outer in (*known, *found)):
                continue
            if is_secret_name(part.strip(".{}")):
                continue
            if isinstance(owner, type) and owner in self._classes:
                self._warn(name)
            else:
                found[name] = None
        return [f"{name} (it changes while training)" for name in found]

    def _warn(self, name: str) -> None:
        # Also what is counted for the process rather than for the run lies there, so no grade depends on it.
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(
                f"{name} changes while training and is in no checkpoint, since it belongs to the class: "
                "what training depends on must be an attribute of the callback",
                stacklevel=2,
            )


def _parts_of(ours: set[int], apart: set[int], kept: set[int], value: Any) -> Mapping[str, Any] | None:
    import keras

    if id(value) in apart:
        return {}
    if isinstance(value, keras.Variable):
        return {} if id(value) in kept else {"": value.value}
    if id(value) in ours:
        return {**{f".{name}": value_of(value, name) for name in attribute_names(value)}, **classes(value)}
    of_keras = objects_in(value)
    return None if of_keras is None else {**of_keras, **classes(value)}


def _is_within(name: str, outer: str) -> bool:
    """Say whether a place is another one or a part of it."""
    return name.startswith(outer) and name[len(outer) : len(outer) + 1] in ("", ".", "[", "{", "(")


def _numbered(callbacks: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, tuple[str, Any]]]:
    counts: dict[str, int] = {}
    for name, callback in callbacks:
        yield counts.get(name, 0), (name, callback)
        counts[name] = counts.get(name, 0) + 1


def _place_of(owner: Any, part: str) -> tuple[int, str]:
    """Return the place of a part as slots name it."""
    if isinstance(owner, types.FunctionType) and part.startswith("{"):
        return id(cells_of(owner).get(part[1:-1])), ""
    return id(owner), part.removeprefix(".")
