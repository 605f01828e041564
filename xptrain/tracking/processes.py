"""Whether a process that we know by (pid, start time) still runs."""

from __future__ import annotations

import os
import socket
from functools import cache

import psutil

_SLACK_S = 2.0  # psutil derives start times from the boot time, which clock corrections move


@cache
def hostname() -> str:
    """Return this machine's name, as it stands in `attempt` records."""
    return socket.gethostname()


def own() -> tuple[int, float]:
    """Return (pid, start time in seconds since the epoch) of this process."""
    return os.getpid(), psutil.Process().create_time()


class Watched:
    """A process under watch, safe against the reuse of its number.

    Args:
        pid: Its number.
        started: Its start time, seconds since the epoch (psutil's create_time).
    """

    def __init__(self, pid: int, started: float) -> None:
        self._process: psutil.Process | None = None
        try:
            found = psutil.Process(pid)
            if abs(found.create_time() - started) <= _SLACK_S:
                self._process = found
        except psutil.NoSuchProcess:
            return

    def alive(self) -> bool:
        """Tell whether it runs; a zombie (killed, not yet waited for) does not."""
        if self._process is None:
            return False
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def alive(pid: int, started: float) -> bool:
    """Tell whether the process (pid, start time) of this machine runs."""
    return Watched(pid, started).alive()
