"""Experiment tracking and bit-for-bit exact resume for Keras 3 on JAX.

The public names are listed here and loaded when they are first used, so that `import xptrain` is cheap
and starts neither Keras nor JAX. `xptrain.testing` is public too, and imported by its own name.

Example:
    >>> import keras, xptrain                                                   # doctest: +SKIP
    >>> with xptrain.run("digits", seed=0, config={"width": 64}) as run:        # doctest: +SKIP
    ...     run.fit(make_model(run.config), x, y, epochs=20)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from xptrain.errors import (
    BackendError,
    ChangedError,
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    ConfigError,
    FencedError,
    InexactError,
    NotCompiledError,
    RestoreMismatchError,
    RunLiveError,
    RunNotFoundError,
    TrackerError,
    UsageError,
    XptrainError,
)

if TYPE_CHECKING:
    from xptrain.analysis.explain import explain
    from xptrain.analysis.proof.verify import verify
    from xptrain.analysis.runs import compare, history, runs
    from xptrain.analysis.weights import load_weights
    from xptrain.checkpoint.policies import best, every, keep
    from xptrain.data.stateful import Stateful
    from xptrain.session.begin import run
    from xptrain.session.run import Run
    from xptrain.tracking.tracker import Tracker
    from xptrain.training.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "ChangedError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointWriteError",
    "ConfigError",
    "FencedError",
    "InexactError",
    "NotCompiledError",
    "RestoreMismatchError",
    "Run",
    "RunLiveError",
    "RunNotFoundError",
    "Stateful",
    "Tracker",
    "TrackerError",
    "Trainer",
    "UsageError",
    "XptrainError",
    "best",
    "compare",
    "every",
    "explain",
    "history",
    "keep",
    "load_weights",
    "run",
    "runs",
    "verify",
]

_HOMES: Final = {
    "Run": "xptrain.session.run",
    "Stateful": "xptrain.data.stateful",
    "Tracker": "xptrain.tracking.tracker",
    "Trainer": "xptrain.training.trainer",
    "best": "xptrain.checkpoint.policies",
    "compare": "xptrain.analysis.runs",
    "every": "xptrain.checkpoint.policies",
    "explain": "xptrain.analysis.explain",
    "history": "xptrain.analysis.runs",
    "keep": "xptrain.checkpoint.policies",
    "load_weights": "xptrain.analysis.weights",
    "run": "xptrain.session.begin",
    "runs": "xptrain.analysis.runs",
    "verify": "xptrain.analysis.proof.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'xptrain' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
