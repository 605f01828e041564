"""What Python code can reach and change: a look at objects that notes what they hold, without keeping it.

A checkpoint holds what lies in known places. Whether something else was changed is seen by looking twice: at
attributes of classes, functions and objects, at what functions close over, at arrays and random generators.
Only the user's own code is looked into, not that of installed packages; the variables of the script are left
to the script.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xptrain.state.digest import digest_json
from xptrain.state.python.functions import cells_of, is_own, names_used, own_classes
from xptrain.state.python.notes import (
    BOXES,
    FIXED,
    GENERATORS,
    OPEN,
    SCALARS,
    are_alike,
    is_flat,
    items_of,
    key_of,
    kind_of,
    note_of,
)
from xptrain.state.python.slots import slot_names
from xptrain.state.values.held import SPACES

# By the place of an object: what each of its parts looked like, by the part's name.
Notes = dict[str, dict[str, str]]
Parts = Mapping[str, Any]
PartsOf = Callable[[Any], Parts | None]

_LIBRARIES = ("keras", "torch")
_CACHE = "cache"
_CODE = (types.FunctionType, type, types.ModuleType)
# A look is a part of every save: it ends after so many objects.
_MOST_OBJECTS = 20_000
_MOST_ITEMS = 1_000
# Begins the name of a part whose place does not depend on who leads to it.
_ABSOLUTE = "="


@dataclass
class Seen:
    """An object that a look has found.

    Args:
        value: The object.
        name: Of the attribute or the variable that it was found by; empty where there is none.
        is_cache: Whether that, or one on the way to it, has `cache` in its name.
        notes: What its parts look like.
    """

    value: Any
    name: str = ""
    is_cache: bool = False
    notes: dict[str, str] = field(default_factory=dict)

    def named(self, part: str) -> tuple[str, bool]:
        """Return name and `is_cache` of one of its parts."""
        if part.startswith(_ABSOLUTE):
            return "", False
        if part.startswith("("):  # of an argument the name does not say whether it is read
            return "", self.is_cache
        if not part.startswith((".", "{")):
            return self.name, self.is_cache
        name = part.strip(".{}")
        # By convention a cache may be lost: it is filled again.
        is_cached = isinstance(
            inspect.getattr_static(type(self.value), name, None), functools.cached_property
        )
        return name, self.is_cache or is_cached or _CACHE in name.lower()


def look(
    roots: Mapping[str, Any],
    parts_of: PartsOf = lambda value: None,
    *,
    but: Callable[[Any], bool] = lambda value: False,
) -> dict[str, Seen]:
    """Return what can be reached from some objects, by its places.

    Args:
        roots: The objects to begin with, by the names of their places.
        parts_of: Returns the parts of an object that is looked into in another way; an empty mapping for one
            that is to be left alone, and None for any other.
        but: Says of a part whether it is left out.

    Example:
        >>> list(look({"f": lambda: 1}))
        ['f']
    """
    found: dict[str, Seen] = {}
    waiting = deque((place, Seen(value), parts_of(value)) for place, value in roots.items())
    # A root is found under its own name, wherever else it lies.
    known = {id(value) for value in roots.values()}
    while waiting and len(found) < _MOST_OBJECTS:
        place, seen, special = waiting.popleft()
        while place in found:  # two local classes of one name
            place += "'"
        found[place] = seen
        for part, value in (_parts_or_none(seen.value) if special is None else special).items():
            if but(value):
                continue
            inner = _opened(value, parts_of)
            seen.notes[part] = note_of(value) if inner is None else f"{OPEN}{kind_of(value)}"
            if inner is not None and id(value) not in known:
                known.add(id(value))
                waiting.append((name_of(place, part), Seen(value, *seen.named(part)), inner[0]))
    return found


def changed(before: Notes, now: Notes) -> Iterator[tuple[str, str]]:
    """Yield (place, part) of what both looks saw and what differs, outermost first."""
    for place, parts in before.items():
        others = now.get(place, parts)
        for part in [*parts, *(others.keys() - parts.keys())] if others != parts else ():
            if not are_alike(parts.get(part), others.get(part)):
                yield place, part


class Watch:
    """Says what has changed since it was told to look, of all that can be reached from some objects.

    Args:
        roots: As for `look`.
        parts_of: The same.
        but: The same.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        parts_of: PartsOf = lambda value: None,
        *,
        but: Callable[[Any], bool] = lambda value: False,
    ) -> None:
        self._look = functools.partial(look, roots, parts_of, but=but)
        self._before: Notes = {}

    def look(self) -> None:
        """Take what is there now as it should be."""
        self._before = _notes(self._look())

    def changes(self) -> list[tuple[str, str, Any]]:
        """Return (place, name of the part, owner) of what differs and may be read, outermost first."""
        return [(place, part, owner) for place, part, owner, _ in self._changes(self._look())]

    def digest(self) -> str:
        """Return a digest of what differs and may be read; equal, in any process, where that is equal."""
        noted = [(place, note) for place, _, _, note in self._changes(self._look())]
        return digest_json(sorted(noted)) if noted else ""

    def _changes(self, now: Mapping[str, Seen]) -> Iterator[tuple[str, str, Any, str]]:
        found = list(changed(self._before, _notes(now)))
        if not found:
            return
        code = [seen.value.__code__ for seen in now.values() if isinstance(seen.value, types.FunctionType)]
        used = frozenset().union(*map(names_used, code))
        for place, part in found:
            owner = now[place].value
            name, is_cache = now[place].named(part)
            # What is only collected in decides nothing; code of libraries is not looked into.
            is_read = not name or name in used or type(owner).__module__.partition(".")[0] in _LIBRARIES
            if is_read and not is_cache:
                yield name_of(place, part), part, owner, now[place].notes.get(part, "")


