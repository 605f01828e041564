"""Logs of steps and epochs as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat(logs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of logs, with nested dicts flattened as Keras's callbacks see them."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from flat(value)
        else:
            yield str(name), value


def is_number(value: Any) -> bool:
    """Tell whether a value is one number: Python's, NumPy's, or an array of one element."""
    if isinstance(value, (bool, int, float)):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    # bfloat16 and the float8 types have kind V.
    return kind in "biufV" and kind != "" and getattr(value, "size", 0) == 1


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the entries of logs that are one number, as floats; others have no curve."""
    return {name: number(value) for name, value in flat(logs) if is_number(value)}


def number(value: Any) -> float:
    """Return what `is_number` accepts as a float; an array may have any number of dimensions."""
    return float(value.item() if hasattr(value, "item") else value)
