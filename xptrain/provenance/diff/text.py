"""Short text of values, and the items in which two nested mappings differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LONGEST: Final = 60


class _Missing:
    def __repr__(self) -> str:
        return "not there"


MISSING: Final = _Missing()


def show(value: Any) -> str:
    """Return a value as short text; long ones are cut in the middle."""
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 + 1 :]}"


def items(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return (name, old, new) wherever two nested mappings differ; `MISSING` stands for no value.

    Example:
        >>> items({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
        [('b.c', 2, 3)]
    """
    found: list[tuple[str, Any, Any]] = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name, MISSING), new.get(name, MISSING)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += items(a, b, f"{prefix}{name}.")
        elif not _same(a, b):
            found.append((f"{prefix}{name}", a, b))
    return found


def _same(a: Any, b: Any) -> bool:
    """Compare values of JSON kinds: NaN equals itself, numbers compare by value, True is no number."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return not items(a, b)
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    return bool(a == b or (a != a and b != b))
