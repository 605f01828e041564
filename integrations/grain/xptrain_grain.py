"""Grain's loaders and datasets as data that xptrain resumes exactly.

    run.fit(model, xptrain_grain.source(dataset), epochs=10)

Only public names of xptrain are used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import grain
import numpy as np

import xptrain

__version__ = "0.1.0"
__all__ = ["GrainSource", "source"]
_ENDLESS = 2**62


def source(data: Any) -> GrainSource:
    """Return a loader or dataset of Grain as data for `run.fit`.

    Args:
        data: A `grain.DataLoader`, `grain.MapDataset` or `grain.IterDataset` that yields batches. An epoch is
            one pass; of endless data it is `steps_per_epoch` batches. A `MapDataset` is shuffled anew in each
            pass, as its own `repeat()` does; what a loader or an `IterDataset` yields is the same in each.

    Returns:
        An iterator over one pass after another, whose place is kept in checkpoints.

    Raises:
        xptrain.UsageError: `data` is nothing that Grain iterates over.

    Example:
        >>> dataset = grain.MapDataset.source(records).seed(0).shuffle().batch(32)  # doctest: +SKIP
        >>> run.fit(model, xptrain_grain.source(dataset), epochs=10)  # doctest: +SKIP
    """
    if not isinstance(data, grain.DataLoader | grain.MapDataset | grain.IterDataset):
        raise xptrain.UsageError(
            "this is no data of Grain that can be iterated over again",
            expected="a grain.DataLoader, grain.MapDataset or grain.IterDataset",
            found=type(data).__name__,
            remedy="give the dataset itself; one of its iterators can be given to run.fit as it is",
        )
    return GrainSource(data)


class GrainSource:
    """One pass over Grain's data after another; `xptrain.Stateful`.

    Args:
        data: The loader or dataset.
    """

    def __init__(self, data: Any) -> None:
        self._description = describe(data)
        self._data = data
        self._pass = 0
        self._iterator: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._begin()
        before = _globals()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._let_go()
            self._pass += 1
            raise
        if _globals() != before:
            raise xptrain.InexactError(
                "a transformation draws from the global generators of Python or NumPy",
                expected="random numbers that follow from Grain's seed",
                found="a global generator that moved while a batch was loaded",
                remedy="draw from the generator that grain.transforms.RandomMap hands over",
            )
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the place in the data, and what the data were."""
        state = None if self._iterator is None else self._iterator.get_state()
        return {"pipeline": self._description, "pass": self._pass, "iterator": state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a place in the same data.

        Raises:
            xptrain.ChangedError: Another sampler, seed, batch size, number of workers, or other data.
        """
        _compare(list(state["pipeline"]), self._description)
        self._let_go()
        self._pass = int(state["pass"])
        if state["iterator"] is not None:
            self._iterator = self._begin()
            self._iterator.set_state(state["iterator"])

    def _begin(self) -> Any:
        data = self._data
        # An endless dataset says that it has as many elements as a list can.
        if isinstance(data, grain.MapDataset) and len(data) < _ENDLESS:
            # A part of the repeated dataset, and no more: Grain loads far ahead.
            data = data.repeat()[self._pass * len(data) : (self._pass + 1) * len(data)]
        return iter(data)

    def _let_go(self) -> None:
        if hasattr(self._iterator, "close"):
            self._iterator.close()
        self._iterator = None


def describe(data: Any) -> list[str]:
    """Return what decides the batches of a loader or dataset, a line for each part of it."""
    if isinstance(data, grain.DataLoader):
        parts = {
            "workers": data.multiprocessing_options.num_workers,
            "sampler": data._sampler,
            "source": data._data_source,
            "shards": data._shard_options,
            "operations": list(data._operations),
        }
        size = len(data._data_source) if hasattr(data._data_source, "__len__") else None
        return [f"{name}: {_text(part)}" for name, part in parts.items()] + [f"records: {size}"]
    found: list[str] = []
    pending = [data]
    while pending:
        part = pending.pop()
        seeds = [getattr(part, name, None) for name in ("_seed_rng_seed", "_default_seed", "_seed")]
        numbers = [str(int(seed)) for seed in seeds if isinstance(seed, int | np.integer)]
        size = len(part) if isinstance(part, grain.MapDataset) else None
        found.append(f"{_text(part)} length={size} seeds={','.join(numbers)}")
        # Datasets for several worker processes are kept aside of the parents.
        pending += [*getattr(part, "parents", ()), *getattr(part, "_datasets", ())]
    return found


def _text(part: Any) -> str:
    """Return what Grain says of a part, without addresses and never longer than a line."""
    text = re.sub(r" at 0x[0-9a-f]+", "", str(part))
    return text if len(text) < 500 else f"{text[:500]}… ({len(text)} characters)"


def _compare(expected: list[str], found: list[str]) -> None:
    if expected == found:
        return
    missing = [line for line in expected if line not in found]
    new = [line for line in found if line not in expected]
    raise xptrain.ChangedError(
        "the data of Grain are not those of the checkpoint",
        expected="; ".join(missing) or f"{len(expected)} parts",
        found="; ".join(new) or f"{len(found)} parts",
        remedy="put the sampler, seed, transformations, sizes and worker count back as they were",
    )


def _globals() -> tuple[Any, ...]:
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["key"].tobytes(), numpy["pos"]
