"""What a proof costs: time of `xptrain verify --epoch K` ÷ time that the epoch took to train.

    python -m bench.verify_cost [--pairs 3]

Fixed: an MLP 64-1024-1024-10 with dropout, Adam, batch 64, epochs of 8,000 steps: long ones are
those of which one wants to verify a part. A run trains two epochs, then its second one is verified, as a
whole process: imports, restore, compile (from the cache) and the comparison included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import xptrain

AIM = 1.15
SCRIPT = """
import keras
import numpy as np
import xptrain

with xptrain.run("bench", key="bench", seed=0) as run:
    wide = [keras.layers.Dense(1024, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1024, "relu")]
    model = keras.Sequential([keras.Input((64,)), *wide, keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(64 * 8_000, 64)).astype("float32")
    y = np.random.default_rng(1).integers(0, 10, len(x))
    run.fit(model, x, y, batch_size=64, epochs=2, verbose=0)
"""


def pair() -> tuple[float, float]:
    """Return the seconds of the second epoch, and those of its verification."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XPTRAIN_HOME": folder, "KERAS_BACKEND": "jax"}
        Path(folder, "train.py").write_text(SCRIPT)
        subprocess.run([sys.executable, f"{folder}/train.py"], env=env, cwd=folder, check=True)
        command = [sys.executable, "-m", "xptrain.cli.main"]
        verify = [*command, "verify", "bench", "--epoch", "2", "--json"]
        found = json.loads(
            subprocess.run(verify, env=env, cwd=folder, check=True, stdout=subprocess.PIPE).stdout
        )
        assert found["equal"], found
        points = xptrain.history("bench", home=folder)
        epoch = points[points["metric"] == "time/epoch_seconds"]["value"].iloc[-1]
    return float(epoch), found["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    ratios = []
    for _ in range(args.pairs):
        epoch, proof = pair()
        ratios.append(proof / epoch)
        print(f"epoch {epoch:.1f} s, verified in {proof:.1f} s: {ratios[-1]:.2f}", flush=True)
    print(f"verify ÷ epoch: median {statistics.median(ratios):.2f}, aim {AIM}")


if __name__ == "__main__":
    main()
