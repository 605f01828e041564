"""Training under a run holds at most what Keras holds, and one copy of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

import xptrain

X = np.ones((8, 1024), "float32")
STEPS = 12


class Peak(keras.callbacks.Callback):
    """The most bytes of arrays that live at any hook."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def look(self, *_: Any, **__: Any) -> None:
        self.bytes = max(self.bytes, sum(array.nbytes for array in jax.live_arrays()))

    on_train_batch_begin = on_train_batch_end = on_epoch_begin = on_epoch_end = on_train_end = look


def peak(fit: Any, model: Any) -> int:
    before = sum(array.nbytes for array in jax.live_arrays())
    watching = Peak()
    fit(model, np.tile(X, (STEPS, 1)), np.tile(X, (STEPS, 1)), batch_size=8, verbose=0, callbacks=[watching])
    # The model itself is there before and after.
    return watching.bytes - before


def model() -> Any:
    made = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
    made.compile("adam", "mse")
    made.optimizer.build(made.trainable_variables)
    return made


def test_a_run_holds_one_copy_of_the_state_more_than_keras(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XPTRAIN_HOME", str(tmp_path))
    first = model()
    state = sum(v.value.nbytes for v in first.variables + first.optimizer.variables)
    of_keras = peak(lambda m, *a, **k: m.fit(*a, **k), first)
    del first
    # A checkpoint at every other step: faster than they are written.
    with xptrain.run("memory", seed=0, checkpoint=(xptrain.every(steps=2), xptrain.keep(2))) as run:
        of_run = peak(run.fit, model())
    assert of_run <= of_keras + 1.1 * state
