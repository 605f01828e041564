"""Functions of the user's own: what they close over, and what they read."""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_FOREIGN = ("site-packages", "dist-packages")
_CALLS = ("LOAD_METHOD", "LOAD_ATTR")
_READS = ("LOAD_DEREF", "LOAD_CLASSDEREF", *_CALLS)
_COLLECTS = ("append", "appendleft", "extend", "add", "update", "insert")


def remembered(function: Callable[[K], V]) -> Callable[[K], V]:
    """Return a function that computes its result once for as long as its argument lives."""
    known: weakref.WeakKeyDictionary[Any, V] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def get(key: K) -> V:
        if key not in known:
            known[key] = function(key)
        return known[key]

    return get


def is_own(home: str | None) -> bool:
    """Say whether a module, by its name, is the user's and not that of an installed package."""
    return home is not None and _is_own(home)


@functools.cache
def _is_own(home: str) -> bool:
    top = home.partition(".")[0]
    if top == "xptrain" or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    module = sys.modules.get(home)
    file = getattr(module, "__file__", None)
    # What was typed in has no file.
    is_typed = home == "__main__" or module is None
    return is_typed or (file is not None and not any(part in file for part in _FOREIGN))


def own_classes(value: Any) -> list[type]:
    """Return those of an object's classes that are the user's, in the order in which names are looked up."""
    return [cls for cls in type(value).__mro__ if is_own(cls.__module__)]


@remembered
def attributes_read(code: types.CodeType) -> frozenset[str]:
    """Return the names of the attributes that a function, or one within it, reads."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _CALLS}
    return frozenset(names.union(*map(attributes_read, _inner(code))))


@remembered
def names_used(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes and of variables that a function closes over, if it reads them.

    A list that is only appended to is not read: what comes of it cannot depend on it.
    """
    instructions = list(dis.get_instructions(code))
    names = {
        now.argval
        for now, after in zip(instructions, [*instructions[1:], None], strict=True)
        if now.opname in _READS and not (after and after.opname in _CALLS and after.argval in _COLLECTS)
    }
    return frozenset(names.union(*map(names_used, _inner(code))))


def _inner(code: types.CodeType) -> list[types.CodeType]:
    return [part for part in code.co_consts if isinstance(part, types.CodeType)]


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the cells of the variables that a function closes over, but for those that are still empty."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if not _is_empty(cell)}


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises when it is empty
    except ValueError:
        return True
    return False
