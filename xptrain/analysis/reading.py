"""What one run's folder says, read in one pass: attempts, progress, last values, and the status that is true.

Only files are read: no tracking store is asked, and neither MLflow nor JAX is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from xptrain.analysis.status import RUNNING, is_running, true_status
from xptrain.checkpoint.folder import Folder
from xptrain.checkpoint.lock import RunLock
from xptrain.checkpoint.receipts import Receipt
from xptrain.session.manifests import Manifests
from xptrain.tracking import journal
from xptrain.tracking.attempts import Attempt
from xptrain.tracking.folder import RunFolder, RunInfo

HIDDEN = ("batch/", "time/")


@dataclass
class AttemptFacts:
    """One process execution of a run, as its journal tells it.

    Args:
        attempt: Number, process, machine and start.
        status: FINISHED, FAILED or KILLED; RUNNING only while its process lives.
        reason: Why, if that is known.
        from_step: Step it went on from; None when it ended before training.
        to_step: Last step that it is known to have trained.
        ended_ms: When it ended, or was last heard of; milliseconds since the epoch.
        refused: Why it was not let train, if it was not; its status is then that of the attempt before.
    """

    attempt: Attempt
    status: str = RUNNING
    reason: str | None = None
    from_step: int | None = None
    to_step: int = 0
    ended_ms: int = 0
    refused: str | None = None

    @property
    def trained(self) -> int:
        """Steps that it trained."""
        return max(0, self.to_step - self.from_step) if self.from_step is not None else 0


@dataclass
class Reading:
    """A run as its folder tells it.

    Args:
        folder: The run's folder.
        info: Its identity.
        run_id: MLflow run id; None before the first contact.
        attempts: Its attempts in order.
        tags: Its tags.
        params: Its params.
        last: Last step and value of each metric, those under `batch/` and `time/` left out.
        step: Train steps done.
        epochs: Epochs done, over all fits.
        divergences: Points that came out differently when they were computed again, in words.
        undelivered: Bytes of the journal that the tracking store does not have.
        postponed: How many of its records wait for an artifact store that could not be used.
        told: Last status told to the tracking store.
        live: Whether a process trains it now.
    """

    folder: RunFolder
    info: RunInfo
    run_id: str | None = None
    attempts: list[AttemptFacts] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    last: dict[str, tuple[int, float]] = field(default_factory=dict)
    step: int = 0
    epochs: int = 0
    divergences: list[str] = field(default_factory=list)
    undelivered: int = 0
    postponed: int = 0
    told: str | None = None
    live: bool = False

    @property
    def status(self) -> str:
        """FINISHED, FAILED or KILLED; RUNNING only while a process trains the run."""
        return true_status(self.attempts[-1].status if self.attempts else RUNNING, self.live)

    @property
    def reason(self) -> str | None:
        """Why the run ended as it did, if that is known."""
        return self.attempts[-1].reason if self.attempts and not self.live else None

    @property
    def grade(self) -> str:
        """How exact the run is, with reasons; empty before the first fit."""
        told = self.tags.get("xptrain.grade", "")
        if self.divergences and not told.startswith("approximate"):
            return f"approximate: {len(self.divergences)} points came out differently"
        return told

    @property
    def unsettled(self) -> bool:
        """Whether the run ended and the tracking store does not know all of it yet."""
        return not self.live and (self.undelivered > 0 or self.told == RUNNING)

    @cached_property
    def checkpoints(self) -> Folder:
        """The run's checkpoint folder."""
        return Folder(self.info.checkpoint_dir)

    @cached_property
    def receipts(self) -> list[Receipt]:
        """The receipts of the checkpoints on disk, by step; nothing is verified."""
        return self.checkpoints.receipts()

    def manifest(self, fit: int = 0) -> dict[str, Any]:
        """Return the manifest of the newest attempt that trained; empty when there is none."""
        newest = max((facts.attempt.attempt for facts in self.attempts), default=0)
        return Manifests(self.folder.path).last(newest + 1, fit) or {}


