"""What a step costs: `run.fit`, with per-step metrics and a checkpoint each epoch, ÷ plain `model.fit`.

    python -m bench.step_overhead [--pairs 5] [--epochs 7]

Fixed: an MLP 64-128-10 with dropout, Adam, batch 32, 2,000 steps an epoch, 7 epochs of which the first 2 are
dropped, 5 pairs, medians; and a small CNN with 200 steps an epoch. Both sides train the same model on the
same data in one process, in turn.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import xptrain

DROPPED = 2


def mlp() -> keras.Model:
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    return compiled(keras.Sequential(layers))


def cnn() -> keras.Model:
    layers = [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    return compiled(keras.Sequential(layers))


def compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


class EpochTimes(keras.callbacks.Callback):
    """Seconds of each epoch, from one end to the next: what a checkpoint costs is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> float:
        between = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.median(between[DROPPED - 1 :])


def plain(make: Callable[[], keras.Model], x: Any, y: Any, epochs: int) -> float:
    times = EpochTimes()
    make().fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=[times])
    return times.seconds()


def tracked(make: Callable[[], keras.Model], x: Any, y: Any, epochs: int) -> float:
    times = EpochTimes()
    with xptrain.run("bench", seed=0) as run:
        run.fit(make(), x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=[times])
    return times.seconds()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=7)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    cases = {
        "MLP 64-128-10": (mlp, rng.normal(size=(64_000, 64)).astype("float32"), 2000),
        "small CNN": (cnn, rng.normal(size=(6_400, 16, 16, 1)).astype("float32"), 200),
    }
    with tempfile.TemporaryDirectory() as home:
        os.environ["XPTRAIN_HOME"] = home
        for name, (make, x, steps) in cases.items():
            y = rng.integers(0, 10, len(x))
            pairs = [
                (tracked(make, x, y, args.epochs), plain(make, x, y, args.epochs)) for _ in range(args.pairs)
            ]
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            ours, theirs = (statistics.median(side) / steps * 1e6 for side in zip(*pairs, strict=True))
            print(
                f"{name}: run.fit {ours:.0f} us/step, model.fit {theirs:.0f} us/step, "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
