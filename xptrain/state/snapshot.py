"""A snapshot: everything a run needs to go on from one step boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# First parts of leaf keys that name no variable of the train state: arrays of the host state, and what
# `on_train_end` changed in the last snapshot of a fit.
HOST: Final = "host/"
END: Final = "end/"


@dataclass(frozen=True)
class Cursor:
    """Where in the run the next batch lies.

    Args:
        fit: Number of the fit within the run, from 0.
        epoch: Epoch of that fit, as Keras counts it (from 0, or from `initial_epoch`).
        batch: Batches of this epoch that are trained already; 0 at the start of an epoch.
        done: True when the fit has ended and this snapshot is what it ended with.
    """

    fit: int
    epoch: int
    batch: int
    done: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The train state and the host state at one step boundary, owned by nobody else.

    Args:
        step: Train steps done since the run began.
        cursor: Where the next batch lies.
        leaves: Arrays by key. Keys use `/` between parts, for example `model/0.dense/kernel`,
            `optimizer/iteration` or `host/0` (arrays that belong to the host state).
            Values are JAX arrays (possibly sharded) or NumPy arrays that no step will donate.
        host: JSON-serialisable host state: RNGs, callback states, history, journal position.
        metrics: Logs of the epoch that ended at this step, `val_` ones included; empty inside an epoch.
        pinned: True when retention must not delete it (the last snapshot of a fit).
    """

    step: int
    cursor: Cursor
    leaves: Mapping[str, Any]
    host: Mapping[str, Any]
    metrics: Mapping[str, float] = field(default_factory=dict)
    pinned: bool = False
