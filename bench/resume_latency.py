"""What a resume costs: time from its process's start to its first trained step ÷ the same of a new run.

    python -m bench.resume_latency [--pairs 3]

Fixed: a CNN of 24 convolutions with batch normalization on 64 images of 16x16, batch 32, Adam: it takes long
to compile, and its steps are short. Each pair is a run started in a home of its own, stopped in its second
epoch, and resumed. Both are whole processes of the same script; the resumed one restores a checkpoint, and
takes its compiled programs from the cache that the first one filled.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

AIM = 0.75
OWN_CACHE = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
    "XPTRAIN_COMPILE_CACHE",
)
SCRIPT = """
import sys, time
import keras
import numpy as np
import xptrain

# Not of the callback: what a callback holds is restored.
seen = []

class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        # Asking for the loss waits for the device.
        float(logs["loss"])
        seen.append(batch)
        if len(seen) == 1:
            print("first step at", time.time(), flush=True)
        if len(seen) == 3:
            raise KeyboardInterrupt

with xptrain.run("bench", key="bench", seed=0, resume="auto") as run:
    layers = [keras.Input((16, 16, 3))]
    for _ in range(24):
        layers += [keras.layers.Conv2D(16, 3, padding="same", activation="relu")]
        layers += [keras.layers.BatchNormalization()]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(64, 16, 16, 3)).astype("float32")
    run.fit(model, x, np.arange(64) % 10, batch_size=32, epochs=4, verbose=0, callbacks=[Steps()])
"""


def first_step(home: str) -> float:
    """Start the script; return the seconds to the end of its first step."""
    env = {name: value for name, value in os.environ.items() if name not in OWN_CACHE}
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**env, "KERAS_BACKEND": "jax", "XPTRAIN_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("first step at")]
    if not lines:
        raise SystemExit(done.stderr)
    return float(lines[0].rpartition(" ")[2]) - begin


def pair() -> tuple[float, float]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        new = first_step(home)
        return new, first_step(home)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    pairs = [pair() for _ in range(parser.parse_args().pairs)]
    ratios = sorted(resumed / new for new, resumed in pairs)
    new, resumed = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"first step: new {new:.1f} s, resumed {resumed:.1f} s, "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), aim {AIM}",
        flush=True,
    )


if __name__ == "__main__":
    main()
