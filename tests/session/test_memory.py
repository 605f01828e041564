"""What training under a run holds on the device: at most what Keras holds, and one copy of the state."""

from __future__ import annotations

import gc
from typing import Any

import jax
import keras
import numpy as np
import pytest

import xptrain
from tests.session.conftest import Runs
from tests.training.test_parity import keras_fit

pytestmark = pytest.mark.usefixtures("no_keras_fit")
X = np.zeros((64, 256), "float32")


class Peak(keras.callbacks.Callback):
    """Adds up all arrays that live, at every hook of a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        for hook in ("on_train_batch_begin", "on_train_batch_end", "on_epoch_end", "on_test_batch_end"):
            setattr(self, hook, self.look)

    def look(self, *args: Any, **kwargs: Any) -> None:
        self.most = max(self.most, sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted()))


def big() -> Any:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(512) for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(256)])
    model.compile("adam", "mse")
    return model


def test_at_most_one_copy_more_than_keras(runs: Runs) -> None:
    peaks = []
    state = 0
    arguments: dict[str, Any] = {"x": X, "y": X, "batch_size": 8, "epochs": 4, "verbose": 0}
    for tracked in (False, True):
        gc.collect()
        before = sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())
        model, peak = big(), Peak()
        if tracked:
            with runs.open("big", checkpoint=(xptrain.every(steps=3), xptrain.keep(2))) as run:
                run.fit(model, **arguments, callbacks=[peak], validation_data=(X, X))
        else:
            keras_fit(model, **arguments, callbacks=[peak], validation_data=(X, X))
        peaks.append(peak.most - before)
        state = sum(v.value.nbytes for v in (*model.variables, *model.optimizer.variables))
        del model, peak
    assert state > 10 * 2**20
    assert peaks[1] <= peaks[0] + 1.1 * state, [round(peak / state, 2) for peak in peaks]
