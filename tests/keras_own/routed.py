"""A pytest plugin: `fit`, `evaluate`, `predict` and the three `*_on_batch` of every Keras model are ours.

    pytest -p tests.keras_own.routed …

Set `XPTRAIN_ROUTED=0` to leave Keras as it is, for the other side of the comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def route() -> None:
    """Put ours in the place of Keras's methods, for models and for layers with its trainer mixed in."""
    from keras.src.backend.jax.trainer import JAXTrainer

    from xptrain import Trainer

    def routed(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(Trainer(self), name)(*args, **kwargs)

        return method

    for name in METHODS:
        setattr(JAXTrainer, name, routed(name))


if os.environ.get("XPTRAIN_ROUTED", "1") != "0":
    route()
