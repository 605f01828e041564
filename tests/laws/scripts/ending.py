"""A run that ends in the way its first argument names."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import xptrain
from xptrain import faults

HOW, KEY = sys.argv[1], sys.argv[2]


def mark(text: str) -> None:
    """Tell the test that the moment has come, then give it time to act."""
    (Path(os.environ["XPTRAIN_HOME"]) / f"{KEY}.{text}").touch()
    if HOW.startswith("sig"):
        time.sleep(60)


class SlowToCompile(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        if HOW == "sigterm-compile":
            mark("ready")
        return inputs


class End(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch < 1:
            return
        if HOW == "error":
            raise ZeroDivisionError("on purpose")
        if HOW == "exit3":
            sys.exit(3)
        if HOW == "os-exit":
            os._exit(9)
        if HOW in ("sigterm", "sigint", "sigterm-workers"):
            mark("ready")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if HOW == "sigterm-validation":
            mark("ready")


def folder_vanishes(name: str, step: int) -> None:
    if HOW == "folder-gone" and name == "save-started" and step == 10:
        shutil.rmtree(RUN.checkpoints.folder)


def linger() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(40)


if __name__ == "__main__":
    faults.hooks.append(folder_vanishes)
    x = np.ones((40, 4), "float32")
    with xptrain.run("endings", key=None if "XPTRAIN_RESUME" in os.environ else KEY, seed=0) as RUN:
        if HOW == "sigterm-workers":
            # A loader worker that outlives its parent, with everything it inherited.
            multiprocessing.get_context("fork").Process(target=linger, daemon=False).start()
        model = keras.Sequential([keras.Input((4,)), SlowToCompile(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
        RUN.fit(
            model,
            x,
            x[:, :1],
            batch_size=8,
            epochs=2,
            verbose=0,
            validation_data=(x, x[:, :1]),
            callbacks=[End()],
        )
