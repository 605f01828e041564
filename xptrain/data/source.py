"""What the loop needs from any source of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from xptrain.errors import InexactError

Convert = Callable[[Any], Any]
Digest = Callable[[Any], str]


class Source(Protocol):
    """Yields the batches of one epoch from any batch on."""

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""

    def first(self) -> Any:
        """Return a batch with the structure, dtypes and shapes of the first one, to build the model with."""

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches one epoch has, or None when that is not known before its end."""

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on; O(1) to begin where the data allows it."""

    @property
    def uncaptured(self) -> Sequence[str]:
        """What decides the batches and is in no checkpoint: it lowers the grade."""
        return ()

    @property
    def watched(self) -> Any:
        """An object of the script that nothing should change while training, or None."""
        return None

    @property
    def watches(self) -> Sequence[Any]:
        """Objects of the script that may change, and of which the source itself says what does."""
        return ()

    @property
    def is_over(self) -> bool:
        """Whether no batch will ever come again."""
        return False

    def begin(self, fit: int) -> None:
        """Called when the number of the fit is known, before `set_state` and the first epoch."""
        return

    def get_state(self) -> Any:
        """Return where the source is, as plain data; None when (seed, fit, epoch, batch) say it all."""
        return None

    def set_state(self, state: Any) -> None:
        """Go to where `get_state` was called, before an epoch is begun or gone on with."""
        return

    def describe(self) -> dict[str, Any]:
        """Return, as JSON data, what must be equal for a resumed run to see the same batches."""


def other_batches(what: str, found: str, expected: str, remedy: str) -> InexactError:
    """Return the error for data that do not come again as they were before a stop.

    Args:
        what: What yields them.
        found: What it yields now.
        expected: What it yielded before.
        remedy: What to do.
    """
    return InexactError(
        f"the {what} yields other batches than before the stop", expected=expected, found=found, remedy=remedy
    )


def in_chunks(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` batches; the last one may be shorter."""
    while chunk := list(islice(batches, size)):
        yield chunk
