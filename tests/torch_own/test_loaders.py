"""The resume law for PyTorch's loaders, and what is said where it cannot hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

import xptrain
from tests.examples import X, Y, dropout_model, small
from tests.laws.processes import Lab, final_state, was_killed
from xptrain.data import draws
from xptrain.errors import ChangedError, InexactError
from xptrain.testing import assert_resume_exact
from xptrain.training.keras_backend.sources import source_of

# Workers are forked from a process in which JAX has threads; they never call JAX.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


class Items(Dataset[Any]):
    """Augments with every kind of generator that a dataset may draw from."""

    def __init__(self, size: int = len(X)) -> None:
        self.size = size
        self.rng = np.random.default_rng()
        self.own = torch.Generator()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(4) + torch.randn(4, generator=self.own) + random.random()
        noise = noise.numpy() + np.random.normal(size=4) + self.rng.normal(size=4)
        return X[index] + noise.astype("float32") * 0.1, Y[index]


class Noisy(Dataset[Any]):
    """As `Items`, without a generator of PyTorch: PyTorch cannot send one to a process that it spawns."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(4) + random.random() + self.rng.normal() + np.random.normal()
        return X[index] + noise.numpy(), Y[index]


class ByEpoch(Sampler[int]):
    """Its order follows from the epoch that it is told (as DistributedSampler's does)."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return len(X)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(len(X)).tolist())


class Shuffling(Sampler[int]):
    """Shuffles what it shuffled before: its order is in no checkpoint."""

    def __init__(self) -> None:
        self.order = list(range(len(X)))

    def __len__(self) -> int:
        return len(X)

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        return iter(self.order)


class Stream(IterableDataset[Any]):
    """Has no length that the loader knows."""

    def __iter__(self) -> Iterator[Any]:
        for index in torch.randperm(len(X)).tolist():
            yield X[index] + np.float32(np.random.normal()), Y[index]


class Nodes:
    """A loader with a `state_dict` that is no `DataLoader`."""

    def __init__(self) -> None:
        self.next = torch.tensor(0)

    def __iter__(self) -> Iterator[Any]:
        while self.next < 12:
            at = int(self.next)
            self.next += 4
            yield torch.tensor(X[at : at + 4]), torch.tensor(Y[at : at + 4])
        self.next = torch.tensor(0)

    def state_dict(self) -> Any:
        return {"next": self.next.clone(), "more": [1, "a"]}

    def load_state_dict(self, state: Any) -> None:
        assert state["more"] == [1, "a"]
        self.next = state["next"].clone()


def loader(dataset: Any = None, **settings: Any) -> Any:
    return DataLoader(Items() if dataset is None else dataset, **{"batch_size": 8, **settings})


LOADERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"x": loader()},
    "shuffled": lambda: {"x": loader(shuffle=True)},
    "shuffled, a generator": lambda: {"x": loader(shuffle=True, generator=torch.Generator())},
    "by epoch": lambda: {"x": loader(sampler=ByEpoch())},
    "shuffled, 2 workers": lambda: {"x": loader(shuffle=True, num_workers=2)},
    "by epoch, 2 workers, case 17": lambda: {"x": loader(sampler=ByEpoch(), num_workers=2)},
    "parts of passes": lambda: {"x": loader(shuffle=True), "steps_per_epoch": 3, "epochs": 3},
    "stream": lambda: {"x": loader(Stream())},
    "stream, parts of passes, a worker": lambda: {
        "x": loader(Stream(), num_workers=1),
        "steps_per_epoch": 3,
        "epochs": 3,
    },
    "to validate with": lambda: {"x": X, "y": Y, "batch_size": 8, "validation_data": loader(shuffle=True)},
    "a state_dict": lambda: {"x": Nodes()},
    "torchdata's": lambda: {"x": StatefulDataLoader(Items(), batch_size=8, shuffle=True)},
    "torchdata's, a worker": lambda: {
        "x": StatefulDataLoader(Items(), batch_size=8, shuffle=True, num_workers=1)
    },
}


@pytest.mark.parametrize("name", LOADERS)
def test_every_cut_of_every_loader(name: str) -> None:
    assert assert_resume_exact(dropout_model, lambda: {"epochs": 2, **LOADERS[name]()}) >= 6


def test_exact_ones_are_graded_so() -> None:
    for name, make in LOADERS.items():
        given = make()
        source = source_of(given["validation_data"] if "to validate" in name else given["x"])
        assert list(source.epoch(0, 0))
        assert not source.uncaptured, name


def batches_of(data: Any, epoch: int, start: int = 0, **settings: Any) -> list[Any]:
    return [batch[0].tolist() for batch in source_of(data, **settings).epoch(0, epoch, start)]


def test_epochs_seeds_and_roles_have_orders_of_their_own() -> None:
    def of(epoch: int, **settings: Any) -> Any:
        return batches_of(loader(shuffle=True), epoch, **settings)

    assert of(0) == of(0)
    assert of(0)[2:] == batches_of(loader(shuffle=True), 0, 2)
    assert of(1) != of(0) != of(0, seed=1)
    assert of(0, role="validation") != of(0)


def test_workers_that_are_spawned_yield_what_forked_ones_do() -> None:
    spawned = loader(Noisy(), shuffle=True, num_workers=1, multiprocessing_context="spawn")
    assert batches_of(spawned, 1, 2) == batches_of(loader(Noisy(), shuffle=True, num_workers=1), 1, 2)


def test_loading_moves_no_generator_that_others_use() -> None:
    model = small()
    before = draws.globals_now(), torch.get_rng_state().tolist()
    xptrain.Trainer(model, seed=0).fit(loader(shuffle=True), epochs=1, verbose=0)
    assert (draws.globals_now(), torch.get_rng_state().tolist()) == before


def test_an_unbuilt_model_of_a_loader() -> None:
    def make() -> Any:
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    assert assert_resume_exact(make, lambda: {"x": loader(shuffle=True), "epochs": 2}, cuts=[2, 5, 7]) == 3


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: loader(num_workers=1, persistent_workers=True), "persistent_workers"),
        (lambda: loader(num_workers=2, in_order=False), "in_order"),
        (lambda: loader(Stream(), num_workers=2), "IterableDataset"),
        (lambda: loader(sampler=Shuffling()), "Shuffling.order, which iterating or a callback changes"),
    ],
)
def test_what_cannot_be_exact_says_why(make: Callable[[], Any], reason: str) -> None:
    source = source_of(make())
    next(source.epoch(0, 0))
    assert len(source.uncaptured) == 1
    assert reason in source.uncaptured[0]


class Counting(Items):
    """Its items depend on how often they were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = np.zeros(len(self))
        self.seen: list[int] = []
        self.unread: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.counts[index] += 1
        self.seen.append(index)
        self.unread.append(index)
        x, y = super().__getitem__(index)
        return x * float(self.counts[index]) * len(self.seen), y


