"""What the loop tells whoever watches it, and what it can be told to begin with.

The loop knows nothing of runs, journals or checkpoints on disk: a run watches it through these few calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from xptrain.state.records import VariableRecord
from xptrain.state.snapshot import Cursor, Snapshot

OWN_LOOP = "own loop"


@dataclass(frozen=True)
class Plan:
    """What a fit is going to do; a resumed fit must have the same plan.

    Args:
        epochs: Where the epochs end.
        initial_epoch: Where they begin.
        source: `Source.describe()` of the training data.
        validation: The same of the validation data, or None.
        settings: Other arguments and settings that move bits, as JSON data.
        callbacks: Class names of the callbacks in order.
        model: `describe.describe_model` of the model.
        data: The arrays themselves: `{"x": …, "y": …, "sample_weight": …, "validation": …}`.
        files: Where the files that callbacks append to end now.
        note: What must be said with the grade.
    """

    epochs: int
    initial_epoch: int
    source: Mapping[str, Any]
    validation: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    callbacks: Sequence[str]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]] = ()
    note: str = ""

    @property
    def is_own_loop(self) -> bool:
        """Whether the user's own code, not a fit, trains the steps."""
        return self.source.get("kind") == OWN_LOOP


@dataclass(frozen=True)
class Restored:
    """A checkpoint that has been read and verified.

    Args:
        step: Train steps done when it was made.
        cursor: Where the next batch lies.
        leaves: Arrays by key.
        host: The host state.
    """

    step: int
    cursor: Cursor
    leaves: Mapping[str, Any]
    host: Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """Where a fit begins.

    Args:
        fit: Its number within the run.
        step: Train steps done before it.
        seed: Seed of the data order.
        restored: The checkpoint to go on from, or None to begin at the beginning.
        extend: True when a finished fit is to be trained further.
        files: `Plan.files` of an earlier attempt at this beginning, to which the files are cut back.
    """

    fit: int
    step: int
    seed: int
    restored: Restored | None = None
    extend: bool = False
    files: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Epoch:
    """What came out of one epoch.

    Args:
        epoch: Its number within the fit.
        step: Train steps done by its end.
        logs: All values that callbacks saw at its end.
        seconds: How long it took, by the wall clock.
        trained: Steps that this process trained of it.
    """

    epoch: int
    step: int
    logs: Mapping[str, Any]
    seconds: float
    trained: int


class Observer(Protocol):
    """Watches one fit.

    Attributes:
        files: Folder in which callbacks of Keras write instead of where they say; None as a rule.
    """

    files: Path | None

    def begin(self, plan: Plan, model: Any, records: Sequence[VariableRecord]) -> Start:
        """Called once, after the model is built and before the callbacks' `on_train_begin`."""

    def resumed(self, step: int) -> None:
        """Called when a checkpoint was written into the model; the hooks before it were repeats."""

    def ready(
        self, program: Callable[[], str | None], uncaptured: Sequence[str], changes: Sequence[Any]
    ) -> None:
        """Called before the first step, after any restore.

        Args:
            program: Returns the digest of the lowered step; None when the step is not compiled.
            uncaptured: What moves the fit and cannot be in a checkpoint.
            changes: Settings of callbacks that differ from those in the checkpoint.
        """

    def stopped(self) -> None:
        """Called when the fit ends, however it ends."""

    @property
    def wants_steps(self) -> bool:
        """Whether `due` must be asked after each step, not only after each epoch."""

    @property
    def stopping(self) -> bool:
        """Whether the fit shall stop at this step boundary; asked at each, so it must be cheap."""

    def stop(self) -> None:
        """Called at that boundary, when the state is saved; raises what ends the fit."""

    def step(self, step: int, logs: Mapping[str, Any], count: int = 1) -> None:
        """Called after each step, or after several that were one program; must not wait for anything.

        Args:
            step: Number of the last of these steps in the run.
            logs: Device scalars; arrays of shape (count,) for several steps.
            count: How many steps.
        """

    def before_step(self, trainer: Any, shapes: Callable[[], str], program: Callable[[], str | None]) -> None:
        """Called before a step of the user's own loop.

        Args:
            trainer: The `Trainer` that takes it.
            shapes: Returns the dtypes and shapes of the batch.
            program: Returns the digest of the lowered step.
        """

    def trained(self) -> None:
        """Called after a step of the user's own loop."""

    def due(self, step: int, steps_done: int, epochs_done: int | None = None) -> bool:
        """Tell whether a snapshot is wanted now.

        Args:
            step: Train steps done in the run.
            steps_done: Of these, how many since the last step boundary.
            epochs_done: At the end of an epoch, how many of this fit are done; None inside one.
        """

    def make_room(self) -> None:
        """Called before a snapshot is taken: no other one may be held after it."""

    def save(self, snapshot: Snapshot, uncaptured: Sequence[str]) -> None:
        """Called with a snapshot that was due, and with the last one of the fit (pinned).

        Args:
            snapshot: What to save.
            uncaptured: What is not in it although it moves the fit.
        """

    def epoch(self, epoch: Epoch) -> None:
        """Called at the end of each epoch, before its snapshot."""


class NoObserver:
    """Watches nothing: training without a run.

    Args:
        seed: Seed of the data order.
        fit: Number of the fit.
        step: Train steps done before it.
    """

    files: Path | None = None
    wants_steps = False
    stopping = False

    def __init__(self, seed: int, fit: int = 0, step: int = 0) -> None:
        self._start = Start(fit=fit, step=step, seed=seed)

    def begin(self, plan: Plan, model: Any, records: Sequence[VariableRecord]) -> Start:
        """Begin at the beginning."""
        return self._start

    def resumed(self, step: int) -> None:
        """Do nothing."""

    def ready(
        self, program: Callable[[], str | None], uncaptured: Sequence[str], changes: Sequence[Any]
    ) -> None:
        """Do nothing."""

    def step(self, step: int, logs: Mapping[str, Any], count: int = 1) -> None:
        """Do nothing."""

    def before_step(self, trainer: Any, shapes: Callable[[], str], program: Callable[[], str | None]) -> None:
        """Do nothing."""

    def trained(self) -> None:
        """Do nothing."""

    def stopped(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def due(self, step: int, steps_done: int, epochs_done: int | None = None) -> bool:
        """Never."""
        return False

    def make_room(self) -> None:
        """Do nothing."""

    def save(self, snapshot: Snapshot, uncaptured: Sequence[str]) -> None:
        """Do nothing."""

    def epoch(self, epoch: Epoch) -> None:
        """Do nothing."""
