"""A run of 4 steps that depends on a counter which nobody captures."""

from typing import Any

import keras
import numpy as np

import xptrain

COUNT = [0]


class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        bump(self.model)


def bump(model: Any) -> None:
    COUNT[0] += 1
    model.optimizer.learning_rate = 0.01 / COUNT[0]


x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
with xptrain.run("hidden", seed=1) as run:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    run.fit(model, x, x[:, :1], epochs=1, batch_size=8, verbose=0, callbacks=[Count()])