def name_of(place: str, part: str) -> str:
    """Return the place of a part."""
    return part[1:] if part.startswith(_ABSOLUTE) else place + part


def attributes(value: Any) -> Parts:
    """Return what an object holds in its dictionary and in its slots."""
    here = dict(getattr(value, "__dict__", {}))
    slots = {f".{name}": getattr(value, name, None) for name in slot_names(value) if name not in here}
    return {**{f".{name}": item for name, item in here.items()}, **slots}


def classes(value: Any) -> Parts:
    """Return those of an object's classes that are the user's."""
    own = own_classes(value)
    return {f"{_ABSOLUTE}class {kind.__module__}.{kind.__qualname__}": kind for kind in own}


def _notes(found: Mapping[str, Seen]) -> Notes:
    return {place: seen.notes for place, seen in found.items()}


def _opened(value: Any, parts_of: PartsOf) -> tuple[Parts | None] | None:
    """Return what `parts_of` says of an object that there are parts of to look at; None for any other."""
    # A weak reference may have died: a look must not end a fit.
    with suppress(Exception):
        special = parts_of(value)
        return (special,) if special is not None or _is_open(value) else None
    return None


def _is_open(value: Any) -> bool:
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return True
    if isinstance(value, (property, staticmethod, classmethod, *SPACES)):
        return True
    if isinstance(value, (dict, *BOXES)):
        return not is_flat(value)
    if isinstance(value, (*SCALARS, *FIXED, *GENERATORS, np.ndarray)):
        return False
    if isinstance(value, types.ModuleType):
        return is_own(value.__name__)
    return is_own((value if isinstance(value, type) else type(value)).__module__)


def _parts_or_none(value: Any) -> Parts:
    with suppress(Exception):
        return _parts(value)
    return {}


def _parts(value: Any) -> Parts:
    if isinstance(value, dict):
        items = list(dict.items(value))[:_MOST_ITEMS]
        is_plain = [isinstance(key, SCALARS) for key, _ in items]
        # Keys may be of one kind and then have one text.
        return {
            f"[{key_of(key)}]" if plain else f"[{i}: {key_of(key)}]": item
            for i, ((key, item), plain) in enumerate(zip(items, is_plain, strict=True))
        }
    if isinstance(value, BOXES):
        # A set of objects has no order to compare.
        is_ordered = not isinstance(value, (set, frozenset))
        return {f"[{i}]": item for i, item in enumerate(items_of(value)[:_MOST_ITEMS]) if is_ordered}
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, types.MethodType):
        return {"": value.__func__, "(self)": value.__self__}
    if isinstance(value, functools.partial):
        return {"": value.func, "(args)": value.args, "(keywords)": value.keywords}
    if isinstance(value, property):
        return {"(get)": value.fget, "(set)": value.fset}
    if isinstance(value, (staticmethod, classmethod)):
        return {"": value.__func__}
    if isinstance(value, types.ModuleType):
        here = dict(vars(value))
        return {f".{n}": v for n, v in here.items() if not (_is_dunder(n) or isinstance(v, _CODE))}
    if isinstance(value, type):
        # The dictionaries of a class are Python's own.
        here = dict(vars(value))
        return {f".{n}": v for n, v in here.items() if not _is_dunder(n) or isinstance(v, types.FunctionType)}
    return {**attributes(value), **classes(value)}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _of_function(function: types.FunctionType) -> Parts:
    code = function.__code__
    found = {f"{{{name}}}": cell.cell_contents for name, cell in cells_of(function).items()}
    if not is_own(function.__module__):
        return found
    found |= {f".{name}": item for name, item in dict(vars(function)).items() if name != "__wrapped__"}
    names = code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]
    defaults = dict(zip(names, function.__defaults__ or (), strict=True)) | (function.__kwdefaults__ or {})
    found |= {f"({name})": item for name, item in defaults.items()}
    return found
