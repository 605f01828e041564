"""Which part of which pass over the data an epoch is."""

from __future__ import annotations

import math


class Passes:
    """Epochs as parts of passes over a known number of batches.

    As in Keras, an epoch shorter than a pass goes on where the one before stopped and ends with the pass.

    Args:
        length: Batches in one pass; None for data without an end.
        steps: Batches in an epoch when it is not one pass.
        first_epoch: The epoch in which the first pass begins.
        restarts: True when every epoch begins a pass (validation).

    Example:
        >>> Passes(5, steps=3).place(1), Passes(5, steps=3).batches_in(1)
        ((0, 3), 2)
    """

    def __init__(
        self, length: int | None, steps: int | None = None, first_epoch: int = 0, restarts: bool = False
    ) -> None:
        self._length = length
        self._steps = steps
        self._first_epoch = first_epoch
        self._restarts = restarts

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, at most; None for one without an end."""
        return self._steps or self._length

    def place(self, epoch: int) -> tuple[int, int]:
        """Return the number of the pass that an epoch belongs to, and the batch at which it begins there."""
        if self._steps is None or self._restarts:
            return epoch, 0
        number = epoch - self._first_epoch
        if self._length is None:
            return 0, number * self._steps
        pass_number, part = divmod(number, math.ceil(self._length / self._steps))
        return pass_number, part * self._steps

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has: fewer than `steps` where a pass ends in it."""
        if self._length is None:
            return self._steps
        left = self._length - self.place(epoch)[1]
        return left if self._steps is None else min(self._steps, left)
