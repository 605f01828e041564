"""Batches that only come one after another: functions that make generators, and iterators with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from xptrain.data import draws
from xptrain.data.source import Convert, Source


class FactorySource(Source):
    """Batches of generators that a function `f(epoch, batch)` makes; each begins at that place.

    Args:
        factory: Returns an iterator over the batches of an epoch, from a batch on.
        convert: As for `GeneratorSource`.
        steps: Batches in an epoch; None for all that an iterator yields.
        seed: The run's seed.
        role: "train" or "validation".
        first_epoch: The epoch in which the fit begins.
    """

    def __init__(
        self,
        factory: Callable[[int, int], Any],
        convert: Convert,
        *,
        steps: int | None,
        seed: int,
        role: str,
        first_epoch: int = 0,
    ) -> None:
        self._factory = factory
        self._convert = convert
        self._steps = steps
        self._seed = seed
        self._role = role
        self._first_epoch = first_epoch
        self._fit = 0
        self._first: Any = None
        self._length: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""
        return self._steps or self._length

    @property
    def watched(self) -> Any:
        """The function, with what it closes over."""
        return self._factory

    def begin(self, fit: int) -> None:
        """Begin a fit: its number is part of what is drawn."""
        self._fit = fit

    def first(self) -> Any:
        """Return the first batch of the fit."""
        if self._first is None:
            for batch in self._batches(self._first_epoch, 0):
                self._first = batch
                break
        return self._first

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has, as far as that is known."""
        return self._steps

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on."""
        self._fit = fit
        number = start
        if number == self._steps:
            return
        for batch in self._batches(epoch, start):
            yield batch
            number += 1
            if number == self._steps:
                return
        self._length = number

    def describe(self) -> dict[str, Any]:
        """Return what is known of the batches, as JSON data."""
        return {"kind": "function of (epoch, batch)", "num_batches": self._steps}

    def _batches(self, epoch: int, start: int) -> Iterator[Any]:
        head = (self._seed, self._fit, self._role, epoch)
        # Layers that the function augments with; its other generators are the script's, and watched.
        held = draws.Held(self._factory)
        with held.drawing_keras((*head, "factory")):
            iterator = iter(self._factory(epoch, start))
        for number in count(start):
            with held.drawing_keras((*head, number)):
                try:
                    batch = self._convert(next(iterator))
                except StopIteration:
                    return
            yield batch


class StatefulSource(Source):
    """Batches of an iterator that can say where it is (`get_state`, `set_state`), or of what makes one.

    Args:
        data: An iterator with a state, or an iterable whose iterators have one.
        convert: As for `GeneratorSource`.
        steps: Batches in an epoch; None for all that an iterator yields.
        seed: The run's seed.
        role: "train" or "validation".
    """

    def __init__(self, data: Any, convert: Convert, *, steps: int | None, seed: int, role: str) -> None:
        self._data = data
        self._convert = convert
        self._steps = steps
        self._names = (seed, role, "iterator")
        self._iterator: Any = None
        self._taken = 0
        self._first: Any = None
        self._ahead: list[Any] = []
        self._before: Any = None
        self._length: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""
        return self._steps or self._length

    @property
    def watches(self) -> Sequence[Any]:
        """The iterator, which says where it is."""
        inner = getattr(self._data, "loader", None)
        return (self._data,) if inner is None else (self._data, inner)

    def first(self) -> Any:
        """Return the first batch that was drawn; it is trained in its turn."""
        if self._first is None:
            # A checkpoint made before it is trained must not count it as used.
            self._before = self._where()
            self._ahead.append(self._draw())
        return self._first

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has, as far as that is known."""
        return self._steps

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches that come next, as many as are left of the epoch."""
        number, began_anew = start, self._iterator is None
        while self._steps is None or number < self._steps:
            try:
                batch = self._ahead.pop() if self._ahead else self._draw()
            except StopIteration:
                self._iterator = None
                if self._steps is None or began_anew:
                    break
                # As Keras does with a dataset: the next pass begins within the epoch that needs it.
                began_anew = True
                continue
            began_anew = False
            number += 1
            self._taken += 1
            self._before = None
            yield batch
        if self._steps is None:
            self._length = number
            self._iterator = None

    def describe(self) -> dict[str, Any]:
        """Return what is known of the batches, as JSON data."""
        kind = type(self._data)
        described = {"kind": f"{kind.__module__}.{kind.__qualname__}", "num_batches": self._steps}
        # An iterator may say how many batches it has; one that cannot describes itself as it always did.
        return {**described, "length": len(self._data)} if hasattr(self._data, "__len__") else described

    def get_state(self) -> dict[str, Any]:
        """Return where the iterator is."""
        return {"taken": self._taken, **(self._before or self._where())}

    def set_state(self, state: Any) -> None:
        """Put the iterator where it was."""
        self._taken = int(state["taken"])
        self._ahead, self._before = [], None
        if not state["open"] and state["state"] is None:
            self._iterator = None
            return
        iterator = iter(self._data)
        (iterator if hasattr(iterator, "set_state") else self._data).set_state(state["state"])
        self._iterator = iterator if state["open"] else None

    def _where(self) -> dict[str, Any]:
        if self._iterator is None:
            has_own = hasattr(self._data, "get_state")
            return {"open": False, "state": self._data.get_state() if has_own else None}
        holder = self._iterator if hasattr(self._iterator, "get_state") else self._data
        return {"open": True, "state": holder.get_state()}

    def _draw(self) -> Any:
        with draws.drawing((*self._names, self._taken + len(self._ahead))):
            if self._iterator is None:
                self._iterator = iter(self._data)
            batch = self._convert(next(self._iterator))
        if self._first is None:
            self._first = batch
        return batch
