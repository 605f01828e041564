"""Data of any kind that Keras takes, as a source of batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from xptrain.data.generators import GeneratorSource
from xptrain.data.indexed import IndexedSource
from xptrain.data.loaders import LoaderSource, is_torch_loader
from xptrain.data.passes import Passes
from xptrain.data.source import Source
from xptrain.data.stateful import StateDicts, Stateful, has_state_dict
from xptrain.data.streams import FactorySource, StatefulSource
from xptrain.training.keras_backend import arrays
from xptrain.training.keras_backend.batches import Batches, digest_batch, is_indexed
from xptrain.training.keras_backend.checks import capped

_REMEDY = "give a function f(epoch, batch) that returns its batches from there on"
_REMEDIES = {
    "tensorflow.": "give a function f(epoch, batch) that calls tf.random.set_seed(epoch) and returns the "
    "dataset after .skip(batch)",
    "grain.": "give xptrain_grain.source(data)",
}


def source_of(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    steps_per_execution: int = 1,
    shuffle: Any = False,
    class_weight: dict[int, float] | None = None,
    seed: int = 0,
    first_epoch: int = 0,
    role: str = "train",
) -> Source:
    """Return the source for what was given to `fit`, `evaluate` or `predict`.

    Args:
        x: Arrays, a `PyDataset`, a generator, a function `f(epoch, batch)` that returns one, an iterator with
            `get_state` and `set_state`, a PyTorch `DataLoader`, or another dataset that Keras takes.
        y: Targets, for arrays.
        sample_weight: Weights, for arrays.
        batch_size: Samples per step, for arrays.
        steps: Batches in an epoch; None for one pass.
        steps_per_execution: Batches in a chunk. As in Keras, `steps` that do not divide into chunks end with
            a whole one; where the data end a chunk is short.
        shuffle: As in `fit`.
        class_weight: Weight by class index.
        seed: Seed of the order, and of random numbers that loading draws.
        first_epoch: The epoch in which the first pass begins.
        role: "train" or "validation"; each pass of validation begins at the first batch.

    Raises:
        ValueError: From Keras, if the data are of no kind that it takes.
    """
    steps = capped("max_steps_per_epoch", steps)
    if steps is not None:
        steps = math.ceil(steps / steps_per_execution) * steps_per_execution
    restarts = role != "train"
    if arrays.are_arrays((x, y, sample_weight)):
        return arrays.array_source(
            *(x, y, sample_weight),
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=shuffle,
            class_weight=class_weight,
            seed=seed,
            first_epoch=first_epoch,
            restarts=restarts,
        )
    batches = Batches(class_weight)
    if is_indexed(x):
        _check_alone("PyDataset", y, sample_weight)
        length = x.num_batches
        return IndexedSource(
            x,
            batches.convert,
            Passes(length, steps, first_epoch, restarts),
            length,
            shuffle=bool(shuffle),
            seed=seed,
            first_epoch=first_epoch,
            role=role,
        )
    if isinstance(x, GeneratorType):
        _check_alone("generator", y, sample_weight, class_weight)
        return GeneratorSource(x, batches.convert_tuple, digest_batch, steps=steps, seed=seed, role=role)
    if isinstance(x, Stateful) and hasattr(x, "__iter__"):
        _check_alone("Stateful iterator", y, sample_weight)
        return StatefulSource(x, batches.convert, steps=steps, seed=seed, role=role)
    if is_torch_loader(x):
        _check_alone("torch DataLoader", y, sample_weight, class_weight)
        return LoaderSource(
            x,
            batches.convert_tensors,
            digest_batch,
            steps=steps,
            seed=seed,
            first_epoch=first_epoch,
            role=role,
        )
    if has_state_dict(x):
        _check_alone("loader with a state_dict", y, sample_weight, class_weight)
        return StatefulSource(StateDicts(x), batches.convert_tensors, steps=steps, seed=seed, role=role)
    if callable(x) and not hasattr(x, "__iter__") and not hasattr(x, "__getitem__"):
        _check_alone("function", y, sample_weight)
        return FactorySource(x, batches.convert, steps=steps, seed=seed, role=role, first_epoch=first_epoch)
    return _of_keras(x, y, sample_weight, batch_size, steps, shuffle, class_weight)


def _check_alone(kind: str, y: Any, sample_weight: Any, class_weight: Any = None) -> None:
    from keras.src.trainers import data_adapters

    for value, name, what in (
        (y, "y", "the targets"),
        (sample_weight, "sample_weights", "the sample weights"),
    ):
        if value is not None:
            data_adapters.raise_unsupported_arg(name, what, kind)
    if class_weight is not None:
        raise ValueError(
            f"Argument `class_weight` is not supported for Python {kind} inputs. "
            f"Received: class_weight={class_weight}"
        )


def _of_keras(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None, shuffle: Any, weights: Any
) -> StreamSource:
    from keras.src.trainers.epoch_iterator import EpochIterator

    class KerasBatches(EpochIterator):  # type: ignore[misc]
        """As Keras's own for JAX, without what puts batches on devices: the loop does that."""

        def _get_iterator(self) -> Any:
            return self.data_adapter.get_jax_iterator()

        def __next__(self) -> Any:
            return next(self._epoch_iterator)

    return StreamSource(KerasBatches(x, y, sample_weight, batch_size, steps, shuffle, weights), type(x))


class StreamSource(Source):
    """Batches that come in an order of their own: from a dataset, a loader or a generator.

    Args:
        batches: Keras's iterator over epochs, one batch at a time.
        kind: The class of what yields them.
    """

    def __init__(self, batches: Any, kind: type) -> None:
        self._batches = batches
        self._kind = kind
        self._first: Any = None

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""
        return self._batches.num_batches  # type: ignore[no-any-return]

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches one epoch has, as far as that is known."""
        return self.num_batches

    def first(self) -> Any:
        """Return the first batch; before the first epoch it is drawn, and drawn again in the epoch."""
        if self._first is None:
            for _, _, iterator in self._batches:
                self._first = next(iterator)
                break
            self._batches.reset()
        return self._first

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on; those before it are drawn and dropped."""
        number = 0
        # Data that end early are Keras's to warn of; it also starts a new pass then.
        with self._batches.catch_stop_iteration():
            for _, _, iterator in self._batches:
                batch = next(iterator)
                if self._first is None:
                    self._first = batch
                number += 1
                if number > start:
                    yield batch

    def describe(self) -> dict[str, Any]:
        """Return what is known of the batches, as JSON data."""
        return {"kind": f"{self._kind.__module__}.{self._kind.__qualname__}", "num_batches": self.num_batches}

    @property
    def uncaptured(self) -> list[str]:
        """What decides the batches and is in no checkpoint."""
        kind = self._kind.__module__
        remedy = next((text for name, text in _REMEDIES.items() if kind.startswith(name)), _REMEDY)
        return [
            f"the order of the batches of a {self._kind.__qualname__}, which no checkpoint knows ({remedy})"
        ]
