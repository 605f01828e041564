"""Where two runs part: the first state and the first logged value that are not the same in both."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xptrain.analysis.reading import Reading
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointDamagedError
from xptrain.provenance.sharding import initial_digests
from xptrain.state.snapshot import END, HOST
from xptrain.tracking import journal
from xptrain.tracking.points import points, same

VOLATILE = "time/"
Points = Mapping[str, Mapping[int, tuple[int, float]]]


@dataclass(frozen=True)
class StateParting:
    """Two states of one step that differ.

    Args:
        step: Their step; 0 for the variables before the first step.
        leaves: Keys of the tensors that both have and that differ.
        compared: Tensors that both have.
        only: Keys that one of the two has and the other lacks.
    """

    step: int
    leaves: tuple[str, ...]
    compared: int
    only: tuple[str, ...] = ()

    @property
    def counted(self) -> str:
        """How many tensors differ, in words; those that one of the two lacks are among them."""
        differing, known = len(self.leaves) + len(self.only), self.compared + len(self.only)
        lacking = f" ({len(self.only)} in one run only)" if self.only else ""
        return f"{differing} of {known} tensors{lacking}"

    def named(self, most: int) -> str:
        """Return in words which tensors differ, the model's own first: what an optimizer holds follows.

        Args:
            most: How many are named.
        """
        differing = [*self.leaves, *(f"{name} (in one only)" for name in self.only)]
        names = sorted(differing, key=lambda name: not name.startswith("model/"))
        more = [f"and {len(names) - most} more"] if len(names) > most else []
        return ", ".join([*names[:most], *more])


@dataclass(frozen=True)
class PointParting:
    """The first logged value that differs.

    Args:
        metric: Name of the metric.
        step: Its step: train steps for `batch/`, the epoch number for `train/` and `val/`.
        values: The value of each run.
    """

    metric: str
    step: int
    values: tuple[float, float]


@dataclass(frozen=True)
class Parting:
    """How far two runs go together.

    Args:
        last_equal: Last step before they part at which both have a receipt of the same state; None without.
        state: The first state that differs.
        point: The first logged value that differs.
        states: How many steps both have a receipt for.
        points: How many (metric, step) both logged.
        initial_known: Whether the variables before the first step could be compared.
    """

    last_equal: int | None
    state: StateParting | None
    point: PointParting | None
    states: int
    points: int
    initial_known: bool

    @property
    def by_step(self) -> int | None:
        """Train step by which they have parted; None when they did not, or only an epoch is known."""
        batch = self.point.step if self.point and self.point.metric.startswith("batch/") else None
        state = self.state.step if self.state else None
        return min((step for step in (batch, state) if step is not None), default=None)

    @property
    def parted(self) -> bool:
        """Whether anything differs."""
        return self.state is not None or self.point is not None


def part(readings: tuple[Reading, Reading], manifests: Sequence[Mapping[str, Any]]) -> Parting:
    """Find where two runs part.

    Args:
        readings: The two runs.
        manifests: The manifest under which each one left step 0, empty where there is none.

    Returns:
        The last state that is the same, and the first state and value that are not.
    """
    first, second = (receipts(reading) for reading in readings)
    initial = [initial_digests(manifest) for manifest in manifests]
    known = all(initial)
    parting = _compare(0, *initial) if known else None
    last_equal = 0 if known and parting is None else None
    count = 0
    for step in sorted(first.keys() & second.keys()):
        count += 1
        if parting is None:
            parting = compare_receipts(step, first[step], second[step])
            last_equal = step if parting is None else last_equal
    point, shared = first_point(*(points_of(reading.folder.journal) for reading in readings))
    return Parting(last_equal, parting, point, count, shared, known)


def receipts(reading: Reading) -> dict[int, list[Receipt]]:
    """Return every receipt of a run by step, those of deleted checkpoints included, in order of saving."""
    found: dict[int, list[Receipt]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unreadable lines are told by `ledger_notes`
        for receipt in reading.checkpoints.ledger.history():
            found.setdefault(receipt.step, []).append(receipt)
    for step in reading.checkpoints.steps():
        if step not in found:
            try:
                found[step] = [reading.checkpoints.receipt_in(step)]
            except CheckpointDamagedError:
                continue
    return found


def ledger_notes(reading: Reading) -> list[str]:
    """Return what is wrong with a run's ledger, in words; call it after `receipts`."""
    ledger, key = reading.checkpoints.ledger, reading.info.key
    notes = []
    if ledger.bad_lines:
        count = len(ledger.bad_lines)
        notes.append(f"{key}: {count} line{'s' if count > 1 else ''} of its ledger cannot be read, left out")
    if not reading.live and ledger.path.is_file() and _is_torn(ledger.path.read_bytes()):
        notes.append(f"{key}: the last line of its ledger is torn, left out")
    return notes


