"""A run that ends in the way its first argument names."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np

import xptrain
from xptrain import faults

HOW, KEY = sys.argv[1], sys.argv[2]
GRACE_S = 3.0 if HOW in ("sigterm-compile", "sigterm-stuck", "worker-told") else 60.0
HEARD: list[int] = []


def mark(text: str) -> None:
    """Tell the test that the moment has come, then give it time to act."""
    (Path(os.environ["XPTRAIN_HOME"]) / f"{KEY}.{text}").touch()
    if HOW in ("sigterm-compile", "sigterm-stuck"):
        # Like a compile: one call that no signal handler gets into.
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2 * 10**8)
    if HOW.startswith("sig"):
        end = time.monotonic() + 60
        while time.monotonic() < end and (HOW == "sigint-twice" or not RUN.preemption.stopping):
            time.sleep(0.05)
            if RUN.preemption.stopping:
                (Path(os.environ["XPTRAIN_HOME"]) / f"{KEY}.told").touch()


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
        if HOW == "sigterm-stuck":
            # The queue of what is to be told waits for a value that never comes.
            RUN.writer.append = RUN.writer.sync = lambda *args, **kwargs: time.sleep(3600)
        if HOW in ("sigterm", "sigint", "sigterm-workers", "sigterm-group", "sigterm-gone", "sigterm-stuck"):
            mark("ready")
        if HOW == "worker-told":
            worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            worker.start()
            os.kill(worker.pid or 0, signal.SIGTERM)
            worker.join()
            assert worker.exitcode == -signal.SIGTERM
            # Longer than the grace that a signal to this process would have.
            time.sleep(GRACE_S + 1)
        if HOW == "own-handler":
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if HOW in ("sigint-twice", "sigterm-thread", "sigusr1") and RUN.step == 7:
            mark("ready")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if HOW == "sigterm-validation":
            mark("ready")


def folder_vanishes(name: str, step: int) -> None:
    if HOW in ("folder-gone", "sigterm-gone") and name == "save-started" and step == 10:
        shutil.rmtree(RUN.checkpoints.folder)


def linger() -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(40)
        os._exit(0)


if __name__ == "__main__":
    faults.hooks.append(folder_vanishes)
    x = np.ones((40, 4), "float32")
    if HOW == "own-handler":
        signal.signal(signal.SIGTERM, lambda number, frame: HEARD.append(number))
    key = None if "XPTRAIN_RESUME" in os.environ else KEY
    opened = xptrain.run("endings", key=key, seed=0, grace_s=GRACE_S)
    with nullcontext(opened.start()) if HOW == "unfinished" else opened as RUN:
        if HOW == "sigterm-workers":
            # A loader worker that outlives its parent, with everything it inherited.
            linger()
        model = keras.Sequential([keras.Input((4,)), SlowToCompile(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)

        def fit() -> None:
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

        if HOW == "sigterm-thread":
            thread = threading.Thread(target=fit)
            thread.start()
            thread.join()
        else:
            fit()
    assert not HEARD or HOW == "own-handler"
    assert HOW != "own-handler" or HEARD == [signal.SIGTERM]
