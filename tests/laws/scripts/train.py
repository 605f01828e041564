"""A small training script that everything random goes into, and that can be told when to die.

    python train.py OUT --policy epochs|steps [--epochs 8]

The environment variable DIE holds one JSON object: {"phase": …, "nth": …, "delay": …, "signal": …}.
Writes OUT/steps.txt (a line per trained step: attempt, step) and, at the end, OUT/result.json.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np

import xptrain
from xptrain import faults

DIE: dict[str, Any] = json.loads(os.environ.get("DIE", "null")) or {}
SEEN = {"batches": 0, "test_batches": 0}


def die(*_: Any) -> None:
    print(f"dying: {DIE}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.Signals[DIE.get("signal", "SIGKILL")])


def watch_saves() -> None:
    left = [DIE.get("nth", 1)]

    def hook(name: str, step: int) -> None:
        wanted = {"save": "save-started", "written": "journal-durable"}.get(DIE["phase"], DIE["phase"])
        if name == wanted:
            left[0] -= 1
            if left[0] == 0:
                if DIE.get("delay"):
                    threading.Timer(DIE["delay"], die).start()
                else:
                    die()

    faults.hooks.append(hook)


class Killer(keras.callbacks.Callback):
    """Dies at a chosen batch of training or validation; counts outside itself, so that it has no state."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        with (OUT / "steps.txt").open("a") as file:
            file.write(f"{RUN.attempt} {RUN.step}\n")
        SEEN["batches"] += 1
        if DIE.get("phase") == "batch" and SEEN["batches"] == DIE["nth"]:
            die()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        SEEN["test_batches"] += 1
        if DIE.get("phase") == "validation" and SEEN["test_batches"] == DIE["nth"]:
            die()


class Noise(keras.callbacks.Callback):
    """Draws from the global generators, and keeps a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen += 1
        logs["noise"] = float(np.random.rand())
        logs["seen"] = float(self.seen)

    def get_state(self) -> Any:
        return {"seen": self.seen}

    def set_state(self, state: Any) -> None:
        self.seen = state["seen"]


parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--policy", default="epochs")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--key")
parser.add_argument("--data", default="arrays", choices=["arrays", "processes", "generator", "torch"])
args = parser.parse_args()
OUT = args.out
OUT.mkdir(parents=True, exist_ok=True)
if DIE.get("phase") not in (None, "batch", "validation"):
    watch_saves()

rng = np.random.default_rng(0)
x = rng.normal(size=(150, 6)).astype("float32")
y = (x[:, :1] * x[:, 1:2] + rng.normal(size=(150, 1)) * 0.1).astype("float32")


class Augmented(keras.utils.PyDataset):
    """Adds noise in loader processes, from two generators, and shuffles itself."""

    def __init__(self) -> None:
        super().__init__(workers=2, use_multiprocessing=True)
        self.order = np.arange(len(x))
        self.rng = np.random.default_rng()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * 16 : (index + 1) * 16]
        noise = np.random.normal(size=(len(chosen), 6)) + self.rng.normal(size=(len(chosen), 6))
        return x[chosen] + noise.astype("float32") * 0.1, y[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


def endless() -> Any:
    own = np.random.default_rng(3)
    while True:
        chosen = own.integers(0, len(x), 16)
        yield x[chosen] + np.random.normal(size=(16, 6)).astype("float32") * 0.1, y[chosen]


def loader() -> Any:
    import torch

    class Items(torch.utils.data.Dataset[Any]):
        """Adds noise in loader processes, from three generators."""

        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, index: int) -> Any:
            noise = np.random.normal(size=6) + torch.randn(6).numpy() + random.random()
            return x[index] + noise.astype("float32") * 0.1, y[index]

    return torch.utils.data.DataLoader(Items(), batch_size=16, shuffle=True, num_workers=2)


data: dict[str, Any] = {
    "arrays": lambda: {"x": x, "y": y, "batch_size": 16},
    "processes": lambda: {"x": Augmented()},
    "generator": lambda: {"x": endless(), "steps_per_epoch": 10},
    "torch": lambda: {"x": loader()},
}[args.data]()
policy = xptrain.every(epochs=1) if args.policy == "epochs" else xptrain.every(steps=3)

with xptrain.run("laws", key=args.key, seed=7, checkpoint=(policy, xptrain.keep(2))) as RUN:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.4),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    history = RUN.fit(
        model,
        **data,
        epochs=args.epochs,
        verbose=0,
        validation_data=(x[:40], y[:40]),
        callbacks=[
            Noise(),
            keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
            keras.callbacks.EarlyStopping("val_loss", patience=20, restore_best_weights=True),
            Killer(),
        ],
    )
result = {
    "history": history.history,
    "epochs": history.epoch,
    "iterations": int(model.optimizer.iterations),
    "predictions": float(np.sum(RUN.predict(model, x).astype("float64"))),
}
(OUT / "result.json").write_text(json.dumps(result))
