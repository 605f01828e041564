"""What Python code can reach and change: a look at objects that notes what they hold, without keeping it.

A checkpoint holds what lies in known places. Whether something else was changed is seen by looking twice: at
attributes of classes, functions and objects, at what functions close over, at arrays and random generators.
Only the user's own code is looked into, not that of installed packages; the variables of the script are left
to the script.
"""

from __future__ import annotations

import datetime
import enum
import functools
import itertools
import operator
import pathlib
import random
import re
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import blake3
import numpy as np

from xptrain.state.python.functions import cells_of, is_own, names_used, own_classes
from xptrain.state.python.slots import slot_names
from xptrain.state.values.held import SPACES

# By the place of an object: what each of its parts looked like, by the part's name.
Notes = dict[str, dict[str, str]]
Parts = Mapping[str, Any]
PartsOf = Callable[[Any], Parts | None]

_SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
_FIXED = (pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, range, slice, itertools.count)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_BOXES = (list, tuple, set, frozenset, deque)
# Of an argument nothing is said.
_NAME = re.compile(r"[.{](\w+)|\(")
_CACHE = "cache"
_CODE = (types.FunctionType, type, types.ModuleType)
_NOTHING, _OPEN, _OPAQUE = "NoneType None", ">", "?"
_OF_PYTHON = tuple(f"{_OPEN}{home}." for home in ("builtins", "collections"))
# A look is a part of every save: it ends after so many objects.
_MOST_OBJECTS = 20_000
_MOST_ITEMS = 1_000
# Of a larger array samples are compared, spread evenly.
_SAMPLES = 1 << 16
# Begins the name of a part whose place does not depend on who leads to it.
_ABSOLUTE = "="


def look(
    roots: Mapping[str, Any],
    parts_of: PartsOf = lambda value: None,
    *,
    but: tuple[type, ...] = (),
) -> tuple[Notes, dict[str, Any]]:
    """Return notes of what can be reached from some objects, and the objects, both by their places.

    Args:
        roots: The objects to begin with, by the names of their places.
        parts_of: Returns the parts of an object that is looked into in another way; an empty mapping for one
            that is to be left alone, and None for any other.
        but: Kinds of parts that are left out.

    Example:
        >>> seen = []
        >>> before, _ = look({"f": lambda: seen})
        >>> seen.append(1)
        >>> [part for place, part in changed(before, look({"f": lambda: seen})[0])]
        ['{seen}']
    """
    notes: Notes = {}
    owners: dict[str, Any] = {}
    waiting = deque(roots.items())
    # A root is found under its own name, wherever else it lies.
    seen = {id(value) for value in roots.values()}
    while waiting and len(notes) < _MOST_OBJECTS:
        place, value = waiting.popleft()
        special = parts_of(value)
        owners[place] = value
        notes[place] = here = {}
        for name, part in (_parts(value) if special is None else special).items():
            if isinstance(part, but):
                continue
            is_open = parts_of(part) is not None or _is_open(part)
            here[name] = f"{_OPEN}{_kind(part)}" if is_open else note_of(part)
            if is_open and id(part) not in seen:
                seen.add(id(part))
                waiting.append((name_of(place, name), part))
    return notes, owners


def changed(before: Notes, now: Notes) -> Iterator[tuple[str, str]]:
    """Yield (place, part) of what both looks saw and what differs, outermost first."""
    for place, parts in before.items():
        others = now.get(place, parts)
        for part in [*parts, *(others.keys() - parts.keys())] if others != parts else ():
            if not _are_alike(parts.get(part), others.get(part)):
                yield place, part


def _are_alike(before: str | None, now: str | None) -> bool:
    if before == now:
        return True
    # What is made when it is first needed: a file that is opened, a helper.
    was_there, is_there = (note not in (None, _NOTHING) for note in (before, now))
    made = (now if is_there else before) or ""
    return was_there != is_there and made.startswith((_OPEN, _OPAQUE)) and not made.startswith(_OF_PYTHON)


def _are_read(owners: Mapping[str, Any]) -> Callable[[str, Any], bool]:
    """Return what says of a place and its owner whether code reads it, rather than only collect there.

    Args:
        owners: The objects that were found, with the code among them.
    """
    code = [value.__code__ for value in owners.values() if isinstance(value, types.FunctionType)]
    used = frozenset().union(*map(names_used, code))

    def is_read(place: str, owner: Any) -> bool:
        is_of_keras = type(owner).__module__.startswith("keras.")
        # By convention a cache may be lost: it is filled again.
        name = (_NAME.findall(place) or [""])[-1]
        return _CACHE not in place.lower() and (is_of_keras or not name or name in used)

    return is_read


