"""Tools for test suites: prove that a fit resumes exactly, track in memory, die at a chosen moment."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xptrain import faults
from xptrain.checkpoint.receipts import plain
from xptrain.state.digest import digest_array, digest_json
from xptrain.state.records import VariableRecord
from xptrain.state.rng import seed_everything
from xptrain.state.snapshot import Snapshot
from xptrain.tracking.tracker import MemoryTracker
from xptrain.training.logs import flat, numbers
from xptrain.training.observer import Epoch, Plan, Restored, Start
from xptrain.training.trainer import Trainer

__all__ = ["MemoryTracker", "assert_resume_exact", "die_at", "state_digests"]


def die_at(moment: str, nth: int = 1) -> None:
    """Make this process end by SIGKILL at the n-th time that a named moment of saving comes.

    Args:
        moment: One of `xptrain.faults.MOMENTS`.
        nth: Which time, from 1.

    Raises:
        ValueError: If there is no such moment.

    Example:
        >>> die_at("committed", nth=2)  # doctest: +SKIP
    """
    if moment not in faults.MOMENTS:
        raise ValueError(f"no moment {moment!r}; there are {', '.join(faults.MOMENTS)}")
    left = [nth]

    def hook(name: str, step: int) -> None:
        if name == moment:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    faults.hooks.append(hook)


def state_digests(snapshot: Snapshot) -> dict[str, str]:
    """Return one digest for each leaf of a snapshot, and one, `host`, for its host state.

    Args:
        snapshot: Any snapshot.

    Returns:
        Digests (64 hexadecimal digits) by leaf key.

    Example:
        >>> state_digests(snapshot)["host"]  # doctest: +SKIP
    """
    digests = {key: digest_array(leaf) for key, leaf in snapshot.leaves.items()}
    # As text: the order of keys is part of a state.
    digests["host"] = digest_json(json.dumps(plain(snapshot.host)))
    return digests


def assert_resume_exact(
    make_model: Callable[[], Any],
    fit_arguments: Callable[[], Mapping[str, Any]],
    *,
    cuts: Sequence[int] | None = None,
    seed: int = 0,
    uncaptured: list[str] | None = None,
) -> int:
    """Assert that a fit cut at any step and resumed ends with the bits of the fit that was never cut.

    Trains once without a stop, keeping a snapshot at every step boundary. Then, for each cut, builds a new
    model under other global seeds, restores the snapshot, trains to the end, and compares every variable,
    every callback's state, the host generators, every step's logs, and the number of steps trained.

    Args:
        make_model: Returns a new compiled model.
        fit_arguments: Returns the arguments of `Trainer.fit`, with new callbacks each time.
        cuts: Steps after which to cut; None for all of them. Cuts beyond the end are passed over.
        seed: Seed of the straight fit.
        uncaptured: Receives what moves the fit and is in no checkpoint, for which a run's grade would be
            `approximate`. None: such a thing is a failure.

    Returns:
        How many cuts were tried.

    Raises:
        AssertionError: Names the cut and the leaves that differ, or what is in no checkpoint.

    Example:
        >>> assert_resume_exact(make_model, lambda: {"x": x, "y": y, "epochs": 2})  # doctest: +SKIP
    """
    straight = _train(make_model, fit_arguments, seed, seed)
    if uncaptured is not None:
        uncaptured += straight.uncaptured
    else:
        assert not straight.uncaptured, f"in no checkpoint: {', '.join(straight.uncaptured)}"
    end = straight.snapshots[-1]
    expected = state_digests(end)
    chosen = [s for s in straight.snapshots if cuts is None or s.step in cuts]
    for number, cut in enumerate(chosen):
        where = f"cut after step {cut.step} ({cut.cursor})"
        resumed = _train(make_model, fit_arguments, seed, seed + 1000 + number, cut)
        found = state_digests(resumed.snapshots[-1]) if resumed.snapshots else expected
        differing = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
        assert not differing, f"{where}: differs in {', '.join(differing[:8])}"
        assert len(resumed.steps) == end.step - cut.step, (
            f"{where}: trained {len(resumed.steps)} steps, not {end.step - cut.step}"
        )
        for step, logs in resumed.steps.items():
            assert repr(logs) == repr(straight.steps[step]), f"{where}: logs of step {step}: {logs}"
        assert resumed.history == straight.history, f"{where}: History differs"
        assert resumed.variables == straight.variables, f"{where}: the model ends with other variables"
        assert resumed.has_stopped == straight.has_stopped, f"{where}: model.stop_training differs"
    return len({cut.step for cut in chosen})


class _Watch:
    """Takes a snapshot at every step boundary and keeps every step's logs."""

    files: Path | None = None
    wants_steps = True
    # Also between the last step of an epoch and its end, where only a signal has a checkpoint made.
    stopping = True

    def __init__(self, seed: int, restored: Restored | None) -> None:
        self._start = Start(fit=0, step=0, seed=seed, restored=restored)
        self.snapshots: list[Snapshot] = []
        self.uncaptured: list[str] = []
        self.steps: dict[int, dict[str, float]] = {}
        self.history: Any = None
        self.variables: dict[str, str] = {}
        self.has_stopped = False

    def begin(self, plan: Plan, model: Any, records: Sequence[VariableRecord]) -> Start:
        self.records = records
        return self._start

    def ready(
        self, program: Callable[[], str | None], uncaptured: Sequence[str], changes: Sequence[Any]
    ) -> None:
        self._note(uncaptured)

    def step(self, step: int, logs: Mapping[str, Any], count: int = 1) -> None:
        for i in range(count):
            values = logs if count == 1 else {name: array[i] for name, array in flat(logs)}
            self.steps[step - count + 1 + i] = numbers(values)

    def before_step(self, trainer: Any, shapes: Callable[[], str], program: Callable[[], str | None]) -> None:
        pass

    def trained(self) -> None:
        pass

    def stopped(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def due(self, step: int, steps_done: int, epochs_done: int | None = None) -> bool:
        return True

    def resumed(self, step: int) -> None:
        pass

    def make_room(self) -> None:
        pass

    def save(self, snapshot: Snapshot, uncaptured: Sequence[str]) -> None:
        self.snapshots.append(snapshot)
        self._note(uncaptured)

    def _note(self, uncaptured: Sequence[str]) -> None:
        self.uncaptured += [name for name in uncaptured if name not in self.uncaptured]

    def epoch(self, epoch: Epoch) -> None:
        pass


def _train(
    make_model: Callable[[], Any],
    fit_arguments: Callable[[], Mapping[str, Any]],
    seed: int,
    global_seed: int,
    cut: Snapshot | None = None,
) -> _Watch:
    restored = None
    if cut is not None:
        # A restored checkpoint comes in buffers of its own; a snapshot is kept for later cuts.
        leaves = {key: leaf.copy() for key, leaf in cut.leaves.items()}
        restored = Restored(cut.step, cut.cursor, leaves, plain(cut.host))
    seed_everything(global_seed)
    model = make_model()
    watch = _Watch(seed, restored)
    history = Trainer.observed(model, watch, seed).fit(**{"verbose": 0, **fit_arguments()})
    # As text: NaN equals itself, and the order of keys counts.
    watch.history = repr((list(history.epoch), dict(history.history)))
    watch.variables = {r.key: digest_array(r.variable.value) for r in watch.records}
    watch.has_stopped = bool(model.stop_training)
    return watch
