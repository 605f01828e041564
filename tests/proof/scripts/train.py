"""A small run whose every part is random; PLANT names a fault that only a replay commits.

Two epochs of 5 steps, a checkpoint every 4 steps and at each epoch's end, a CSV file, a callback that draws.
"""

import argparse
import os
from typing import Any

import keras
import numpy as np

import xptrain

PLANT = os.environ.get("PLANT", "")

parser = argparse.ArgumentParser()
parser.add_argument("--key")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--fits", type=int, default=1)
args = parser.parse_args()


class Draws(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.total += float(np.random.rand())
        if PLANT == "weight" and RUN.step == 13:
            kernel = self.model.layers[-1].kernel
            changed = np.array(kernel)
            changed.flat[0] = np.nextafter(changed.flat[0], np.float32(9))
            kernel.assign(changed)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["total"] = self.total


x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
with xptrain.run(
    "proof",
    key=args.key,
    seed=1,
    config={"rate": args.rate, "width": 3},
    checkpoint=(xptrain.every(epochs=1), xptrain.every(steps=4), xptrain.keep(2)),
) as RUN:
    for number in range(args.fits):
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(RUN.config.width),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(RUN.config.rate), "mse")
        RUN.fit(
            model,
            x,
            x[:, :1],
            epochs=args.epochs,
            batch_size=8,
            verbose=0,
            callbacks=[Draws(), keras.callbacks.CSVLogger(f"log-{number}.csv")],
        )
print("the script is over")
