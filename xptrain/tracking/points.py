"""Points, and the rule that each (metric, step) is told exactly once (law L7)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from xptrain.tracking.journal import Record, read
from xptrain.tracking.records import Hearing


class Point(NamedTuple):
    """One value of one metric.

    Args:
        metric: Its name, as the user or Keras wrote it.
        step: Train step or epoch number.
        value: The value; nan and infinities are values too.
        ms: When it was logged, milliseconds since the epoch.
    """

    metric: str
    step: int
    value: float
    ms: int


class Verdict(NamedTuple):
    """What is to be done with a point.

    Args:
        kind: "new": write it. "same": it is there already. "diverged": another value is there, which wins.
        first: The value that is there, if one is.
        again: True when this same attempt logged that value (a step logged twice, not a recomputation).
    """

    kind: Literal["new", "same", "diverged"]
    first: float | None = None
    again: bool = False


def points(record: Record) -> Iterator[Point]:
    """Unfold a `metrics` record, of one step or of many, in the order in which its points were logged.

    Args:
        record: A record of kind `metrics`: `step` and `values` {metric: value}, or `steps`, `at`
            (milliseconds after the record's `ms`) and `values` {metric: one value or null per step}.

    Yields:
        Its points.
    """
    fields = record.fields
    if "step" in fields:
        for metric, value in fields["values"].items():
            yield Point(metric, fields["step"], float(value), record.ms)
        return
    for row, (step, after) in enumerate(zip(fields["steps"], fields["at"], strict=True)):
        for metric, column in fields["values"].items():
            if column[row] is not None:
                yield Point(metric, step, float(column[row]), record.ms + after)


def same(first: float, second: float) -> bool:
    """Tell whether two values are the same point: equal bits, any nan equal to any nan."""
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return first == second and math.copysign(1, first) == math.copysign(1, second)


class PointIndex:
    """Which points a run has told already.

    Memory: one entry per metric whose steps only grow; after a resume also the points between the
    checkpoint and the stop, until they are recomputed. Only a metric whose steps go *backwards* costs
    more: its points are then read from the journal once and kept (about 150 bytes a point).

    Args:
        path: The journal that such points are read from; the late words of an attempt that lost the run do
            not count.
        begun: Position in it where this attempt's points begin.

    Example:
        >>> index = PointIndex(Path("journal.jsonl"))
        >>> index.admit("loss", 0, 0.5).kind, index.admit("loss", 0, 0.5).kind
        ('new', 'same')
    """

    def __init__(self, path: Path, begun: int = 0) -> None:
        self._path = path
        self._begun = begun
        self._start = self._read_to = begun
        self._hearing = Hearing()
        self._top: dict[str, tuple[int, float, bool]] = {}
        self._ahead: dict[str, dict[int, float]] = {}
        self._all: dict[str, dict[int, tuple[float, bool]]] = {}
        self._closely: set[str] = set()  # metrics that stand in one of the latter two

    @classmethod
    def from_journal(cls, path: Path, start: int = 0) -> PointIndex:
        """Build the index of a run that is resumed.

        Args:
            path: The journal, already repaired (`Journal(path)` does that).
            start: Position that was kept with the checkpoint; points behind it will be computed again.

        Returns:
            An index that knows every point told so far.
        """
        index = cls(path)
        index._start = start
        index.catch_up()
        return index

    def catch_up(self, stop: int | None = None) -> None:
        """Take in what another attempt has written meanwhile, up to the record with which this one begins.

        Args:
            stop: Position behind that record; None for all that is there.
        """
        for record, end in read(self._path, self._read_to, stop, hearing=self._hearing):
            self._begun = self._read_to = end
            if record.kind != "metrics":
                continue
            for point in points(record):
                if end > self._start:
                    self._ahead.setdefault(point.metric, {}).setdefault(point.step, point.value)
                else:
                    self._remember(point.metric, point.step, point.value, own=False)
        self._closely |= set(self._ahead)

    def admit_row(self, step: int, values: Mapping[str, float]) -> bool:
        """Admit all points of a step at once when each is plainly new; the fast way of `admit`.

        Args:
            step: Their step.
            values: Numbers by metric.

        Returns:
            False, with nothing remembered, when a point needs a closer look.
        """
        for metric in values:
            top = self._top.get(metric)
            if metric in self._closely or (top is not None and step <= top[0]):
                return False
        for metric, value in values.items():
            self._top[metric] = (step, value, True)
        return True

    def reads_journal(self, metric: str, step: int) -> bool:
        """Tell whether `admit` will read the journal, so that it must hold every point admitted before."""
        top = self._top.get(metric)
        within = top is not None and step < top[0]
        return within and metric not in self._all and step not in self._ahead.get(metric, ())

    def admit(self, metric: str, step: int, value: float, volatile: bool = False) -> Verdict:
        """Say what is to be done with a point, and remember it.

        Args:
            metric: Name of the metric.
            step: Its step.
            value: Its value.
            volatile: True for values that measure time: a differing one is "same" (it is skipped).

        Returns:
            The verdict; after "new" the caller writes the point to the journal.
        """
        known = self._known(metric, step)
        if known is None:
            self._remember(metric, step, value)
            return Verdict("new")
        first, own = known
        if volatile or same(first, value):
            return Verdict("same", first, own)
        return Verdict("diverged", first, own)

    def _known(self, metric: str, step: int) -> tuple[float, bool] | None:
        """Return the first value of a point, and whether this attempt logged it."""
        recomputed = self._ahead.get(metric, {}).pop(step, None)
        if recomputed is not None:
            if not self._ahead[metric]:
                del self._ahead[metric]
                self._closely.discard(metric)
            # From now on the same step is a second logging within this attempt.
            self._remember(metric, step, recomputed)
            return recomputed, False
        top = self._top.get(metric)
        if top is None or step > top[0]:
            return None
        if step == top[0]:
            return top[1:]
        if metric not in self._all:
            self._all[metric] = self._read_all(metric)
            self._closely.add(metric)
        return self._all[metric].get(step)

    def _remember(self, metric: str, step: int, value: float, own: bool = True) -> None:
        top = self._top.get(metric)
        if top is None or step >= top[0]:
            self._top[metric] = (step, value, own)
        if metric in self._all:
            self._all[metric][step] = (value, own)

    def _read_all(self, metric: str) -> dict[int, tuple[float, bool]]:
        found: dict[int, tuple[float, bool]] = {}
        for record, end in read(self._path):
            if record.kind == "metrics" and metric in record.fields["values"]:
                for point in points(record):
                    if point.metric == metric:
                        found.setdefault(point.step, (point.value, end > self._begun))
        return found
