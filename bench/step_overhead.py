"""What a step costs: `run.fit`, with per-step metrics and a checkpoint each epoch, ÷ plain `model.fit`.

    python -m bench.step_overhead [--pairs 5] [--epochs 7]

Fixed: an MLP 64-128-10 with dropout, Adam, batch 32, 2,000 steps an epoch, 7 epochs of which the first 2 are
dropped, 5 pairs, medians; the same with steps_per_execution=50 on both sides, ours fused; and a small CNN on
8x8 images, the size of scikit-learn's digits. Both sides train the same model on the same data in one
process, in turn; the recorder of a run has ended before the other side begins. In the first 3 seconds of a
run its recorder starts, beside the training, and imports MLflow. The fused epochs are so short that this
falls into those measured, so they are measured over 30 epochs as well. For comparison: MLflow's autolog and
Keras's OrbaxCheckpoint.
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
from xptrain.tracking.recorder import lives

DROPPED = 2


def mlp(steps_per_execution: int = 1) -> keras.Model:
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(128, "relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    return compiled(keras.Sequential(layers), steps_per_execution)


def cnn() -> keras.Model:
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    return compiled(keras.Sequential(layers))


def compiled(model: keras.Model, steps_per_execution: int = 1) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(), loss, metrics=["accuracy"], steps_per_execution=steps_per_execution
    )
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


def fitted(fit: Callable[..., Any], x: Any, y: Any, epochs: int, **more: Any) -> float:
    times = EpochTimes()
    callbacks = [times, *more.pop("callbacks", ())]
    fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=callbacks, **more)
    return times.seconds()


def plain(make: Callable[[], keras.Model], *data: Any, **more: Any) -> float:
    return fitted(make().fit, *data)


def tracked(make: Callable[[], keras.Model], *data: Any, **more: Any) -> float:
    with xptrain.run("bench", seed=0) as run:
        seconds = fitted(run.trainer(make()).fit, *data, **more)
    while lives(run.folder):
        time.sleep(0.1)
    return seconds


def autologged(make: Callable[[], keras.Model], *data: Any, **more: Any) -> float:
    import mlflow

    home = os.environ["XPTRAIN_HOME"]
    mlflow.set_tracking_uri(f"sqlite:///{home}/autolog.db")
    mlflow.keras.autolog(
        log_models=False, log_datasets=False, silent=True, log_every_n_steps=1, log_every_epoch=False
    )
    try:
        saving = keras.callbacks.OrbaxCheckpoint(f"{home}/orbax-{time.monotonic_ns()}", save_freq="epoch")
        with mlflow.start_run():
            return fitted(make().fit, *data, callbacks=[saving])
    finally:
        mlflow.keras.autolog(disable=True)


def report(name: str, pairs: list[tuple[float, float]], steps: int) -> None:
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(side) / steps * 1e6 for side in zip(*pairs, strict=True))
    print(
        f"{name}: {ours:.0f} us/step, model.fit {theirs:.0f} us/step, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=7)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(64_000, 64)).astype("float32")
    images = rng.normal(size=(64_000, 8, 8, 1)).astype("float32")
    usual, many = (args.epochs, args.pairs), (30, args.pairs)
    # Autolog takes minutes for what the others do in seconds: one pair tells enough.
    slow = (args.epochs, 1)
    fused = "MLP, 50 steps per execution, run.fit(fused=True)"
    cases = [
        ("MLP 64-128-10, run.fit", mlp, flat, tracked, {}, usual),
        (fused, lambda: mlp(50), flat, tracked, {"fused": True}, usual),
        ("small CNN, run.fit", cnn, images, tracked, {}, usual),
        (f"{fused}, 30 epochs", lambda: mlp(50), flat, tracked, {"fused": True}, many),
        ("MLP, MLflow autolog + OrbaxCheckpoint", mlp, flat, autologged, {}, slow),
    ]
    with tempfile.TemporaryDirectory() as home:
        os.environ["XPTRAIN_HOME"] = home
        for name, make, x, ours, more, (epochs, count) in cases:
            data = x, rng.integers(0, 10, len(x)), epochs
            pairs = [(ours(make, *data, **more), plain(make, *data)) for _ in range(count)]
            report(name, pairs, len(x) // 32)


if __name__ == "__main__":
    main()
