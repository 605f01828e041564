"""Rows of points on their way into the journal: admitted once each, many steps to a record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from xptrain.errors import TrackerError
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import PointIndex


class Divergence(NamedTuple):
    """A point whose value differs from the one that is in the journal.

    Args:
        metric: Its metric.
        step: Its step.
        first: The value in the journal, which stays.
        second: The value that came later.
        again: True when one attempt logged both (a step logged twice, not a recomputation).
    """

    metric: str
    step: int
    first: float
    second: float
    again: bool


class Rows:
    """Gathers rows with the same metrics and writes them as one `metrics` record.

    Args:
        journal: Where to write.
        index: Decides which points are new.
        stamp: Fields of every record.
    """

    def __init__(self, journal: Journal, index: PointIndex, stamp: Mapping[str, Any] | None = None) -> None:
        self._journal = journal
        self._index = index
        self._stamp = stamp or {}
        self._names: tuple[str, ...] = ()
        self._steps: list[int] = []
        self._times: list[int] = []
        self._columns: list[list[float | None]] = []
        self._diverged: list[tuple[int, Divergence]] = []
        self.divergences = 0
        self.first_divergence: Divergence | None = None

    def add(self, ms: int, step: int, values: Mapping[str, float], volatile: Collection[str] = ()) -> None:
        """Take in the points of one step; those that are there already are left out.

        Args:
            ms: When they were logged, milliseconds since the epoch.
            step: Their step.
            values: Numbers by metric name.
            volatile: Metrics that measure time.

        Raises:
            TrackerError: The journal cannot be written.
        """
        names = tuple(values)
        problem: TrackerError | None = None
        if names != self._names or (self._times and ms < self._times[0]):
            # What was gathered is kept by the journal, whatever happens; this row must not be lost for it.
            try:
                self.write()
            except TrackerError as error:
                problem = error
            self._names, self._columns = names, [[] for _ in names]
        row: list[float | None]
        if self._index.admit_row(step, values):
            row = [*values.values()]
        else:
            if any(self._index.reads_journal(metric, step) for metric in names):
                try:
                    self.write()
                except TrackerError as error:
                    problem = error
            row = [self._admit(ms, m, step, value, m in volatile) for m, value in values.items()]
        if any(value is not None for value in row):
            self._steps.append(step)
            self._times.append(ms)
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
        if problem is not None:
            raise problem

    def write(self) -> None:
        """Write what was gathered.

        Raises:
            TrackerError: The journal cannot be written; it keeps what it was given and writes it later.
        """
        steps, times, columns = self._steps, self._times, self._columns
        self._steps, self._times, self._columns = [], [], [[] for _ in self._names]
        named = zip(self._names, columns, strict=True)
        if len(steps) == 1:
            values = {metric: column[0] for metric, column in named if column[0] is not None}
            self._journal.append("metrics", times[0], step=steps[0], values=values, **self._stamp)
        elif steps:
            kept = {metric: column for metric, column in named if any(value is not None for value in column)}
            after = [ms - times[0] for ms in times]
            self._journal.append("metrics", times[0], steps=steps, at=after, values=kept, **self._stamp)
        while self._diverged:
            ms, found = self._diverged.pop(0)
            self._journal.append("divergence", ms, **found._asdict(), **self._stamp)

    def _admit(self, ms: int, metric: str, step: int, value: float, volatile: bool) -> float | None:
        verdict = self._index.admit(metric, step, value, volatile)
        if verdict.kind == "new":
            return value
        if verdict.kind == "diverged" and verdict.first is not None:
            found = Divergence(metric, step, verdict.first, value, verdict.again)
            self._diverged.append((ms, found))
            if not found.again:
                self.divergences += 1
                self.first_divergence = self.first_divergence or found
        return None