def test_whatever_iterating_changes_in_a_dataset_is_named() -> None:
    source = source_of(loader(Counting()))
    list(source.epoch(0, 0))
    named = sorted(text.partition(",")[0] for text in source.uncaptured)
    assert named == ["Counting.counts", "Counting.seen"]


def test_what_is_told_the_number_of_a_pass_may_be_held_by_a_callback() -> None:
    class ByEpoch(Shuffling):
        def set_epoch(self, epoch: int) -> None:
            self.order = list(np.random.default_rng(epoch).permutation(len(X)))

        def __iter__(self) -> Any:
            return iter(self.order)

    def args() -> dict[str, Any]:
        sampler = ByEpoch()

        class Local(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                logs["first"] = float(sampler.order[0])

        return {"x": loader(sampler=sampler), "epochs": 3, "callbacks": [Local()]}

    assert assert_resume_exact(small, args, cuts=[3, 5, 7]) == 3


def test_a_loader_that_yields_other_batches_is_refused() -> None:
    source = source_of(loader())
    with pytest.raises(InexactError, match="other batches"):
        source.set_state({"pass": 0, "used": 2, "last": "0" * 64})
    with pytest.raises(InexactError, match="its end after 5 batches"):
        source.set_state({"pass": 0, "used": 7, "last": "0" * 64})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"num_workers": 1}, {"workers"}),
        ({"batch_size": 7}, {"batch_size", "length", "num_batches"}),
        ({"size": 36}, {"num_samples"}),
        ({"size": 32}, {"num_samples", "length", "num_batches"}),
        ({"shuffle": True}, {"sampler"}),
    ],
)
def test_a_changed_loader_says_so(changed: dict[str, Any], named: set[str]) -> None:
    def described(size: int = len(X), **settings: Any) -> dict[str, Any]:
        return source_of(loader(Items(size), **settings)).describe()

    before, after = described(), described(**changed)
    assert {name for name in before if before[name] != after[name]} == named


def test_a_loader_of_another_length_trains_nothing() -> None:
    with xptrain.run("loaders", key="k", seed=0) as run:
        run.fit(small(), loader(), epochs=1, verbose=0)
        assert "approximate" not in str(run.grade)
    model = small()
    with (
        pytest.raises(ChangedError, match="data order: length") as refused,
        xptrain.run("loaders", resume="k", seed=0, allow="epochs") as run,
    ):
        run.fit(model, loader(Items(32)), epochs=2, verbose=0)
    assert refused.value.remedy
    assert int(model.optimizer.iterations) == 0


@pytest.mark.timeout(900)
def test_killed_with_its_workers_and_resumed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    options = ("--data", "torch", "--policy", "steps", "--epochs", "3")
    straight = lab.train("straight", *options)
    assert straight.returncode == 0, straight.stderr
    for attempt, nth in enumerate((14, 8)):
        killed = lab.train("killed", *options, die={"phase": "batch", "nth": nth}, resume=attempt > 0)
        assert was_killed(killed), killed.stderr
        lab.wait_for_status("killed", "KILLED")
    last = lab.train("killed", *options, resume=True)
    assert last.returncode == 0, last.stderr
    assert final_state(lab.folder("killed")) == final_state(lab.folder("straight"))
    assert lab.result("killed") == lab.result("straight")
    assert lab.steps("killed")[3][0] > 1
    lab.wait_for_status("killed", "FINISHED")
    assert lab.tags("killed")["xptrain.grade"] == "exact: not covered by the digest: x"
