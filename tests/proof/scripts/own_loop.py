"""A loop of the user's own with a checkpoint every 5 steps; STOP_AT is a step at which it is told to stop."""

import os
import signal
import time

import keras
import numpy as np

import xptrain

STOP_AT = int(os.environ.get("STOP_AT", "0"))

rng = np.random.default_rng(0)
x, y = rng.normal(size=(12, 8, 4)).astype("float32"), rng.normal(size=(12, 8, 1)).astype("float32")
with xptrain.run("own", seed=1, key="own", resume="auto") as run:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    trainer = run.trainer(model)
    for step in range(run.restore(trainer), 12):
        if step + 1 == STOP_AT:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
        loss = trainer.train_on_batch(x[step], y[step])
        run.log_metrics({"loss": float(loss)})
        if (step + 1) % 5 == 0:
            run.checkpoint(trainer)
