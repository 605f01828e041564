"""PyTorch's DataLoader as a source: each pass begins from a seed of its own and is gone through in order.

What its workers draw depends on which of them got which batches before. A resumed run therefore goes through
the pass from its beginning and drops the batches that were trained, instead of beginning in the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xptrain.data import draws
from xptrain.data.draws import Held
from xptrain.data.passes import Passes
from xptrain.data.source import Convert, Digest, Source, other_batches
from xptrain.errors import InexactError
from xptrain.state.python.reach import Watch


class LoaderSource(Source):
    """Batches of a `torch.utils.data.DataLoader`; passes are a function of (seed, fit, number of the pass).

    Args:
        loader: The loader.
        convert: Turns a batch into what the train step gets; the result shares no memory with the batch.
        digest: Returns the digest of a converted batch.
        steps: Batches in an epoch; None for one pass.
        seed: The run's seed.
        first_epoch: The epoch in which the fit begins.
        role: "train" or "validation": each has random numbers of its own.
    """

    def __init__(
        self,
        loader: Any,
        convert: Convert,
        digest: Digest,
        *,
        steps: int | None,
        seed: int,
        first_epoch: int = 0,
        role: str = "train",
    ) -> None:
        self._loader = loader
        self._convert = convert
        self._digest = digest
        self._steps = steps
        self._seed = seed
        self._role = role
        self._is_stream = _is_stream(loader.dataset)
        self._length = None if self._is_stream else len(loader)
        self._passes = Passes(self._length, steps, first_epoch, role != "train")
        self._held = Held(loader)
        self._fit = 0
        self._first: Any = None
        # Where the next batch stands: the number of the pass, and how many of its batches were used.
        self._place = (self._passes.place(first_epoch)[0], 0)
        self._iterator: Any = None
        self._last: Any = None
        self._watch = _watch(loader, lambda value: self._held.has(value))
        self._seen = dict.fromkeys(_hazards(loader, self._is_stream))
        self._ended_at: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Batches in one epoch, or None when that is not known before its end."""
        return self._passes.num_batches or self._ended_at

    @property
    def uncaptured(self) -> list[str]:
        """What decides the batches and is in no checkpoint."""
        return list(self._seen)

    @property
    def watches(self) -> Sequence[Any]:
        """The loader and its parts: samplers and datasets are told the number of each pass."""
        return (self._loader, self._loader.dataset, *_samplers(self._loader))

    def begin(self, fit: int) -> None:
        """Begin a fit: its number is part of every seed."""
        self._fit = fit

    def first(self) -> Any:
        """Return the first batch of a pass, to build the model with; to train, it is loaded again."""
        if self._first is None:
            with draws.drawing(self._names(self._place[0], "open")):
                self._held.seed(self._names(self._place[0], "held"))
                self._held.seed_keras(self._names(self._place[0], "held"))
                self._first = self._convert(next(iter(self._loader)))
        return self._first

    def batches_in(self, epoch: int) -> int | None:
        """Return how many batches an epoch has, or None when that is not known before its end."""
        return self._passes.batches_in(epoch)

    def epoch(self, fit: int, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from number `start` on."""
        self._fit = fit
        self._go_to(epoch, start)
        size = self.batches_in(epoch)
        number, began_anew = start, self._place[1] == 0
        while size is None or number < size:
            batch = self._draw()
            if batch is None:
                # As Keras does with a dataset: the next pass begins within the epoch that needs it.
                if size is None or began_anew or self._length is not None:
                    break
                began_anew = True
                continue
            began_anew = False
            number += 1
            yield batch
        if self._place[1] and self._place[1] == self._length:
            # The loader lets its workers go when it is asked for one batch more.
            self._draw()
        if self._steps is None:
            self._ended_at = number

    def describe(self) -> dict[str, Any]:
        """Return what decides the batches, as JSON data."""
        loader = self._loader
        samplers = [_name(part) for part in _samplers(loader)]
        return {
            "kind": _name(loader),
            "dataset": _name(loader.dataset),
            "length": self._length,
            "num_samples": None if self._is_stream else len(loader.dataset),
            "batch_size": loader.batch_size,
            "sampler": samplers,
            "workers": loader.num_workers,
            "num_batches": self._passes.num_batches,
        }

    def get_state(self) -> dict[str, Any] | None:
        """Return the place, and the digest of the last batch that was used."""
        if self._role != "train":
            return None
        last = None if self._last is None else self._digest(self._last)
        return {"pass": self._place[0], "used": self._place[1], "last": last}

    def set_state(self, state: Any) -> None:
        """Go to a place, through the batches before it.

        Raises:
            InexactError: They are other batches than before.
        """
        self._seek(int(state["pass"]), int(state["used"]))
        if self._place[1] and state["last"] is not None and self._last is not None:
            found = self._digest(self._last)
            if found != state["last"]:
                raise _other(f"digest {found[:16]} of batch {self._place[1]}", f"digest {state['last'][:16]}")

    def _go_to(self, epoch: int, start: int) -> None:
        if self._length is None and self._steps is not None and self._role == "train":
            # Where a pass ends is not known: the place that was reached, or restored, is all there is.
            return
        number, offset = self._passes.place(epoch)
        if self._role != "train" or self._place != (number, offset + start):
            self._seek(number, offset + start)

    def _seek(self, number: int, used: int) -> None:
        self._iterator, self._last, self._place = None, None, (number, 0)
        for count in range(used):
            if self._draw() is None:
                raise _other(f"its end after {count} batches of the pass", f"{used} batches")

    def _draw(self) -> Any:
        """Return the next batch of the pass; None at its end, where the next pass begins."""
        number, used = self._place
        if self._iterator is None:
            self._open(number)
        with draws.drawing(self._names(number, used)):
            try:
                batch = self._convert(next(self._iterator))
            except StopIteration:
                self._close()
                self._place = number + 1, 0
                return None
        if self._first is None and not used:
            self._first = batch
        if not used:
            self._look()
        self._place, self._last = (number, used + 1), batch
        return batch

    def _open(self, number: int) -> None:
        self._look()
        for part in (*_samplers(self._loader), self._loader.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(number)
        # `set_epoch` may have made new generators.
        self._held = Held(self._loader)
        self._watch.look()
        with draws.drawing(self._names(number, "open")):
            self._held.seed(self._names(number, "held"))
            self._held.seed_keras(self._names(number, "held"))
            self._iterator = iter(self._loader)

    def _close(self) -> None:
        self._look()
        self._iterator = self._last = None

    def _look(self) -> None:
        for name, _, _ in self._watch.changes():
            self._seen[f"{name}, which iterating or a callback changes"] = None

    def _names(self, number: int, what: int | str) -> draws.Names:
        return self._seed, self._fit, self._role, "loader", number, what


def is_torch_loader(data: Any) -> bool:
    """Tell whether `data` is a `torch.utils.data.DataLoader`, without importing torch."""
    return any(
        kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.utils.data")
        for kind in type(data).__mro__
    )


def _is_stream(dataset: Any) -> bool:
    return any(
        kind.__name__ == "IterableDataset" and kind.__module__.startswith("torch.utils.data")
        for kind in type(dataset).__mro__
    )


def _hazards(loader: Any, is_stream: bool) -> Iterator[str]:
    if loader.num_workers and getattr(loader, "persistent_workers", False):
        yield "random numbers of persistent_workers=True, which go on over epochs (set it to False)"
    if loader.num_workers > 1 and not getattr(loader, "in_order", True):
        yield "the order of batches with in_order=False (set it to True)"
    if loader.num_workers > 1 and is_stream:
        yield (
            "the order in which several workers of an IterableDataset come to their ends "
            "(set num_workers to 0 or 1)"
        )


def _samplers(loader: Any) -> list[Any]:
    outer = getattr(loader, "batch_sampler", None)
    found = [getattr(loader, "sampler", None), outer, getattr(outer, "sampler", None)]
    return list({id(part): part for part in found if part is not None}.values())


def _watch(loader: Any, seeded: Callable[[Any], bool]) -> Watch:
    parts = [loader.dataset, *_samplers(loader)]
    roots: dict[str, Any] = {}
    for part in parts:
        name = type(part).__qualname__
        while name in roots:
            name += "'"
        roots[name] = part
    functions = {name: getattr(loader, name, None) for name in ("collate_fn", "worker_init_fn")}
    # Random generators are given a state for each pass.
    return Watch({**roots, **{n: f for n, f in functions.items() if f is not None}}, but=seeded)


def _name(value: Any) -> str | None:
    kind = type(value)
    return None if value is None else f"{kind.__module__}.{kind.__qualname__}"


def _other(found: str, expected: str) -> InexactError:
    remedy = (
        "let its dataset and sampler depend on nothing but the epoch (set_epoch), the index and "
        "random numbers of Python, NumPy or torch"
    )
    return other_batches("loader", found, expected, remedy)
