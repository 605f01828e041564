"""Small models and data that many tests train on."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = (X @ RNG.normal(size=(4, 1)) + RNG.normal(size=(40, 1)) * 0.1).astype("float32")


def small(optimizer: Any = None, *extra: Any, metrics: Any = ("mae",), **compile_arguments: Any) -> Any:
    """The model M of the fault list: Input(4) → Dense(3, tanh) → [extra] → Dense(1), Adam 0.05, mse."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), *extra, keras.layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.05), "mse", metrics=list(metrics), **compile_arguments)
    return model


def dropout_model(optimizer: Any = None) -> Any:
    """M with everything that draws random numbers or gathers statistics."""
    return small(
        optimizer,
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.GaussianNoise(0.1),
    )


class Scripted(keras.callbacks.Callback):
    """Puts a scripted score into the logs of each epoch, before the callbacks after it."""

    def __init__(self, scores: list[float], name: str = "score") -> None:
        super().__init__()
        self.scores = scores
        self.name = name

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs[self.name] = self.scores[epoch]


def variable_digests(model: Any) -> dict[str, str]:
    from xptrain.state.digest import digest_array
    from xptrain.training.keras_backend.variables import records

    return {record.key: digest_array(record.variable.value) for record in records(model)}


class Seeded(keras.layers.Layer):
    """Draws from a SeedGenerator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator()

    def call(self, inputs: Any, training: bool = False) -> Any:
        noise = keras.random.normal(keras.ops.shape(inputs), seed=self.generator)
        return inputs + noise * 0.1 if training else inputs
