"""What a save costs the loop: the slowest step near a checkpoint ÷ the median step, for a 64 MB state.

python -m bench.save_stall
"""

import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import xptrain


class StepTimes(keras.callbacks.Callback):
    """Seconds between step ends; asking for the logs waits for the device, on both kinds of steps alike."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    x = np.ones((3200, 256), "float32")
    with tempfile.TemporaryDirectory() as home:
        os.environ["XPTRAIN_HOME"] = home
        times = StepTimes()
        with xptrain.run("bench", seed=0, checkpoint=(xptrain.every(steps=25), xptrain.keep(1))) as run:
            layers = [
                keras.Input((256,)),
                keras.layers.Dense(4096),
                keras.layers.Dense(1024),
                keras.layers.Dense(1),
            ]
            model = keras.Sequential(layers)
            model.compile("adam", "mse")
            run.fit(model, x, x[:, :1], batch_size=32, epochs=2, verbose=0, callbacks=[times])
        steps = [b - a for a, b in zip(times.ends, times.ends[1:], strict=False)][10:]
        usual = statistics.median(steps)
        print(
            f"median step {usual * 1e3:.1f} ms, slowest {max(steps) / usual:.1f} x that, "
            f"lost to saves in all {(sum(steps) / len(steps) / usual - 1):.0%} of the loop",
            flush=True,
        )


if __name__ == "__main__":
    main()
