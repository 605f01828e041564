"""The resume law for every way to feed batches, and what is said where it cannot hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import keras
import numpy as np
import pytest

import xptrain
from tests.examples import X, Y, dropout_model, small
from tests.laws.processes import Lab, final_state, was_killed
from tests.laws.table import told
from xptrain.data import draws
from xptrain.data.workers import Loader
from xptrain.errors import InexactError, UsageError
from xptrain.provenance.grade import assess
from xptrain.testing import assert_resume_exact
from xptrain.training.keras_backend.sources import source_of


class Items(keras.utils.PyDataset):
    """Augments with the global generators and one of its own, and shuffles itself after each epoch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.order = np.arange(len(X))
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * 8 : (index + 1) * 8]
        noise = np.random.normal(size=(8, 4)) + self.rng.normal(size=(8, 4)) + random.random()
        return X[chosen] + noise.astype("float32") * 0.1, Y[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class Endless(Items):
    """Has no length."""

    def __len__(self) -> Any:
        raise NotImplementedError

    @property
    def num_batches(self) -> None:
        return None

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % 5)


class Tail(keras.utils.PyDataset):
    """Without random numbers: may be loaded by threads."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"inputs": X[index * 8 : (index + 1) * 8]}["inputs"], Y[index * 8 : (index + 1) * 8]


def endless() -> Iterator[Any]:
    own = np.random.default_rng(3)
    buffer = np.zeros_like(X[:8])
    while True:
        chosen = own.permutation(len(X))[:8]
        # One buffer for all batches: those before must not change.
        buffer[:] = X[chosen] + np.random.random()
        yield buffer, Y[chosen]


def factory(epoch: int, batch: int) -> Iterator[Any]:
    for number in range(batch, 6):
        chosen = np.random.default_rng((epoch, number)).permutation(len(X))[:8]
        yield X[chosen] + np.random.random(), Y[chosen]


class Position:
    """An iterator that says where it is: 12 samples, batches of 2."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> Any:
        if self.next >= 12:
            self.next = 0
            raise StopIteration
        self.next += 2
        return X[self.next - 2 : self.next], Y[self.next - 2 : self.next]

    def get_state(self) -> Any:
        return {"next": self.next}

    def set_state(self, state: Any) -> None:
        self.next = state["next"]


class Loadable:
    """Makes iterators that say where they are."""

    def __iter__(self) -> Position:
        return Position()

    def get_state(self) -> None:
        return None

    def set_state(self, state: Any) -> None:
        raise AssertionError("the iterator has the state")


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "dataset": lambda: {"x": Items()},
    "dataset, one worker": lambda: {"x": Items(workers=1)},
    "dataset, threads": lambda: {"x": Tail(workers=3)},
    "dataset, processes": lambda: {"x": Items(workers=2, use_multiprocessing=True)},
    "dataset, parts of passes": lambda: {"x": Items(), "steps_per_epoch": 3, "shuffle": True},
    "dataset, endless": lambda: {"x": Endless(), "steps_per_epoch": 4},
    "dataset, chunks": lambda: {"x": Items(), "steps_per_epoch": 4},
    "dataset to validate with": lambda: {"x": X, "y": Y, "batch_size": 8, "validation_data": Items()},
    "generator, case 18": lambda: {"x": endless(), "steps_per_epoch": 5},
    "generator to validate with": lambda: {
        "x": endless(),
        "steps_per_epoch": 4,
        "validation_data": endless(),
        "validation_steps": 2,
    },
    "function": lambda: {"x": factory},
    "function with steps": lambda: {"x": factory, "steps_per_epoch": 4},
    "stateful, case 16": lambda: {"x": Position()},
    "stateful, parts of passes": lambda: {"x": Position(), "steps_per_epoch": 4},
    "maker of stateful iterators": lambda: {"x": Loadable()},
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_cut_of_every_source(source: str) -> None:
    def make() -> Any:
        model = dropout_model()
        model.steps_per_execution = 2 if "chunks" in source else 1
        return model

    reasons: list[str] = []
    assert assert_resume_exact(make, lambda: {**SOURCES[source](), "epochs": 3}, uncaptured=reasons) >= 5
    told("Sources", source, assess(not_captured=reasons).name)


def test_an_unbuilt_model_of_a_dataset() -> None:
    def make() -> Any:
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    assert assert_resume_exact(make, lambda: {"x": Items(), "epochs": 2}, cuts=[2, 5, 7]) == 3


