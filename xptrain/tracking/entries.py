"""What waits to be journaled: values of one step or of several, on the host or still on a device."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsFloat

from xptrain.errors import UsageError


class Entry(NamedTuple):
    """One record that waits.

    Args:
        ms: When it happened, milliseconds since the epoch.
        kind: Kind of the record.
        step: Step of its points; of several, the last.
        content: Values by metric, or the fields of another kind.
        volatile: Metrics that measure time.
        on_device: How many steps its arrays hold; 0 for values that are on the host.
    """

    ms: int
    kind: str
    step: int
    content: Mapping[str, Any]
    volatile: Collection[str]
    on_device: int


Row = tuple[int, Mapping[str, float]]


def rows_of(entry: Entry, fetched: Iterator[Any]) -> list[Row]:
    """Return the values of each step of an entry; those of a device come from `fetched`, in order."""
    if not entry.on_device:
        return [(entry.step, entry.content)]
    if entry.on_device == 1:
        return [(entry.step, {metric: as_float(next(fetched)) for metric in entry.content})]
    columns = {metric: next(fetched).tolist() for metric in entry.content}
    first = entry.step - entry.on_device + 1
    return [(first + i, {m: column[i] for m, column in columns.items()}) for i in range(entry.on_device)]


def as_float(value: Any) -> float:
    """Return a number, or an array of one element, as a float."""
    return float(value.item() if hasattr(value, "item") else value)


def floats(values: list[Any]) -> Sequence[SupportsFloat]:
    """Return `as_float` of each."""
    return [as_float(value) for value in values]


def checked_name(metric: Any) -> str:
    """Return a metric's name; raises UsageError if it is not text."""
    if not isinstance(metric, str):
        raise UsageError("a metric's name must be text", expected="a str", found=repr(metric))
    return metric


def checked_step(step: Any) -> int:
    """Return a step; raises UsageError if it is no integer of 64 bits."""
    try:
        whole = operator.index(step)
    except TypeError:
        raise UsageError("a step must be an integer", found=repr(step)) from None
    if -(2**63) <= whole < 2**63:
        return whole
    raise UsageError("a step must fit 64 bits", expected="-2**63 <= step < 2**63", found=str(whole)[:100])


def checked_number(metric: str, value: Any) -> float:
    """Return a metric's value; raises UsageError if it is no number."""
    try:
        if not isinstance(value, str | bytes):
            return as_float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"the metric {metric!r} must be one number", found=repr(value)[:200])
