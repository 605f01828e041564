"""The resume law where state hides: in what data draw with, in what hooks do, in views, sets and odd logs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, small
from xptrain.errors import InexactError
from xptrain.testing import assert_resume_exact

pytestmark = pytest.mark.usefixtures("no_keras_fit")

Callback = keras.callbacks.Callback


class Noisy(keras.utils.PyDataset):
    """Five batches; `noise` says what is added to each."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.epoch = 0
        self.rng: Any = np.random.default_rng(0)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        rows = slice(8 * index, 8 * index + 8)
        return X[rows] + self.noise(X[rows]), Y[rows]

    def noise(self, x: Any) -> Any:
        return self.rng.normal(size=x.shape).astype("float32")


class MadeInAHook(Noisy):
    def on_epoch_begin(self) -> None:
        self.rng = np.random.default_rng(self.epoch)

    def on_epoch_end(self) -> None:
        self.epoch += 1


def noise_of(x: Any, rng: Any) -> Any:
    return rng.normal(size=x.shape).astype("float32")


class OfAPartial(Noisy):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.noise = functools.partial(noise_of, rng=np.random.default_rng(3))  # type: ignore[method-assign]


class OfAClosure(Noisy):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        rng = np.random.default_rng(3)
        self.noise = lambda x: noise_of(x, rng)  # type: ignore[method-assign]


class Deep(Noisy):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rng = None
        self.deep = {"a": [{"b": [np.random.default_rng(3)]}]}

    def noise(self, x: Any) -> Any:
        return noise_of(x, self.deep["a"][0]["b"][0])


class OfTheClass(Noisy):
    shared = np.random.default_rng(3)

    def noise(self, x: Any) -> Any:
        return noise_of(x, self.shared)


class OfKeras(Noisy):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.augment = keras.Sequential([keras.layers.GaussianNoise(1.0, seed=3)])

    def noise(self, x: Any) -> Any:
        return np.asarray(self.augment(x, training=True)) - x


def by_a_layer() -> Any:
    layer = keras.layers.GaussianNoise(1.0, seed=3)

    def batches(epoch: int, batch: int) -> Any:
        for number in range(batch, 5):
            rows = slice(8 * number, 8 * number + 8)
            yield np.asarray(layer(X[rows], training=True)), Y[rows]

    return batches


def too_many(epoch: int, batch: int) -> Any:
    """More batches than an epoch asks for."""
    for number in range(batch, 10):
        yield X[number : number + 8], Y[number : number + 8]


DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "generator made in a hook": lambda: {"x": MadeInAHook()},
    "generator of a partial": lambda: {"x": OfAPartial()},
    "generator of a closure": lambda: {"x": OfAClosure()},
    "generator five boxes deep": lambda: {"x": Deep()},
    "generator of the class": lambda: {"x": OfTheClass()},
    "generator of the class, processes": lambda: {"x": OfTheClass(workers=2, use_multiprocessing=True)},
    "layers of Keras": lambda: {"x": OfKeras()},
    "layer in a function": lambda: {"x": by_a_layer()},
    "function with too many batches": lambda: {"x": too_many, "steps_per_epoch": 6},
}


@pytest.mark.parametrize("what", DATA)
def test_what_data_draw_with(what: str) -> None:
    assert assert_resume_exact(small, lambda: {**DATA[what](), "epochs": 2}, cuts=(3, 5, 6, 7)) >= 3


def test_a_generator_that_loading_makes_is_named() -> None:
    class MadeWhileLoading(Noisy):
        def noise(self, x: Any) -> Any:
            self.rng = np.random.default_rng(int(self.rng.integers(99)))
            return super().noise(x)

    uncaptured: list[str] = []
    with suppress(AssertionError):
        assert_resume_exact(
            small, lambda: {"x": MadeWhileLoading(), "epochs": 2}, cuts=(7,), uncaptured=uncaptured
        )
    assert [text for text in uncaptured if "MadeWhileLoading.rng" in text], uncaptured


def test_loading_with_the_model_that_trains_does_not_move_its_seeds() -> None:
    class Held(Noisy):
        model: Any = None

    def trained(holds: bool) -> Any:
        keras.utils.set_random_seed(1)
        model = small(None, keras.layers.Dropout(0.5))
        data = Held()
        data.model = model if holds else None
        import xptrain

        return xptrain.Trainer(model, seed=4).fit(data, epochs=2, verbose=0).history

    assert trained(True) == trained(False)


def test_hooks_that_do_something_else_when_they_are_called_again_are_refused() -> None:
    class HardestFirst(Noisy):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.order = list(range(5))

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(self.order[index])

        def on_epoch_end(self) -> None:
            loss = (np.asarray(self.model(X)) - Y).reshape(5, -1) ** 2
            self.order = [int(i) for i in np.argsort(loss.mean(axis=1))]

    models: list[Any] = []

    def make() -> Any:
        models.append(small())
        return models[-1]

    with pytest.raises(InexactError, match="epoch hooks changed"):
        assert_resume_exact(
            make, lambda: {"x": HardestFirst(models[-1]), "epochs": 4}, cuts=(12, 17), uncaptured=[]
        )


class StopsEarly(Callback):
    """Ends the training from what it has counted, when an epoch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.past: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.seen < 2 * epoch:
            self.model.stop_training = True
        if epoch:
            assert self.past[-1] >= 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.past.append(logs["loss"])


class Pool(Callback):
    """Draws without replacement from a set."""

    def __init__(self, size: int, first: int) -> None:
        super().__init__()
        self.pool = set(range(size))
        for _ in range(first):
            self.pool.pop()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["drawn"] = float(self.pool.pop())


class Token(Callback):
    def __init__(self, token: str = "a") -> None:
        super().__init__()
        self.token = token

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.token += "b"


class Viewing(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(4)
        self.tail: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.buffer = self.buffer + 1
        self.tail = self.buffer[2:]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.buffer += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["tail"] = float(self.tail.sum())


def fitted(callback: Callable[[], Any]) -> dict[str, Any]:
    return {"x": X, "y": Y, "batch_size": 8, "epochs": 3, "callbacks": [callback()]}


def test_callbacks_know_their_state_when_an_epoch_begins_again() -> None:
    assert assert_resume_exact(small, lambda: fitted(StopsEarly)) == 15


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (lambda: Pool(1000, 990), "pool: a set whose order cannot be made again"),
        (lambda: Pool(9, 0), ""),
        (Token, "token: a secret"),
        (Viewing, "an array that shares its memory"),
    ],
)
def test_what_does_not_come_back_as_it_was_is_named(callback: Callable[[], Any], named: str) -> None:
    uncaptured: list[str] = []
    with suppress(AssertionError):
        assert_resume_exact(small, lambda: fitted(callback), cuts=(6,), uncaptured=uncaptured)
    assert [text for text in uncaptured if named in text] if named else not uncaptured, uncaptured


class Extra(keras.Sequential):
    """Logs something that is no metric."""

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "extra": logs["loss"] * 2}, state


def test_logs_of_the_step_that_was_an_epochs_last() -> None:
    def make() -> Any:
        model = Extra([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    def args() -> dict[str, Any]:
        return {"x": lambda epoch, batch: ((X[:8] + n, Y[:8]) for n in range(batch, 6)), "epochs": 2}

    assert assert_resume_exact(make, args) == 12