def _is_torn(text: bytes) -> bool:
    return bool(text) and not text.endswith(b"\n")


def _pair(first: Sequence[Receipt], second: Sequence[Receipt]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the digests of one step to compare: of the states that the runs went on from, so the last ones.

    Where one run's fit ended and the other's went on, the variables as they were trained are compared: the
    first has others besides (the weights as the fit left them) and callbacks that have seen their end.
    """
    for done in (False, True):
        of_a = [receipt for receipt in first if receipt.cursor.done is done]
        of_b = [receipt for receipt in second if receipt.cursor.done is done]
        if of_a and of_b:
            return _digests(of_a[-1]), _digests(of_b[-1])
    return _digests(first[-1], but=(END, HOST)), _digests(second[-1], but=(END, HOST))


def compare_receipts(step: int, first: Sequence[Receipt], second: Sequence[Receipt]) -> StateParting | None:
    """Compare two states of one step by their receipts, each the last of those that were saved of it.

    Args:
        step: The step.
        first: Receipts of one side, in order of saving.
        second: Those of the other.

    Returns:
        What differs, or None.
    """
    return _compare(step, *_pair(first, second))


def _digests(receipt: Receipt, but: tuple[str, ...] = ()) -> dict[str, str]:
    return {leaf.path: leaf.digest for leaf in receipt.leaves if not leaf.path.startswith(but)}


def _compare(step: int, first: Mapping[str, str], second: Mapping[str, str]) -> StateParting | None:
    both = [path for path in first if path in second]
    leaves = tuple(path for path in both if first[path] != second[path])
    only = tuple(sorted(first.keys() ^ second.keys()))
    return StateParting(step, leaves, len(both), only) if leaves or only else None


def points_of(path: Path) -> Points:
    """Return the points of a journal with their places in it; the first value counts, as in MLflow.

    Args:
        path: The journal; one that is not there has none.
    """
    found: dict[str, dict[int, tuple[int, float]]] = {}
    place = 0
    for record, _ in journal.read(path):
        for point in points(record) if record.kind == "metrics" else ():
            if not point.metric.startswith(VOLATILE):
                place += 1
                found.setdefault(point.metric, {}).setdefault(point.step, (place, point.value))
    return found


def first_point(first: Points, second: Points) -> tuple[PointParting | None, int]:
    """Return the first point that differs, and the number of points that both have.

    A metric's points go by their step. Steps of several metrics may count different things (train steps,
    epochs), so between metrics the order of logging decides.
    """
    found: list[tuple[int, PointParting]] = []
    shared = 0
    for metric in first:
        steps = sorted(first[metric].keys() & second.get(metric, {}).keys())
        shared += len(steps)
        for step in steps:
            (place, a), (_, b) = first[metric][step], second[metric][step]
            if not same(a, b):
                found.append((place, PointParting(metric, step, (a, b))))
                break
    return min(found, key=lambda item: item[0])[1] if found else None, shared
