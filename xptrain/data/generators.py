"""Python generators as a source: what was drawn before a checkpoint is drawn again, and compared."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from xptrain.data import draws
from xptrain.data.source import Convert, Digest, Source, other_batches
from xptrain.errors import InexactError, UsageError

# How many batches of each generator were drawn in this process: they cannot be drawn again.
_drawn: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class GeneratorSource(Source):
    """Batches of one Python generator, which goes on over the epochs.

    A resumed run draws the batches before the checkpoint again and drops them; each is drawn with global
    random numbers of its own, so that it comes out the same. The last of them is compared with the batch
    that was trained.

    Args:
        generator: The generator.
        convert: Turns a batch into what the train step gets; the result shares no memory with the batch.
        digest: Returns the digest of a converted batch.
        steps: Batches in an epoch; None for all that come.
        seed: The run's seed.
        role: "train" or "validation".
    """

    def __init__(
        self, generator: Any, convert: Convert, digest: Digest, *, steps: int | None, seed: int, role: str
    ) -> None:
        self._generator = generator
        self._convert = convert
        self._digest = digest
        self._steps = steps
        self._names = (seed, role, "generator")
        self._first: Any = None
        self._ahead: list[Any] = []
        self._last: Any = None
        self._taken = _drawn.get(generator, 0)
        self._length: int | None = None
        self._is_over = False

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""
        return self._steps or self._length

    @property
    def watches(self) -> Sequence[Any]:
        """The generator, whose batches are compared."""
        return (self._generator,)

    @property
    def is_over(self) -> bool:
        """Whether the generator has ended: it cannot begin again."""
        return self._is_over

    def first(self) -> Any:
        """Return the first batch that was drawn; it is trained in its turn."""
        if self._first is None:
            self._ahead.append(self._draw())
        return self._first

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has, as far as that is known."""
        return self._steps

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches that come next, as many as are left of the epoch."""
        number = start
        while self._steps is None or number < self._steps:
            try:
                batch = self._ahead.pop() if self._ahead else self._draw()
            except StopIteration:
                break
            number += 1
            self._taken += 1
            self._last = batch
            yield batch
        else:
            return
        self._is_over = True
        if number == 0:
            raise UsageError(
                f"the generator has no batch for epoch {epoch + 1}",
                expected="batches for all epochs, since a generator cannot begin again",
                found=f"its end, after {self._taken} batches",
                remedy="give an endless generator and steps_per_epoch=, a function f(epoch, batch) that "
                "returns a generator, or a keras.utils.PyDataset",
            )
        self._length = number
        if self._steps is not None:
            warnings.warn(
                f"the generator ended after {number} of {self._steps} batches of epoch {epoch + 1}",
                stacklevel=2,
            )

    def describe(self) -> dict[str, Any]:
        """Return what is known of the batches, as JSON data."""
        return {"kind": "generator", "num_batches": self._steps}

    def get_state(self) -> dict[str, Any]:
        """Return how many batches were used, and the digest of the last one."""
        return {"taken": self._taken, "last": None if self._last is None else self._digest(self._last)}

    def set_state(self, state: Any) -> None:
        """Draw the batches before a checkpoint again.

        Raises:
            UsageError: The generator has gone further already.
            InexactError: It yields other batches than before.
        """
        wanted = int(state["taken"])
        # What was drawn to look at was not used yet.
        drawn, self._ahead = self._ahead, []
        if self._taken > wanted:
            raise UsageError(
                "the generator has gone further than the checkpoint, and cannot go back",
                expected=f"{wanted} batches drawn",
                found=f"{self._taken} batches drawn in this process",
                remedy="give a new generator, or a function f(epoch, batch) that returns one",
            )
        while self._taken < wanted:
            try:
                self._last = drawn.pop() if drawn else self._draw()
            except StopIteration:
                raise _other(f"its end after {self._taken} batches", f"{wanted} batches") from None
            self._taken += 1
        self._ahead = drawn
        if self._last is not None and state["last"] is not None:
            found = self._digest(self._last)
            if found != state["last"]:
                raise _other(f"digest {found[:16]} of batch {wanted}", f"digest {state['last'][:16]}")

    def _draw(self) -> Any:
        number = _drawn.get(self._generator, 0)
        with draws.drawing((*self._names, number)):
            batch = self._convert(next(self._generator))
        _drawn[self._generator] = number + 1
        if self._first is None:
            self._first = batch
        return batch


def shared_with(train: Source, validation: Source | None) -> list[str]:
    """Return what cannot be captured of one generator that training and validation draw from in turn."""
    are_generators = isinstance(train, GeneratorSource) and isinstance(validation, GeneratorSource)
    if validation is None or not are_generators or train.watches != validation.watches:
        return []
    return ["the place in a generator that training and validation share (give each its own)"]


def _other(found: str, expected: str) -> InexactError:
    remedy = "make it depend on nothing but its arguments and random numbers, or give a function "
    return other_batches("generator", found, expected, remedy + "f(epoch, batch) that returns one")
