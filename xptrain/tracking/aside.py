"""What a working store does not take: found out and left out, so that what follows is still told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from xptrain.errors import TrackerError
from xptrain.tracking.refusals import Failed, Refused

T = TypeVar("T")
TRIES = 5  # of sending a record, in a row, before it is believed to be at fault
_MOST_FAILED = 10
_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def leave_out(items: Sequence[T], send: Callable[[Sequence[T]], object]) -> list[tuple[T, TrackerError]]:
    """Send items in ever smaller parts.

    Args:
        items: What is to be sent, not empty.
        send: Sends some; sending again does no harm.

    Returns:
        Those that failed even alone, and why; all others were taken.

    Raises:
        TrackerError: The store cannot be used now, or fails at everything: then no item is at fault.
    """
    left_out: list[tuple[T, TrackerError]] = []
    works = False
    parts = [items]
    while parts:
        part = parts.pop()
        try:
            send(part)
            works = True
        except (Refused, Failed) as error:
            half = len(part) // 2
            if half:
                parts += [part[half:], part[:half]]
                continue
            left_out.append((part[0], error))
            if isinstance(error, Failed) and not works and len(left_out) > _MOST_FAILED:
                raise
    return left_out


@contextmanager
def understood() -> Iterator[None]:
    """Turn what a malformed record raises into a refusal of that record."""
    try:
        yield
    except _MALFORMED as error:
        raise Refused("a record is not as expected", found=repr(error)) from error
