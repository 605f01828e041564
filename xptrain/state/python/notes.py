"""What a value looks like: a short text that is compared later, so that the value need not be kept."""

from __future__ import annotations

import array
import datetime
import enum
import itertools
import operator
import os
import pathlib
import random
import sys
import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import blake3
import numpy as np

SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, enum.Enum)
FIXED = (pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta, range, slice, itertools.count)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
BOXES = (list, tuple, set, frozenset, deque)
# Begin the notes of what is looked into by itself, and of what cannot be looked into.
OPEN, OPAQUE = ">", "?"
_NOTHING = "NoneType None"
# A file that is opened, a helper: made when it is first needed, which decides nothing.
_MADE = (OPEN, OPAQUE, "process")
_OF_PYTHON = tuple(f"{OPEN}{home}." for home in ("builtins", "collections"))
_FAST = frozenset({type(None), bool, int, str, bytes, float})
# Of what is larger samples are compared, spread evenly: a look is a part of every save.
_SAMPLES = 1 << 16
_ARRAYS = 1_000
_ENDS = 64


def note_of(value: Any) -> str:
    """Return what a value looks like, without looking into objects of the user's.

    Args:
        value: Anything. Of its own code nothing runs.
    """
    try:
        return _note(value)
    # A weak reference that died, a device that failed: a look must not end a fit.
    except Exception:  # noqa: BLE001
        return OPAQUE


def are_alike(before: str | None, now: str | None) -> bool:
    """Say whether two notes of a place are of one value, or of what was made when it was first needed."""
    if before == now:
        return True
    was_there, is_there = (note not in (None, _NOTHING) for note in (before, now))
    made = (now if is_there else before) or ""
    return was_there != is_there and made.startswith(_MADE) and not made.startswith(_OF_PYTHON)


def kind_of(value: Any) -> str:
    """Return the name of a value's kind, with the number of its items."""
    if isinstance(value, (type, types.FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__
    size = f" of {len(value)}" if isinstance(value, (dict, *BOXES)) else ""
    return f"{type(value).__module__}.{type(value).__qualname__}{size}"


def items_of(box: Any) -> list[Any]:
    """Return a copy of the items of a list, a dict or their like: threads may go on changing it."""
    # Not by a method of a class of the user's.
    if isinstance(box, dict):
        return list(dict.values(box))
    return list(next(kind for kind in BOXES if isinstance(box, kind)).__iter__(box))


def is_flat(box: Any) -> bool:
    """Say whether a box holds nothing that has parts."""
    return all(issubclass(kind, (*SCALARS, np.ndarray)) for kind in set(map(type, items_of(box))))


def key_of(key: Any) -> str:
    """Return the text of a key; not of an object, since making it would run its code."""
    if type(key) is tuple:
        return f"({', '.join(map(key_of, key))})"
    return repr(key) if isinstance(key, SCALARS) else kind_of(key)


def _note(value: Any) -> str:
    if isinstance(value, SCALARS):
        if type(value) is int and value in (os.getpid(), os.getppid()):
            return "process"  # by it code finds out that it was forked
        text = f"{type(value).__name__} {value!r}"
        return text if len(text) < 100 else _digest(text.encode())
    if isinstance(value, np.memmap) and value.mode == "r":
        return f"{value.filename} {value.offset} {value.dtype}{value.shape}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _note_array(value)
    if isinstance(value, (dict, *BOXES)):
        return _note_box(value)
    if isinstance(value, np.random.Generator):
        return _digest(repr(value.bit_generator.state).encode())
    if isinstance(value, np.random.RandomState):
        return _digest(repr(value.get_state()).encode())
    if isinstance(value, random.Random):
        is_of_system = isinstance(value, random.SystemRandom)
        return "SystemRandom" if is_of_system else _digest(repr(value.getstate()).encode())
    if isinstance(value, FIXED):
        return repr(value)
    home = type(value).__module__.partition(".")[0]
    if home in ("jax", "jaxlib") and hasattr(value, "is_deleted"):
        return _note_jax(value)
    if home == "torch" and isinstance(value, sys.modules["torch"].Tensor):
        return _note_array(value.detach().cpu().numpy())
    if home == "builtins" and hasattr(value, "__length_hint__"):
        return f"{kind_of(value)} {operator.length_hint(value)}"
    return f"{OPAQUE}{kind_of(value)}"


def _note_box(box: Any) -> str:
    items = items_of(box)
    kinds = set(map(type, items))
    head = f"{type(box).__name__} {len(items)} "
    if isinstance(box, dict):
        keys = list(dict.keys(box))
        head += _digest(repr([key_of(key) for key in _some(keys, _SAMPLES)]).encode())
    if isinstance(box, (set, frozenset)):
        items, kinds = sorted(map(note_of, items)), {str}
    some = _some(items, _SAMPLES if all(issubclass(kind, SCALARS) for kind in kinds) else _ARRAYS)
    if kinds == {float}:
        return head + _digest(array.array("d", some).tobytes())
    if kinds in ({str}, {bytes}):
        some = [(len(item), item[:_ENDS], item[-_ENDS:]) for item in some]
    text = repr(list(some)) if kinds <= _FAST else "\0".join(map(note_of, some))
    return head + _digest(text.encode("utf-8", "surrogatepass"))


def _note_jax(value: Any) -> str:
    import jax

    if value.is_deleted() or not value.is_fully_addressable:
        return f"{OPAQUE}{kind_of(value)}"
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return _note_array(value)


def _note_array(value: Any) -> str:
    return _digest(f"{value.dtype}{value.shape}".encode(), _sample(value))


def _some(items: Sequence[Any], most: int) -> Sequence[Any]:
    return items[:: -(-len(items) // most)] if len(items) > most else items


def _sample(value: Any) -> bytes:
    if value.size > _SAMPLES:
        # Not `reshape`, which would copy the whole of an array that is not in one piece.
        steps = tuple(slice(None, None, max(1, size // 64)) for size in value.shape[1:])
        within = max(1, int(np.prod([min(size, 64) for size in value.shape[1:]])))
        # On a device only the samples are brought to the host.
        value = value[(slice(None, None, max(1, value.shape[0] * within // _SAMPLES)), *steps)]
    return np.asarray(value).tobytes()


def _digest(*parts: bytes) -> str:
    return blake3.blake3(b"\0".join(parts)).hexdigest(16)