class Watch:
    """Says what has changed since it last looked, of all that can be reached from some objects.

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
        but: tuple[type, ...] = (),
    ) -> None:
        self._look = functools.partial(look, roots, parts_of, but=but)
        self._before: Notes = {}

    def look(self) -> None:
        """Take what is there now as it should be."""
        self._before, _ = self._look()

    def changes(self) -> list[tuple[str, str, Any]]:
        """Return (place, name of the part, owner) of what differs and may be read, outermost first."""
        now, owners = self._look()
        found = list(changed(self._before, now))
        is_read = _are_read(owners) if found else None
        named = [(name_of(place, part), part, owners[place]) for place, part in found]
        return [change for change in named if is_read and is_read(change[0], change[2])]


def name_of(place: str, part: str) -> str:
    """Return the place of a part."""
    return part[1:] if part.startswith(_ABSOLUTE) else place + part


def _is_open(value: Any) -> bool:
    """Say whether there are parts to look at."""
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return True
    if isinstance(value, (property, staticmethod, classmethod, *SPACES)):
        return True
    if isinstance(value, (dict, *_BOXES)):
        return not _is_flat(value)
    if isinstance(value, (*_SCALARS, *_FIXED, *GENERATORS, np.ndarray)):
        return False
    if isinstance(value, types.ModuleType):
        return is_own(value.__name__)
    return is_own((value if isinstance(value, type) else type(value)).__module__)


def _is_flat(box: Any) -> bool:
    # A copy, since threads may go on changing it.
    items = list(box.values() if isinstance(box, dict) else box)
    return all(isinstance(item, (*_SCALARS, np.ndarray)) for item in items)


def _parts(value: Any) -> Parts:
    if isinstance(value, dict):
        return {f"[{_key(key)}]": item for key, item in list(value.items())[:_MOST_ITEMS]}
    if isinstance(value, _BOXES):
        # A set of objects has no order to compare.
        is_ordered = not isinstance(value, (set, frozenset))
        return {f"[{i}]": item for i, item in enumerate(list(value)[:_MOST_ITEMS]) if is_ordered}
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, types.MethodType):
        return {"": value.__func__, ".__self__": value.__self__}
    if isinstance(value, functools.partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, property):
        return {".fget": value.fget, ".fset": value.fset}
    if isinstance(value, (staticmethod, classmethod)):
        return {"": value.__func__}
    if isinstance(value, types.ModuleType):
        names = [n for n, v in vars(value).items() if not (_is_dunder(n) or isinstance(v, _CODE))]
        return {f".{name}": vars(value)[name] for name in names}
    if isinstance(value, type):
        # The dictionaries of a class are Python's own.
        items = list(vars(value).items())
        return {f".{n}": v for n, v in items if not _is_dunder(n) or isinstance(v, types.FunctionType)}
    return {**attributes(value), **classes(value)}


def attributes(value: Any) -> Parts:
    """Return what an object holds in its dictionary and in its slots."""
    here = dict(getattr(value, "__dict__", {}))
    return {f".{name}": here.get(name, getattr(value, name, None)) for name in [*here, *slot_names(value)]}


def classes(value: Any) -> Parts:
    """Return those of an object's classes that are the user's."""
    own = own_classes(value)
    return {f"{_ABSOLUTE}{kind.__module__}.{kind.__qualname__}": kind for kind in own}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _of_function(function: types.FunctionType) -> Parts:
    code = function.__code__
    found = {f"{{{name}}}": cell.cell_contents for name, cell in cells_of(function).items()}
    if not is_own(function.__module__):
        return found
    found |= {f".{name}": item for name, item in vars(function).items() if name != "__wrapped__"}
    names = code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) : code.co_argcount]
    defaults = dict(zip(names, function.__defaults__ or (), strict=True)) | (function.__kwdefaults__ or {})
    found |= {f"({name})": item for name, item in defaults.items()}
    return found


def _kind(value: Any) -> str:
    if isinstance(value, (type, types.FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    size = f" of {len(value)}" if isinstance(value, (dict, *_BOXES)) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}{size}"


def note_of(value: Any) -> str:
    """Return what a value looks like, without looking into objects of the user's."""
    if isinstance(value, _SCALARS):
        text = f"{type(value).__name__} {value!r}"
        return text if len(text) < 100 else _digest(text.encode())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _digest(f"{value.dtype}{value.shape}".encode(), _sample(value))
    if isinstance(value, (set, frozenset)):
        return _digest(repr(sorted(map(note_of, list(value)))).encode())
    if isinstance(value, dict):
        return _digest(repr([(_key(key), note_of(item)) for key, item in list(value.items())]).encode())
    if isinstance(value, _BOXES):
        return _digest("\0".join(map(note_of, list(value))).encode())
    if isinstance(value, np.random.Generator):
        return _digest(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _digest(repr(value.get_state()).encode())
    if isinstance(value, random.Random):
        is_of_system = isinstance(value, random.SystemRandom)
        return "SystemRandom" if is_of_system else _digest(repr(value.getstate()).encode())
    if isinstance(value, _FIXED):
        return repr(value)
    home = type(value).__module__.partition(".")[0]
    if home in ("jax", "jaxlib") and hasattr(value, "is_deleted") and not value.is_deleted():
        return f"{value.dtype}{value.shape} " + (_digest(_sample(value)) if value.size <= _SAMPLES else "")
    if home == "builtins" and hasattr(value, "__length_hint__"):
        return f"{_kind(value)} {operator.length_hint(value)}"
    return f"{_OPAQUE}{_kind(value)}"


def _key(key: Any) -> str:
    # Not the text of an object: making it would run its code.
    return repr(key) if isinstance(key, _SCALARS) else _kind(key)


def _sample(array: Any) -> bytes:
    if array.size <= _SAMPLES:
        return np.asarray(array).tobytes()
    # Not `reshape`, which would copy the whole of an array that is not in one piece.
    steps = tuple(slice(None, None, max(1, size // 64)) for size in array.shape[1:])
    rows = max(1, array.shape[0] * max(1, int(np.prod([min(s, 64) for s in array.shape[1:]]))) // _SAMPLES)
    return np.asarray(array[(slice(None, None, rows), *steps)]).tobytes()


def _digest(*parts: bytes) -> str:
    return blake3.blake3(b"\0".join(parts)).hexdigest(16)
