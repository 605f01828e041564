"""A dataset whose batches have numbers (`keras.utils.PyDataset`), as a source of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from xptrain.data.changes import Changes
from xptrain.data.draws import Held
from xptrain.data.order import permutation
from xptrain.data.passes import Passes
from xptrain.data.source import Source, other_batches
from xptrain.data.stateful import Stateful
from xptrain.data.workers import Item, Loader

_HOOKS = ("on_epoch_begin", "on_epoch_end")


class IndexedSource(Source):
    """Batches by number; their order and random numbers follow from (seed, fit, epoch, batch).

    The dataset's own `on_epoch_begin` and `on_epoch_end` are called in the order of a run that is never
    stopped, each with random numbers of its own; a resumed run calls those of the epochs before again. No
    item is read before the `on_epoch_begin` of its epoch has returned.

    Items should depend on nothing else. A dataset that is read by the loop itself may have `get_state` and
    `set_state`; what changes in any other one, but for its hooks, is seen and told.

    Args:
        dataset: Has `__getitem__`; `on_epoch_begin`, `on_epoch_end` and the settings of workers if it likes.
        convert: Turns an item into what the train step gets; the result shares no memory with the item.
        passes: Which batches an epoch has.
        length: Batches in one pass; None for no end.
        shuffle: Whether to permute the batches in each pass.
        seed: The run's seed.
        first_epoch: The epoch in which the fit begins.
        role: "train" or "validation": each has random numbers of its own.
    """

    def __init__(
        self,
        dataset: Any,
        convert: Callable[[Any], Any],
        passes: Passes,
        length: int | None,
        *,
        shuffle: bool,
        seed: int,
        first_epoch: int = 0,
        role: str = "train",
    ) -> None:
        self._dataset = dataset
        self._convert = convert
        self._passes = passes
        self._length = length
        self._shuffle = bool(shuffle) and length is not None
        self._seed = seed
        self._first_epoch = first_epoch
        self._role = role
        self._loader = Loader(dataset)
        self._has_hooks = any(map(self._has_own, _HOOKS))
        self._speaks = isinstance(dataset, Stateful) and self._loader.is_serial
        self._changes: Changes | None = None
        self._of_hooks = ""
        self._fit = 0
        self._calls = 0
        self._first: Any = None

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, at most."""
        return self._passes.num_batches

    @property
    def uncaptured(self) -> list[str]:
        """What was seen to decide the batches and is in no checkpoint."""
        return list(self._loader.seen)

    @property
    def watches(self) -> Sequence[Any]:
        """The dataset, whose own hooks may change it."""
        return (self._dataset,)

    def begin(self, fit: int) -> None:
        """Begin a fit: its number is part of every order."""
        self._fit = fit
        if not self._speaks:
            self._changes = Changes(
                self._dataset, lambda value: self._loader.held.has(value), can_speak=self._loader.is_serial
            )

    def first(self) -> Any:
        """Return the first batch of the fit, to build the model with."""
        if self._first is None:
            self._call_hooks(max(1, self._calls))
            names = (self._seed, self._fit, self._role, self._first_epoch, 0)
            index = next(iter(self._indices(self._fit, self._first_epoch, 0)))
            # It is loaded once more when its turn comes.
            state = self._dataset.get_state() if self._speaks else None
            with Held(self._dataset).drawing(names):
                self._first = self._convert(self._dataset[index])
            if self._speaks:
                self._dataset.set_state(state)
        return self._first

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has."""
        return self._passes.batches_in(epoch)

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on; those before it are not loaded."""
        self._fit = fit
        calls = 2 * (epoch - self._first_epoch)
        self._call_hooks(calls + 1)
        for item in self._loader.load(self._items(fit, epoch, start)):
            yield self._convert(item)
        self._call_hooks(calls + 2)

    def describe(self) -> dict[str, Any]:
        """Return what decides the batches, as JSON data."""
        kind = type(self._dataset)
        return {
            "kind": f"{kind.__module__}.{kind.__qualname__}",
            "length": self._length,
            "shuffle": self._shuffle,
            "num_batches": self.num_batches,
        }

    def get_state(self) -> dict[str, Any]:
        """Return which of the dataset's epoch hooks were called, what they did, and its own state."""
        self._note_changes()
        own = {"own": self._dataset.get_state()} if self._speaks else {}
        return {"calls": self._calls, "hooks": self._of_hooks, **own}

    def set_state(self, state: Any) -> None:
        """Call the dataset's epoch hooks up to where they were, and give it its own state back.

        Raises:
            InexactError: They made something else of the dataset than before.
        """
        self._call_hooks(int(state["calls"]))
        known = state.get("hooks", self._of_hooks)
        if known != self._of_hooks and not self._loader.seen:
            raise other_batches(
                "PyDataset",
                f"digest {self._of_hooks[:16] or 'of nothing'} of what its epoch hooks changed",
                f"digest {known[:16] or 'of nothing'}",
                "let on_epoch_begin and on_epoch_end depend on the dataset and random numbers only: not on "
                "the model, the clock or files",
            )
        if self._speaks and "own" in state:
            self._dataset.set_state(state["own"])

    def _note_changes(self) -> None:
        if self._changes is not None:
            self._loader.seen.update(dict.fromkeys(self._changes.seen()))

    def _call_hooks(self, until: int) -> None:
        if self._calls >= until or not self._has_hooks:
            self._calls = max(self._calls, until)
            return
        self._note_changes()
        while self._calls < until:
            epoch, is_end = divmod(self._calls, 2)
            hook = _HOOKS[is_end]
            names = (self._seed, self._fit, self._role, hook, epoch)
            # The hook before may have made new generators.
            with Held(self._dataset).drawing(names):
                getattr(self._dataset, hook, _nothing)()
            self._calls += 1
        self._loader.held = Held(self._dataset)
        if self._changes is not None:
            self._changes.look()
            self._of_hooks = self._changes.since_begin()

    def _has_own(self, hook: str) -> bool:
        return not getattr(getattr(self._dataset, hook, None), "__module__", "keras.").startswith("keras.")

    def _items(self, fit: int, epoch: int, start: int) -> Iterator[Item]:
        for batch, index in enumerate(self._indices(fit, epoch, start), start):
            yield index, (self._seed, fit, self._role, epoch, batch)

    def _indices(self, fit: int, epoch: int, start: int) -> Iterator[int]:
        number, offset = self._passes.place(epoch)
        size = self.batches_in(epoch)
        if size is None:
            yield from count(offset + start)
            return
        positions = range(offset + start, offset + size)
        if not self._shuffle:
            yield from positions
            return
        assert self._length is not None
        order = permutation(self._length, self._seed, fit, number)
        yield from (int(order[position]) for position in positions)


def _nothing() -> None:
    """Stand in for a hook that a dataset does not have."""
