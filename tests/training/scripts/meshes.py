"""Train a small model on a mesh of virtual CPU devices, and print what came out as one JSON line.

    meshes.py KIND [--key KEY] [--resume KEY] [--allow NAMES] [--stop STEP] [--keras]

KIND: none, data, model or wrong (a LayoutMap key that matches nothing).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, ClassVar

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--devices", type=int, default=8)
parser.add_argument("--key")
parser.add_argument("--resume")
parser.add_argument("--allow", default="")
parser.add_argument("--stop", type=int)
parser.add_argument("--keras", action="store_true")
parser.add_argument("--fused", action="store_true")
given = parser.parse_args()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={given.devices}"
os.environ["KERAS_BACKEND"] = "jax"

import keras  # noqa: E402
import numpy as np  # noqa: E402

import xptrain  # noqa: E402
from xptrain.provenance.sharding import describe_sharding  # noqa: E402
from xptrain.state.digest import digest_array  # noqa: E402
from xptrain.training.keras_backend.variables import records  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 8)).astype("float32")
Y = RNG.normal(size=(64, 1)).astype("float32")


def distribute() -> None:
    devices = keras.distribution.list_devices()
    if given.kind == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    elif given.kind in ("model", "wrong"):
        shape = (2, len(devices) // 2)
        mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
        layouts = keras.distribution.LayoutMap(mesh)
        layouts[".*hidden/kernel"] = (None, "model")
        layouts[".*hidden/bias" if given.kind == "model" else "hiden/bias"] = ("model",)
        distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        keras.distribution.set_distribution(distribution)


def make() -> Any:
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="tanh", name="hidden"),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, name="last"),
        ],
        name="net",
    )
    model.compile(
        keras.optimizers.Adam(0.01), "mse", metrics=["mae"], steps_per_execution=2 if given.fused else 1
    )
    return model


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == given.stop:
            raise RuntimeError("stopped by the test")


class Restored(keras.callbacks.Callback):
    """Keeps the digests of what the first epoch began with."""

    digests: ClassVar[dict[str, str]] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not Restored.digests:
            Restored.digests |= {r.key: digest_array(r.variable.value) for r in records(self.model)}


def tell(model: Any, history: Any, **more: Any) -> None:
    placed = {r.key: describe_sharding(r.variable.value) for r in records(model)}
    step = model.train_function
    step = getattr(step, "fused", None) or step
    told = {
        "digests": {r.key: digest_array(r.variable.value) for r in records(model)},
        "shardings": {key: [s["mesh"], s["spec"]] for key, s in placed.items()},
        "history": history.history,
        "compiled": getattr(getattr(step, "call", None), "_cache_size", lambda: None)(),
        **more,
    }
    print("TOLD " + json.dumps(told))


distribute()
arguments: dict[str, Any] = {"batch_size": 16, "epochs": 3, "verbose": 0, "validation_data": (X[:32], Y[:32])}
if given.keras:
    keras.utils.set_random_seed(0)
    model = make()
    tell(model, model.fit(X, Y, shuffle=False, **arguments))
    sys.exit()
run = xptrain.run(
    "meshes",
    seed=0,
    key=given.key,
    resume=given.resume or "never",
    allow=[n for n in given.allow.split(",") if n],
)
with run:
    model = make()
    before = {r.key: describe_sharding(r.variable.value)["spec"] for r in records(model)}
    more = {"fused": True} if given.fused else {}
    history = run.fit(model, X, Y, shuffle=False, callbacks=[Stop(), Restored()], **arguments, **more)
    tell(model, history, grade=str(run.grade), step=run.step, began=Restored.digests)
