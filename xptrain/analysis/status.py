"""The status that is true: RUNNING only while a process trains the run."""

from __future__ import annotations

from xptrain.checkpoint.lock import LockRecord
from xptrain.tracking import processes
from xptrain.tracking.attempts import Attempt, is_live

RUNNING = "RUNNING"


def is_running(attempt: Attempt | None, status: str, lock: LockRecord | None) -> bool:
    """Tell whether a process trains a run now.

    Args:
        attempt: Its last attempt, None before the first.
        status: What that attempt said of itself; RUNNING when it said nothing.
        lock: Who has the run's lock, or had it last.

    Returns:
        True while the holder of the lock lives (on another host: while its heartbeat is fresh), or while
        the attempt that did not end yet lives on this machine.
    """
    if lock is not None and lock.live:
        return True
    if attempt is None or status != RUNNING:
        return False
    # Between the release of the lock and its last record a process still lives.
    return is_live(attempt) and (lock is None or attempt.host == processes.hostname())


def true_status(told: str, live: bool) -> str:
    """Return RUNNING for a live run; KILLED for one that is dead and left no final status.

    Example:
        >>> true_status("RUNNING", live=False)
        'KILLED'
    """
    if live:
        return RUNNING
    return "KILLED" if told == RUNNING else told
