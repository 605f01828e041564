"""What a journal says about its run: attempts, and the status that holds."""

from __future__ import annotations

from dataclasses import dataclass

from xptrain.tracking import journal, processes
from xptrain.tracking.folder import RunFolder


@dataclass(frozen=True)
class Attempt:
    """One process execution of a run.

    Args:
        attempt: Its number, from 1.
        pid: Its process.
        pid_started: Start time of that process, seconds since the epoch.
        host: The machine.
        resumed_from: Step of the checkpoint it began at, or None.
        ms: When it began, milliseconds since the epoch.
    """

    attempt: int
    pid: int
    pid_started: float
    host: str
    resumed_from: int | None
    ms: int


@dataclass(frozen=True)
class RunState:
    """Where a run stands, according to its journal.

    Args:
        attempt: The last attempt, None before the first.
        status: FINISHED, FAILED or KILLED when that attempt said so itself, else RUNNING.
        reason: Why, if it said.
        last_ms: When the last record was written, milliseconds since the epoch.
    """

    attempt: Attempt | None
    status: str
    reason: str | None
    last_ms: int | None


def run_state(folder: RunFolder) -> RunState:
    """Read where a run stands; what an earlier attempt says after a later one began does not count.

    Args:
        folder: The run.

    Returns:
        The state. RUNNING only says that the last attempt left no final status: ask `is_live` too.
    """
    attempt: Attempt | None = None
    status, reason = "RUNNING", None
    for record in journal.pick(folder.journal, ("attempt", "status")):
        fields = record.fields
        if record.kind == "attempt":
            known = (fields["attempt"], fields["pid"], fields["pid_started"], fields["host"])
            attempt = Attempt(*known, fields.get("resumed_from"), record.ms)
            status, reason = "RUNNING", None
        else:
            status, reason = fields["status"], fields.get("reason")
    last = journal.last(folder.journal, attempt.attempt if attempt else 0)
    return RunState(attempt, status, reason, _last_ms(last) if last else None)


def _last_ms(record: journal.Record) -> int:
    after: list[int] = record.fields.get("at") or [0]
    return record.ms + max(after)


def is_live(attempt: Attempt) -> bool:
    """Tell whether an attempt's process runs; one on another machine is taken to run.

    Args:
        attempt: The attempt.

    Returns:
        False only when it is certain that the process is gone.
    """
    if attempt.host != processes.hostname():
        return True
    return processes.alive(attempt.pid, attempt.pid_started)
