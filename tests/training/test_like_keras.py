"""Details in which a fit must look to callbacks, and a call to its caller, as Keras's own do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.examples import X, Y, small
from xptrain.training.trainer import Trainer

KERAS_FIT = keras.Model.fit


class Ends(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def on_train_end(self, logs: Any = None) -> None:
        self.told = [sorted(logs), self.params["steps"]]


def told(fit: Any, steps_per_execution: int = 1, **arguments: Any) -> list[Any]:
    model = small()
    model.steps_per_execution = steps_per_execution
    ends = Ends()
    callbacks = [keras.callbacks.ReduceLROnPlateau(monitor="loss"), ends]
    fit(model)(X, Y, epochs=2, verbose=0, callbacks=callbacks, **arguments)
    return ends.told


def test_what_callbacks_are_told_at_the_end() -> None:
    def ours(model: Any) -> Any:
        return Trainer(model, seed=0).fit

    def kerass(model: Any) -> Any:
        return lambda *args, **kw: KERAS_FIT(model, *args, **kw)

    assert told(ours) == told(kerass)
    odd = {"steps_per_execution": 2, "steps_per_epoch": 3, "batch_size": 8}
    assert told(ours, **odd) == told(kerass, **odd)


def test_predict_on_batch_of_a_model_with_one_number() -> None:
    class Total(keras.Model):
        def call(self, inputs: Any) -> Any:
            return keras.ops.sum(inputs)

    ours, kerass = Trainer(Total()).predict_on_batch(X), Total().predict_on_batch(X)
    assert ours.shape == kerass.shape == () and np.allclose(ours, kerass)
