"""A tiny training script: --die-in-epoch N ends it by SIGKILL between two steps of that epoch."""

import argparse
import os
import signal
import time
from typing import Any

import keras
import numpy as np

import xptrain
from xptrain.checkpoint.folder import Folder

parser = argparse.ArgumentParser()
parser.add_argument("--key")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--die-in-epoch", type=int)
args = parser.parse_args()
RESUMED = "XPTRAIN_RESUME" in os.environ


class Death(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if RUN.attempt == 1 and self.epoch == args.die_in_epoch and batch == 1:
            while len(Folder(RUN.checkpoints.folder).ledger.entries()) < args.die_in_epoch:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def get_state(self) -> Any:
        return {}

    def set_state(self, state: Any) -> None:
        pass


x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
with xptrain.run("tiny", key=args.key, seed=1, config={"rate": args.rate}) as RUN:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(RUN.config.rate), "mse")
    data = {"validation_data": (x[:16], x[:16, :1])}
    RUN.fit(model, x, x[:, :1], epochs=args.epochs, batch_size=16, verbose=0, callbacks=[Death()], **data)
