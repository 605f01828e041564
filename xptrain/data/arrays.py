"""Arrays in memory, nested or not, as a source of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from xptrain.data.order import permutation
from xptrain.data.passes import Passes
from xptrain.data.source import Source

Shuffle = bool | str


class ArraySource(Source):
    """Batches of arrays, in an order that is a function of (seed, fit, epoch, batch).

    Args:
        take: Returns the samples at the given indices (an index array or a slice), as the structure that
            the train step gets.
        num_samples: Length of the arrays.
        batch_size: Samples in a batch; the last one may be smaller.
        shuffle: True for a permutation of all samples, "batch" for one inside each batch, False for none.
        seed: The run's seed.
        passes: Which batches an epoch has.

    Example:
        >>> import numpy as np
        >>> x = np.arange(6)
        >>> source = ArraySource(lambda i: x[i], 6, 2, False, seed=0, passes=Passes(3))
        >>> [batch.tolist() for batch in source.epoch(0, 0, start=1)]
        [[2, 3], [4, 5]]
    """

    def __init__(
        self,
        take: Callable[[Any], Any],
        num_samples: int,
        batch_size: int,
        shuffle: Shuffle,
        seed: int,
        passes: Passes,
    ) -> None:
        self._take = take
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._passes = passes

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, at most."""
        return self._passes.num_batches

    def first(self) -> Any:
        """Return the first `batch_size` samples."""
        return self._take(slice(0, min(self._batch_size, self._num_samples)))

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has."""
        return self._passes.batches_in(epoch)

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on."""
        pass_number, offset = self._passes.place(epoch)
        order = self._order(fit, pass_number)
        for position in range(offset + start, offset + (self.batches_in(epoch) or 0)):
            yield self._take(self._indices(order, fit, pass_number, position))

    def describe(self) -> dict[str, Any]:
        """Return what decides the batches, as JSON data."""
        return {
            "kind": "arrays",
            "num_samples": self._num_samples,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "num_batches": self.num_batches,
        }

    def _order(self, fit: int, pass_number: int) -> Any:
        if self._shuffle and self._shuffle != "batch":
            return permutation(self._num_samples, self._seed, fit, pass_number)
        return None

    def _indices(self, order: Any, fit: int, pass_number: int, position: int) -> Any:
        start = position * self._batch_size
        stop = min(start + self._batch_size, self._num_samples)
        if self._shuffle == "batch":
            return start + permutation(stop - start, self._seed, fit, pass_number, position)
        return slice(start, stop) if order is None else order[start:stop]
