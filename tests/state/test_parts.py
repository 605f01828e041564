"""Python attributes of a model and its parts: which are kept, and what is said of the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small
from xptrain.state.python.parts import assigned_by_keras
from xptrain.training.observer import NoObserver
from xptrain.training.trainer import Trainer


class Remembering(NoObserver):
    """Remembers the last snapshot, and what was said to be missing from it."""

    snapshot: Any = None
    uncaptured: Any = ()

    def save(self, snapshot: Any, uncaptured: Any) -> None:
        self.snapshot, self.uncaptured = snapshot, list(uncaptured)


def fitted(model: Any, at_epoch_end: Callable[[Any], Any]) -> Remembering:
    """Train two epochs; `at_epoch_end` is called with the model, and what it returns is passed over."""
    watch = Remembering(0)
    doing = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: at_epoch_end(model) and None)
    Trainer.observed(model, watch, 0).fit(X, Y, epochs=2, verbose=0, callbacks=[doing])
    return watch


class Buffer:
    """A class of the user's."""

    def __init__(self) -> None:
        self.size = 0


def foreign() -> Any:
    model = dropout_model()
    model.buffer, model.ids = Buffer(), itertools.count()
    return model


def everything() -> Any:
    model = dropout_model(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True)))
    model.buffer = Buffer()
    model.blocks = [model.layers[0], {"last": model.layers[-1]}]
    return model


def test_nothing_is_kept_of_a_model_that_nobody_changes() -> None:
    watch = fitted(everything(), lambda model: None)
    assert watch.uncaptured == []
    assert watch.snapshot.host["python"]["model"] == {}
    assert watch.snapshot.host["end"]["python"]["model"] == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: setattr(m.layers[2], "rate", 0.1), "model/2.dropout.rate (changed while training"),
        (lambda m: setattr(m, "tool", object.__new__(Remembering)), "model.tool: "),
        (lambda m: setattr(m, "api_token", "hunter2"), "model.api_token: a secret, which is never stored"),
        (lambda m: setattr(m.optimizer, "clipnorm", 1.0), "optimizer.clipnorm (changed while training"),
        (lambda m: setattr(m.layers[0], "activation", keras.ops.relu), "model/0.dense.activation (changed"),
        (lambda m: setattr(m.buffer, "size", m.buffer.size + 1), "model.buffer: "),
        (lambda m: next(m.ids), "model.ids: "),
    ],
)
def test_what_cannot_be_kept_is_named(change: Callable[[Any], Any], told: str) -> None:
    watch = fitted(foreign() if "buffer" in told or "ids" in told else dropout_model(), change)
    assert any(text.startswith(told) for text in watch.uncaptured), watch.uncaptured
    assert "hunter2" not in str(watch.snapshot.host)


def test_what_a_compiled_step_leaves_behind_is_no_state() -> None:
    class Leaving(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.last = inputs
            return inputs

    assert fitted(small(None, Leaving()), lambda model: None).uncaptured == []


def test_arrays_and_lists_on_a_layer_are_in_the_snapshot() -> None:
    def change(model: Any) -> None:
        layer = model.layers[0]
        layer.seen = [*getattr(layer, "seen", []), len(model.layers)]
        layer.prior += 1

    def make() -> Any:
        model = small()
        model.layers[0].prior = np.zeros(3)
        return model

    watch = fitted(make(), change)
    assert set(watch.snapshot.host["end"]["python"]["model"]) == {"model/0.dense"}
    assert watch.uncaptured == []
    (layer,) = watch.snapshot.host["end"]["python"]["model"].values()
    assert layer["state"].keys() == {"seen", "prior"}
    # The arrays themselves, not what they were before.
    assert np.array_equal(watch.snapshot.leaves[layer["state"]["prior"]["v"]["v"]], np.full(3, 2.0))


def test_names_that_keras_gives_its_own_objects() -> None:
    names = assigned_by_keras(keras.layers.Dropout)
    assert {"rate", "built", "_trainable", "seed_generator"} <= names
    assert "notes" not in names
