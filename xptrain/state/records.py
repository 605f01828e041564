"""A variable and the key under which a checkpoint knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["trainable", "non_trainable", "optimizer", "metrics", "outside"]


@dataclass(frozen=True)
class VariableRecord:
    """One variable of a model, its optimizer or its metrics.

    Args:
        key: Identity: position in the layer tree and variable name, for example `model/0.dense/kernel`.
            It does not depend on automatic names, on freezing or on what was built before.
        role: Which part of the train state holds it now. Evidence, not identity. `outside` is what
            layers hold and Keras gives to no step, such as the states of stateful recurrent layers.
        path: Keras's own path, with automatic names in it. Evidence, not identity.
        variable: The `keras.Variable`.
    """

    key: str
    role: Role
    path: str
    variable: Any
