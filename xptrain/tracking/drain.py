"""Delivery: sends a run's journal to the tracking store, each record at least once, harmlessly if twice."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from xptrain.errors import TrackerError
from xptrain.secrets.redact import redact_text
from xptrain.tracking import journal, postponed, telling
from xptrain.tracking.aside import TRIES, leave_out, understood
from xptrain.tracking.attempts import Attempt, is_live, run_state
from xptrain.tracking.durable import exclusive, fsync
from xptrain.tracking.folder import Delivered, RunFolder, RunInfo
from xptrain.tracking.points import Point, points
from xptrain.tracking.records import Hearing, Record
from xptrain.tracking.refusals import Failed, FilesFailed, Refused
from xptrain.tracking.telling import set_tags
from xptrain.tracking.tracker import Tracker

T = TypeVar("T")
TrackerFactory = Callable[[RunInfo], Tracker]
_BATCH = 1000
_LOCK_S = 120.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """What a delivery did.

    Args:
        run_id: The run's id in the store, None when there was nothing to send yet.
        offset: Position in the journal up to which the store has everything.
        records: How many records were sent.
        status: The last status told to the store.
        postponed: How many records wait for an artifact store that cannot be used now.
    """

    run_id: str | None
    offset: int
    records: int
    status: str | None
    postponed: int = 0


class Drain:
    """Delivers one run again and again, with one tracker.

    Args:
        folder: The run.
        tracker_factory: Makes its tracker, when there is first something to send.
    """

    def __init__(self, folder: RunFolder, tracker_factory: TrackerFactory) -> None:
        self._folder = folder
        self._factory = tracker_factory
        self._tracker: Tracker | None = None
        self._run_id: str | None = None
        self._told = Delivered()
        self._records = 0
        self._files_again = 0.0

    def deliver(self, *, most: int | None = None) -> Delivery:
        """Send what the store does not have yet.

        Args:
            most: About how many points to send before returning; None for all that wait.

        Returns:
            What was done.

        Raises:
            TrackerError: The store cannot be used now, or another process kept delivering for 2 minutes.
        """
        with exclusive(self._folder.deliver_lock, _LOCK_S):
            return self._deliver(most=most)

    def reconcile(self, alive: Callable[[Attempt], bool] = is_live) -> Delivery:
        """Deliver, and set KILLED when the last attempt is dead and left no final status.

        Args:
            alive: Tells whether an attempt still runs.

        Returns:
            What was done.

        Raises:
            TrackerError: As in `deliver`.
        """
        with exclusive(self._folder.deliver_lock, _LOCK_S):
            # Liveness first: a process may write its status and end between the two looks.
            before = run_state(self._folder).attempt
            if before is None or alive(before):
                return self._deliver()
            done = self._deliver(look_up=run_state(self._folder).status == "RUNNING")
            state = run_state(self._folder)
            # An attempt that begins from here on is behind our offset: its record sets RUNNING again.
            if state.attempt != before or state.status != "RUNNING" or self._told.status == "KILLED":
                return done
            reason = f"process {before.pid} on {before.host} ended without a final status"
            self._tags({"xptrain.reason": reason})
            self._use(lambda tracker: tracker.set_status("KILLED", state.last_ms))
            self._told = replace(self._told, status="KILLED")
            self._acknowledge(self._told.offset)
            return replace(done, status="KILLED")

    def close(self) -> None:
        """Close the tracker."""
        if self._tracker is not None:
            self._tracker.close()
        self._tracker, self._run_id = None, None

    def _deliver(self, look_up: bool = False, most: int | None = None) -> Delivery:
        self._records = 0
        self._told = self._folder.delivered
        size = self._durable_size()
        again = bool(self._told.postponed) and time.monotonic() >= self._files_again
        if look_up or again or size != self._told.offset:
            self._open()
            if again:
                self._send_postponed()
            self._send(size, math.inf if most is None else most)
        told = self._told
        return Delivery(told.run_id, told.offset, self._records, told.status, len(told.postponed))

    def _durable_size(self) -> int:
        # What the store has, the journal must never lose: a lost point would be computed again with
        # another timestamp and appear twice.
        try:
            fd = os.open(self._folder.journal, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._told.offset
        try:
            fsync(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _open(self) -> None:
        info = self._folder.info
        if self._tracker is None:
            self._tracker = self._factory(info)
        if self._run_id is None:
            self._run_id = self._tracker.open(info, self._told.run_id)
        if self._told.run_id != self._run_id:
            # Another store than last time: it gets everything from the beginning.
            self._told = Delivered(run_id=self._run_id)
            self._folder.acknowledge(self._told)

    def _use(self, call: Callable[[Tracker], T]) -> T:
        assert self._tracker is not None
        try:
            return call(self._tracker)
        except Exception as error:
            self._run_id = None  # the store may come back as another one: look the run up again
            if isinstance(error, TrackerError):
                raise
            kind = TrackerError if isinstance(error, OSError) else Failed
            raise kind(
                "the tracker failed", found=redact_text(f"{type(error).__name__}: {error}")[0][:500]
            ) from error

    def _send(self, size: int, most: float) -> None:
        waiting: list[Point] = []
        offset = self._told.offset
        hearing = Hearing(self._told.attempt)
        late: set[int] = set()
        for record, end in journal.scan(self._folder.journal, offset, size, self._damaged):
            if not hearing.counts(record):
                self._late(record, hearing.attempt, late)
                offset = end
                continue
            self._told = replace(self._told, attempt=hearing.attempt)
            if record.kind == "metrics":
                waiting += self._unfolded(record)
                offset = end
                self._records += 1
                if len(waiting) < _BATCH:
                    continue
            self._send_points(waiting, offset)
            most -= len(waiting)
            waiting = []
            if record.kind != "metrics":
                self._tell_or_postpone(record, offset)
                offset = end
                self._records += 1
                self._acknowledge(end)
            if most <= 0:
                return
        self._send_points(waiting, offset)

    def _send_points(self, waiting: list[Point], offset: int) -> None:
        self._each(waiting, lambda some: self._use(lambda tracker: tracker.log_points(some)))
        if offset > self._told.offset:
            self._acknowledge(offset)

    def _tell_or_postpone(self, record: Record, begin: int) -> None:
        # While older files wait, newer ones do too, which an older one of the same name would replace.
        if record.kind != "artifact" or not self._told.postponed:
            try:
                self._tell(record)
                return
            except FilesFailed as error:
                self._files_failed(error, len(self._told.postponed) + 1)
        self._told = replace(self._told, postponed=(*self._told.postponed, begin))

    def _send_postponed(self) -> None:
        while self._told.postponed:
            begin, *rest = self._told.postponed
            record = postponed.record_at(self._folder, begin)
            try:
                if record is not None:
                    self._tell(record)
            except FilesFailed as error:
                self._files_failed(error, len(rest) + 1)
                return
            if not rest:
                self._tags(postponed.tags(0, None))
            self._told = replace(self._told, postponed=tuple(rest))
            self._folder.acknowledge(self._told)
            self._records += 1

    def _files_failed(self, error: FilesFailed, count: int) -> None:
        self._files_again = time.monotonic() + postponed.AGAIN_S
        _log.warning("%s", error)
        # Also the proof that the store itself works: when this fails, the files were not to blame.
        self._tags(postponed.tags(count, error))

    def _tell(self, record: Record) -> None:
        def tell(part: Record) -> None:
            with understood():
                self._told = telling.tell(part, self._folder, self._told, self._use)

        values = record.fields.get("values")
        if isinstance(values, Mapping):  # params and tags: a bad one must not take its neighbours along
            fields = record.fields
            self._each(
                list(values.items()),
                lambda some: tell(replace(record, fields={**fields, "values": dict(some)})),
            )
        else:
            self._each([record], lambda some: tell(record))

    def _unfolded(self, record: Record) -> list[Point]:
        found: list[Point] = []

        def unfold(some: Sequence[Record]) -> None:
            with understood():
                found.extend(list(points(record)))

        self._each([record], unfold)
        return found

    def _late(self, record: Record, newest: int, told: set[int]) -> None:
        attempt = record.fields["attempt"]
        if attempt not in told:
            told.add(attempt)
            text = f"it went on writing after attempt {newest} had begun; what it wrote was left out"
            _log.warning("attempt %d: %s", attempt, text)
            self._tags({f"xptrain.attempt.{attempt}.fenced": text})

    def _each(self, items: Sequence[T], send: Callable[[Sequence[T]], object]) -> None:
        """Send items; those at which a working store fails again and again are left out.

        Raises:
            TrackerError: The store cannot be used now, or the items have not failed often enough yet.
        """
        try:
            if items:
                send(items)
            return
        except Refused:
            pass
        except Failed:
            self._told = replace(self._told, tries=self._told.tries + 1)
            self._folder.acknowledge(self._told)
            if self._told.tries < TRIES:
                raise
        left_out = leave_out(items, send)
        for item, error in left_out:
            _log.error("left out, since the store does not take it: %s (%s)", item, error.found)
        if left_out:
            item, error = left_out[0]
            more = f", and {len(left_out) - 1} more (see recorder.log)" if len(left_out) > 1 else ""
            # Also the proof that the store takes something: when this fails, nothing counts as left out.
            self._tags({"xptrain.refused": f"{str(item)[:500]}: {error.found or error.what}{more}"})

    def _tags(self, values: Mapping[str, Any]) -> None:
        set_tags(self._use, values)

    def _damaged(self, damage: journal.Damage) -> None:
        _log.error("%s", damage)
        self._tags({"xptrain.journal_damaged": f"{damage.size} bytes at offset {damage.offset} were skipped"})

    def _acknowledge(self, offset: int) -> None:
        self._told = replace(self._told, offset=offset, tries=0)
        self._folder.acknowledge(self._told)


def deliver(folder: RunFolder, tracker_factory: TrackerFactory) -> Delivery:
    """Send what the tracking store does not have of a run yet.

    Args:
        folder: The run.
        tracker_factory: Makes the run's tracker; `stores.open_tracker` for MLflow.

    Returns:
        What was done.

    Raises:
        TrackerError: The store cannot be used now. Nothing is lost: call again later.

    Example:
        >>> deliver(find("@last", home()), open_tracker)  # doctest: +SKIP
    """
    with closing(Drain(folder, tracker_factory)) as drain:
        return drain.deliver()


def reconcile(
    folder: RunFolder, tracker_factory: TrackerFactory, alive: Callable[[Attempt], bool] = is_live
) -> Delivery:
    """Deliver a run, and mark it KILLED when its last attempt is dead and left no final status.

    Args:
        folder: The run.
        tracker_factory: Makes the run's tracker.
        alive: Tells whether an attempt still runs; give one that knows the lock's heartbeat where runs
            come from several machines.

    Returns:
        What was done.

    Raises:
        TrackerError: The store cannot be used now.
    """
    with closing(Drain(folder, tracker_factory)) as drain:
        return drain.reconcile(alive)
