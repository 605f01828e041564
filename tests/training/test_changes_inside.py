"""Callbacks that read or change the model in the middle of an epoch: as Keras does it, or refused clearly."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from tests.training.test_parity import keras_fit
from xptrain.errors import UsageError
from xptrain.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_keras_fit")


HOOKS = ["on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end"]
COMPILED = "compiled the model"


class At(keras.callbacks.Callback):
    """Calls a function with the model after each batch."""

    def __init__(self, do: Any, hook: str = "on_train_batch_end") -> None:
        super().__init__()
        setattr(self, hook, lambda *args, **kwargs: do(self.model, args[0]))


def rate(model: Any, batch: int) -> None:
    model.optimizer.learning_rate = 0.1 / (1 + batch)


def weights(model: Any, batch: int) -> None:
    if batch == 2:
        model.layers[0].kernel.assign(model.layers[0].kernel * 0.5)
        model.set_weights([weight + 0.1 for weight in model.get_weights()])


def evaluation(model: Any, batch: int) -> None:
    model.test_on_batch(X[:8], Y[:8])


def stop(model: Any, batch: int) -> None:
    model.stop_training = batch == 3


@pytest.mark.parametrize(
    "hook", ["on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end"]
)
@pytest.mark.parametrize("change", [rate, weights, evaluation, stop])
def test_a_change_does_what_it_does_in_keras(change: Any, hook: str) -> None:
    results = []
    for train in (keras_fit, lambda model, **arguments: Trainer(model, seed=0).fit(**arguments)):
        keras.utils.set_random_seed(5)
        model = dropout_model()
        arguments = {"x": X, "y": Y, "batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        history = train(model, callbacks=[At(change, hook)], **arguments)
        results.append((variable_digests(model), history.history))
    assert results[1] == results[0]


def freeze(model: Any, batch: int) -> None:
    model.layers[0].trainable = False


def recompile(model: Any, batch: int) -> None:
    model.compile("sgd", "mae")


def retrace(model: Any, batch: int) -> None:
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    "hook", ["on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end"]
)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (freeze, "which variables are trainable"),
        (recompile, "compiled the model"),
        (retrace, "compiled the model"),
    ],
)
def test_a_change_of_the_program_is_refused(change: Any, said: str, hook: str) -> None:
    model = small()
    with pytest.raises(UsageError, match=said):
        Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[At(change, hook)])
    assert all(np.isfinite(value).all() for value in model.get_weights())
    model.compile("adam", "mse")
    Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=1, verbose=0)


def test_the_state_is_seen_through_an_outer_model_case_21() -> None:
    model = small()
    outer = keras.Sequential([keras.Input((4,)), model])
    kept = model.layers[0].kernel
    seen: list[list[Any]] = [[], [], []]

    def look(inner: Any, batch: int) -> None:
        seen[0].append(inner.get_weights()[0].copy())
        seen[1].append(outer.get_weights()[0].copy())
        seen[2].append(np.array(kept))

    Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[At(look)])
    assert len(seen[0]) == 10
    for ours, theirs, variable in zip(*seen, strict=True):
        assert np.array_equal(ours, theirs)
        assert np.array_equal(ours, variable)
    assert not np.array_equal(seen[0][0], seen[0][1])


def test_averages_twice_case_19() -> None:
    model = small(keras.optimizers.SGD(0.05, use_ema=True))
    for _ in range(2):
        Trainer(model, seed=0).fit(X, Y, epochs=1, verbose=0)
        assert all(np.isfinite(value).all() for value in model.get_weights())


class Tracked(keras.Model):
    """Updates a tracker in compute_loss and, if asked to, a metric in call."""

    def __init__(self, in_call: bool) -> None:
        super().__init__()
        self.in_call = in_call
        self.dense = keras.layers.Dense(1)
        self.norm = keras.metrics.Mean(name="norm")
        self.tracker = keras.metrics.Mean(name="own_loss")

    def call(self, inputs: Any) -> Any:
        outputs = self.dense(inputs)
        if self.in_call:
            self.norm.update_state(keras.ops.sum(outputs**2))
        return outputs

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True
    ) -> Any:
        loss = keras.ops.mean((y - y_pred) ** 2)
        self.tracker.update_state(loss)
        return loss


def test_a_tracker_updated_in_compute_loss_case_23() -> None:
    results = []
    for train in (keras_fit, lambda model, **arguments: Trainer(model, seed=0).fit(**arguments)):
        keras.utils.set_random_seed(5)
        model = Tracked(in_call=False)
        model.compile("adam")
        history = train(model, x=X, y=Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        results.append((variable_digests(model), history.history))
    assert results[1] == results[0]
    assert {"norm", "own_loss"} <= results[1][1].keys()


def test_a_metric_updated_in_call_is_a_clear_error_case_23() -> None:
    model = Tracked(in_call=True)
    model.compile("adam")
    with pytest.raises(TypeError) as caught:
        Trainer(model, seed=0).fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert any("a metric has no value inside call()" in note for note in caught.value.__notes__)
    assert all(np.isfinite(value).all() for value in model.get_weights())
