"""Errors inside a fit: the user's own exception is seen, and the model stays usable (law L11)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from xptrain.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_keras_fit")


class Odd(Exception):
    """An exception of the user's."""


class Raising(keras.callbacks.Callback):
    """Raises in the n-th call of one hook."""

    def __init__(self, hook: str, nth: int, error: type[BaseException] = Odd) -> None:
        super().__init__()
        calls = [0]

        def call(*args: Any, **kwargs: Any) -> None:
            calls[0] += 1
            if calls[0] == nth:
                raise error("in the middle")

        setattr(self, hook, call)


class Batches(keras.utils.PyDataset):
    """Raises when its n-th batch is fetched, counted over all epochs from 0."""

    def __init__(self, at: int, workers: int = 0) -> None:
        super().__init__(workers=workers)
        self.at, self.fetched = at, 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        if self.fetched - 1 == self.at:
            raise OSError("disk on fire")
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def digests(model: Any) -> dict[str, str]:
    return {key: digest for key, digest in variable_digests(model).items() if not key.startswith("metrics")}


def stopped_after(steps: int) -> dict[str, str]:
    """Return the digests of the same model after so many steps of the same fit."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = int(self.model.optimizer.iterations) >= steps

    model = fresh()
    if steps:
        Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[Stop()])
    return digests(model)


def fresh() -> Any:
    keras.utils.set_random_seed(7)
    model = dropout_model()
    model.optimizer.build(model.trainable_variables)
    # Builds metrics and loss too, so that no batch is drawn for that.
    Trainer(model).test_on_batch(X[:8], Y[:8])
    return model


def usable(model: Any) -> None:
    assert all(np.isfinite(value).all() for value in model.get_weights())
    Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=1, verbose=0)
    Trainer(model).evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)


@pytest.mark.parametrize("error", [Odd, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("hook", "nth", "steps"),
    [
        ("on_train_begin", 1, 0),
        ("on_epoch_begin", 1, 0),
        ("on_epoch_begin", 2, 5),
        ("on_train_batch_begin", 1, 0),
        ("on_train_batch_begin", 8, 7),
        ("on_train_batch_end", 1, 1),
        ("on_train_batch_end", 7, 7),
        ("on_train_batch_end", 15, 15),
        ("on_test_begin", 1, 5),
        ("on_test_batch_end", 2, 5),
        ("on_epoch_end", 2, 10),
        ("on_train_end", 1, 15),
    ],
)
def test_an_error_in_a_hook(hook: str, nth: int, steps: int, error: type[BaseException]) -> None:
    model = fresh()
    arguments = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
    with pytest.raises(error, match="in the middle"):
        Trainer(model, seed=0).fit(
            X, Y, validation_data=(X, Y), callbacks=[Raising(hook, nth, error)], **arguments
        )
    assert digests(model) == stopped_after(steps)
    usable(model)


@pytest.mark.parametrize(("at", "workers"), [(0, 0), (1, 0), (4, 0), (5, 0), (6, 0), (14, 0), (1, 2), (4, 1)])
def test_an_error_in_the_data_case_20(at: int, workers: int) -> None:
    model = fresh()
    with pytest.raises(OSError, match="disk on fire"):
        Trainer(model, seed=0).fit(Batches(at, workers), epochs=3, shuffle=False, verbose=0)
    if workers < 2:
        assert digests(model) == stopped_after(at)
    usable(model)


def test_an_error_in_the_validation_data() -> None:
    model = fresh()
    with pytest.raises(OSError, match="disk on fire"):
        Trainer(model, seed=0).fit(
            X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0, validation_data=Batches(2)
        )
    assert digests(model) == stopped_after(5)
    usable(model)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_an_error_in_evaluation_or_prediction_loses_nothing(method: str) -> None:
    model = fresh()
    before = digests(model)
    with pytest.raises(OSError, match="disk on fire"):
        getattr(Trainer(model), method)(Batches(3), verbose=0)
    after = digests(model)
    assert {k: v for k, v in after.items() if "seed" not in k} == {
        k: v for k, v in before.items() if "seed" not in k
    }
    usable(model)


@pytest.mark.parametrize("where", ["loss", "layer", "metric"])
def test_an_error_while_the_step_is_traced(where: str) -> None:
    broken = [False]

    def fail(value: Any) -> Any:
        if broken[0]:
            raise Odd("in the middle")
        return value

    class Layer(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return fail(inputs) if where == "layer" else inputs

    def loss(y: Any, p: Any) -> Any:
        return fail(keras.ops.mean((y - p) ** 2, -1)) if where == "loss" else keras.ops.mean((y - p) ** 2, -1)

    def metric(y: Any, p: Any) -> Any:
        return fail(keras.ops.mean(p)) if where == "metric" else keras.ops.mean(p)

    model = small(None, Layer(), metrics=[metric])
    model.compile("adam", loss, metrics=[metric])
    Trainer(model).evaluate(X, Y, verbose=0)
    before = digests(model)
    broken[0] = True
    with pytest.raises(Odd, match="in the middle"):
        Trainer(model, seed=0).fit(X, Y, verbose=0)
    assert before.items() <= digests(model).items()
    broken[0] = False
    usable(model)


def test_an_eager_step_that_fails_in_the_middle() -> None:
    class Failing(keras.layers.Layer):
        calls = 0

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.calls += 1
                if self.calls == 4:
                    raise Odd("in the middle")
            return inputs

    model = small(None, Failing())
    model.run_eagerly = True
    with pytest.raises(Odd, match="in the middle"):
        Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 3
    usable(model)