def read(folder: RunFolder) -> Reading:
    """Read a run.

    Args:
        folder: The run.

    Returns:
        What its files say now; a journal that is being written is read as far as it is whole.

    Raises:
        TrackerError: The journal or the identity cannot be read.
    """
    info, delivered = folder.info, folder.delivered
    reading = Reading(
        folder, info, delivered.run_id, told=delivered.status, postponed=len(delivered.postponed)
    )
    size = 0
    for record, end in journal.read(folder.journal):
        size = end
        if record.kind in _TAKERS:
            _TAKERS[record.kind](reading, record)
        if reading.attempts:
            reading.attempts[-1].ended_ms = record.ms + max(record.fields.get("at", (0,)))
    reading.undelivered = max(0, size - delivered.offset)
    reading.step = max((facts.to_step for facts in reading.attempts), default=0)
    last = reading.attempts[-1] if reading.attempts else None
    reading.live = is_running(
        last.attempt if last else None,
        last.status if last else RUNNING,
        RunLock(Path(info.checkpoint_dir)).peek(),
    )
    if last is not None and not reading.live:
        last.status = true_status(last.status, live=False)
    return reading


def _attempt(reading: Reading, record: journal.Record) -> None:
    if reading.attempts:
        earlier = reading.attempts[-1]
        earlier.status = true_status(earlier.status, live=False)
    fields = record.fields
    known = (fields["attempt"], fields["pid"], fields["pid_started"], fields["host"])
    began = Attempt(*known, fields.get("resumed_from"), record.ms)
    # The first attempt has nothing to go on from.
    reading.attempts.append(AttemptFacts(began, from_step=0 if began.attempt == 1 else began.resumed_from))


def _status(reading: Reading, record: journal.Record) -> None:
    if reading.attempts:
        reading.attempts[-1].status = record.fields["status"]
        reading.attempts[-1].reason = record.fields.get("reason")


def _tags(reading: Reading, record: journal.Record) -> None:
    reading.tags |= {name: str(value) for name, value in record.fields["values"].items()}
    if not reading.attempts:
        return
    now = reading.attempts[-1]
    head = f"xptrain.attempt.{now.attempt.attempt}"
    if (start := record.fields["values"].get(f"{head}.from_step")) is not None:
        now.from_step = int(start)
    now.refused = record.fields["values"].get(f"{head}.refused", now.refused)
    now.to_step = max(now.to_step, int(record.fields["values"].get(f"{head}.to_step", 0)))


def _params(reading: Reading, record: journal.Record) -> None:
    # The first value of a param is the one that MLflow has, too.
    reading.params = {**record.fields["values"], **reading.params}


def _metrics(reading: Reading, record: journal.Record) -> None:
    fields = record.fields
    many = "steps" in fields
    steps = fields["steps"] if many else [fields["step"]]
    for metric, column in fields["values"].items():
        if metric.startswith("batch/") and reading.attempts:
            reading.attempts[-1].to_step = max(reading.attempts[-1].to_step, *steps)
        if metric.startswith("train/"):
            reading.epochs = max(reading.epochs, max(steps) + 1)
        if not metric.startswith(HIDDEN):
            _remember(reading.last, metric, zip(steps, column if many else [column], strict=True))


def _remember(last: dict[str, tuple[int, float]], metric: str, rows: Any) -> None:
    for step, value in rows:
        if value is not None and (metric not in last or step >= last[metric][0]):
            last[metric] = (step, float(value))


def _divergence(reading: Reading, record: journal.Record) -> None:
    fields = record.fields
    if not fields.get("again"):
        values = f"{fields['first']}, then {fields['second']}"
        reading.divergences.append(f"{fields['metric']} at step {fields['step']}: {values}")


_TAKERS: Mapping[str, Any] = {
    "attempt": _attempt,
    "status": _status,
    "tags": _tags,
    "params": _params,
    "metrics": _metrics,
    "divergence": _divergence,
}
