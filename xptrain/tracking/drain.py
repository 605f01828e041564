"""Delivery: sends a run's journal to the tracking store, each record at least once, harmlessly if twice."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from xptrain.errors import TrackerError
from xptrain.tracking import journal
from xptrain.tracking.attempts import Attempt, is_live, run_state
from xptrain.tracking.durable import exclusive, fsync
from xptrain.tracking.folder import Delivered, RunFolder, RunInfo
from xptrain.tracking.journal import Record
from xptrain.tracking.points import Point, points
from xptrain.tracking.tracker import Dataset, Tracker

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
    """

    run_id: str | None
    offset: int
    records: int
    status: str | None


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

    def deliver(self) -> Delivery:
        """Send what the store does not have yet.

        Returns:
            What was done.

        Raises:
            TrackerError: The store cannot be used now, or another process kept delivering for 2 minutes.
        """
        with exclusive(self._folder.deliver_lock, _LOCK_S):
            return self._deliver()

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

    def _deliver(self, look_up: bool = False) -> Delivery:
        self._records = 0
        self._told = self._folder.delivered
        size = self._durable_size()
        if look_up or size != self._told.offset:
            self._open()
            self._send(size)
        return Delivery(self._told.run_id, self._told.offset, self._records, self._told.status)

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
        except TrackerError:
            self._run_id = None  # the store may come back as another one: look the run up again
            raise

    def _send(self, size: int) -> None:
        waiting: list[Point] = []
        offset = self._told.offset
        for record, end in journal.read(self._folder.journal, offset, size, self._damaged):
            if record.kind == "metrics":
                waiting += points(record)
                offset = end
                self._records += 1
                if len(waiting) < _BATCH:
                    continue
            self._send_points(waiting, offset)
            waiting = []
            if record.kind != "metrics":
                self._tell(record)
                offset = end
                self._records += 1
                self._acknowledge(end)
        self._send_points(waiting, offset)

    def _send_points(self, waiting: list[Point], offset: int) -> None:
        if waiting:
            self._use(lambda tracker: tracker.log_points(waiting))
            self._acknowledge(offset)

    def _tell(self, record: Record) -> None:
        teller = _TELLERS.get(record.kind)
        if teller is None:
            _log.error("a record of the unknown kind %r was left out (a newer xptrain wrote it)", record.kind)
            return
        teller(self, record)

    def _attempt(self, record: Record) -> None:
        fields = record.fields
        head = f"xptrain.attempt.{fields['attempt']}"
        tags = {"xptrain.attempt": fields["attempt"], **{f"{head}.{k}": fields[k] for k in ("host", "pid")}}
        if fields.get("resumed_from") is not None:
            tags[f"{head}.resumed_from"] = fields["resumed_from"]
        self._use(lambda tracker: tracker.set_status("RUNNING", None))
        self._tags({**tags, f"{head}.ms": record.ms})
        self._told = replace(self._told, status="RUNNING")

    def _params(self, record: Record) -> None:
        values = _texts(record.fields["values"])
        changed = self._use(lambda tracker: tracker.log_params(values))
        self._tags({f"xptrain.changed.{key}": values[key] for key in changed})

    def _tags_record(self, record: Record) -> None:
        values = dict(record.fields["values"])
        if self._told.diverged and "xptrain.grade" in values:
            values["xptrain.grade"] = "approximate"
        self._tags(values)

    def _artifact(self, record: Record) -> None:
        file = self._folder.path / record.fields["file"]
        if file.exists():
            self._use(lambda tracker: tracker.log_artifact(file, record.fields["path"]))
        else:
            _log.error("the artifact %s is gone; it was not uploaded", file)
            self._tags({f"xptrain.missing.{file.name}": record.fields["file"]})

    def _dataset(self, record: Record) -> None:
        names = ("name", "digest", "source", "profile", "context")
        dataset = Dataset(**{name: _text(record.fields.get(name) or "") for name in names})
        self._use(lambda tracker: tracker.log_dataset(dataset))

    def _divergence(self, record: Record) -> None:
        fields = record.fields
        text = f"{fields['metric']} at step {fields['step']}: {fields['first']}, then {fields['second']}"
        if fields.get("again"):
            self._tags({"xptrain.logged_twice": text})
        elif not self._told.diverged:
            self._tags({"xptrain.divergence": text, "xptrain.grade": "approximate"})
            self._told = replace(self._told, diverged=True)

    def _status(self, record: Record) -> None:
        status, reason = record.fields["status"], record.fields.get("reason")
        self._tags({"xptrain.reason": reason} if reason else {})
        self._use(lambda tracker: tracker.set_status(status, record.ms))
        self._told = replace(self._told, status=status)

    def _tags(self, values: Mapping[str, Any]) -> None:
        texts = _texts(values)
        if texts:
            self._use(lambda tracker: tracker.set_tags(texts))

    def _damaged(self, damage: journal.Damage) -> None:
        _log.error("%s", damage)
        self._tags({"xptrain.journal_damaged": f"{damage.size} bytes at offset {damage.offset} were skipped"})

    def _acknowledge(self, offset: int) -> None:
        self._told = replace(self._told, offset=offset)
        self._folder.acknowledge(self._told)


_TELLERS: dict[str, Callable[[Drain, Record], None]] = {
    "attempt": Drain._attempt,
    "params": Drain._params,
    "tags": Drain._tags_record,
    "artifact": Drain._artifact,
    "dataset": Drain._dataset,
    "divergence": Drain._divergence,
    "status": Drain._status,
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in values.items()}


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
