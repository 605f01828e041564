"""Arrays in memory, nested or not, as a source of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from xptrain.data.order import permutation

Shuffle = bool | str


class ArraySource:
    """Batches of arrays, in an order that is a function of (seed, fit, epoch, batch).

    Args:
        take: Returns the samples at the given indices (an index array or a slice), as the structure that
            the train step gets.
        num_samples: Length of the arrays.
        batch_size: Samples in a batch; the last one may be smaller.
        shuffle: True for a permutation of all samples, "batch" for one inside each batch, False for none.
        seed: The run's seed.
        steps_per_epoch: Batches in an epoch when it is not one pass over the data.
        first_epoch: The epoch in which the first pass begins.

    Example:
        >>> import numpy as np
        >>> x = np.arange(6)
        >>> source = ArraySource(lambda i: x[i], 6, 2, False, seed=0)
        >>> [batch.tolist() for batch in source.epoch(0, 0, start=1)]
        [[2, 3], [4, 5]]
    """

    # The order follows from (seed, fit, epoch, batch).
    uncaptured: tuple[str, ...] = ()

    def __init__(
        self,
        take: Callable[[Any], Any],
        num_samples: int,
        batch_size: int,
        shuffle: Shuffle,
        seed: int,
        steps_per_epoch: int | None = None,
        first_epoch: int = 0,
    ) -> None:
        self._take = take
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._pass_length = math.ceil(num_samples / batch_size)
        self._steps_per_epoch = steps_per_epoch
        self._first_epoch = first_epoch

    @property
    def num_batches(self) -> int:
        """Batches in one epoch, at most."""
        return self._steps_per_epoch or self._pass_length

    def first(self) -> Any:
        """Return the first `batch_size` samples."""
        return self._take(slice(0, min(self._batch_size, self._num_samples)))

    def batches_in(self, epoch: int) -> int:
        """Return how many batches an epoch has: fewer than `steps_per_epoch` where a pass ends in it."""
        start = self._place(epoch)[1]
        return min(self.num_batches, self._pass_length - start)

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on."""
        pass_number, offset = self._place(epoch)
        order = self._order(fit, pass_number)
        for position in range(offset + start, offset + self.batches_in(epoch)):
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

    def _place(self, epoch: int) -> tuple[int, int]:
        """Return the pass over the data that an epoch belongs to, and the batch at which it begins there.

        As in Keras, an epoch shorter than a pass goes on where the one before stopped and ends with it.
        """
        if self._steps_per_epoch is None:
            return epoch, 0
        epochs_per_pass = math.ceil(self._pass_length / self._steps_per_epoch)
        pass_number, number = divmod(epoch - self._first_epoch, epochs_per_pass)
        return pass_number, number * self._steps_per_epoch

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