def test_augmentation_depends_on_no_number_of_workers() -> None:
    def trained(**settings: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = small()
        return xptrain.Trainer(model, seed=4).fit(Items(**settings), epochs=2, verbose=0).history

    serial = trained()
    assert trained(workers=1, use_multiprocessing=True) == serial
    assert trained(workers=3, use_multiprocessing=True) == serial


def test_loading_moves_no_generator_that_others_use() -> None:
    model = small()
    before = draws.globals_now()
    xptrain.Trainer(model, seed=0).fit(Items(), epochs=1, verbose=0)
    assert draws.globals_now() == before


def test_no_item_is_read_before_on_epoch_begin_has_returned() -> None:
    events: list[str] = []

    class Watched(Items):
        def __getitem__(self, index: int) -> Any:
            events.append("item")
            return super().__getitem__(index)

        def on_epoch_begin(self) -> None:
            events.append("begin")

        def on_epoch_end(self) -> None:
            events.append("end")

    xptrain.Trainer(small(), seed=0).fit(Watched(workers=2), epochs=2, verbose=0)
    assert [event for event, _ in groupby(events)] == ["begin", "item", "end"] * 2


def test_threads_that_draw_random_numbers_are_seen() -> None:
    loader = Loader(Items(workers=2))
    assert len(list(loader.load([(i, (0,)) for i in range(5)]))) == 5
    assert list(loader.seen) == ["random numbers drawn by loader threads"]
    quiet = Loader(Tail(workers=2))
    list(quiet.load([(i, (0,)) for i in range(5)]))
    assert not quiet.seen


@pytest.mark.parametrize("settings", [{}, {"workers": 1, "use_multiprocessing": True}])
def test_an_attribute_that_loading_changes_is_seen(settings: dict[str, Any]) -> None:
    class Counting(Items):
        calls = 0

        def __getitem__(self, index: int) -> Any:
            self.calls += 1
            return super().__getitem__(index)

    source = source_of(Counting(**settings))
    source.begin(0)
    list(source.epoch(0, 0))
    source.get_state()
    assert len(source.uncaptured) == 1
    assert "Counting.calls (loading or a callback changes it;" in source.uncaptured[0]


def test_a_generator_that_yields_other_batches_is_refused() -> None:
    state = {"taken": 2, "last": "0" * 64}
    source = xptrain.Trainer(small(), seed=0)
    with pytest.raises(InexactError, match="other batches"):
        source_of(endless(), steps=3).set_state(state)
    used = endless()
    source.fit(used, steps_per_epoch=4, epochs=1, verbose=0)
    with pytest.raises(UsageError, match="cannot go back"):
        source_of(used, steps=3).set_state(state)
    with pytest.raises(InexactError, match="its end after 1 batches"):
        source_of((b for b in [(X[:2], Y[:2])]), steps=3).set_state(state)


def test_a_generator_that_is_used_up_names_the_missing_setting_case_18() -> None:
    def finite() -> Iterator[Any]:
        for _ in range(3):
            yield X[:8], Y[:8]

    history = xptrain.Trainer(small(), seed=0).fit(finite(), epochs=1, verbose=0)
    assert len(history.history["loss"]) == 1
    model = small()
    with pytest.warns(UserWarning, match="steps_per_epoch"):
        short = xptrain.Trainer(model, seed=0).fit(finite(), epochs=2, verbose=0)
    assert len(short.history["loss"]) == 1
    assert int(model.optimizer.iterations) == 3
    with pytest.raises(UsageError, match="steps_per_epoch"):
        xptrain.Trainer(model, seed=0).fit(finite(), steps_per_epoch=3, epochs=2, verbose=0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("sources"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("data", ["processes", "generator"])
def test_killed_with_its_loader_and_resumed(lab: Lab, data: str) -> None:
    options = ("--data", data, "--policy", "steps", "--epochs", "4")
    straight = lab.train(f"{data}-straight", *options)
    assert straight.returncode == 0, straight.stderr
    for attempt, nth in enumerate((14, 8)):
        killed = lab.train(data, *options, die={"phase": "batch", "nth": nth}, resume=attempt > 0)
        assert was_killed(killed), killed.stderr
        lab.wait_for_status(data, "KILLED")
    last = lab.train(data, *options, resume=True)
    assert last.returncode == 0, last.stderr
    assert final_state(lab.folder(data)) == final_state(lab.folder(f"{data}-straight"))
    assert lab.result(data) == lab.result(f"{data}-straight")
    assert lab.steps(data)[3][-1] == 40
    assert lab.steps(data)[3][0] > 1
    lab.wait_for_status(data, "FINISHED")
    # What a dataset holds is in no digest; the grade says so.
    assert lab.tags(data)["xptrain.grade"] == "exact: not covered by the digest: x"
