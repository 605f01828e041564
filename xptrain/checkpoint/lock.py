"""The run's lock: one process trains a run; attempts are numbered, and a later one fences off the earlier.

Each attempt has one file, `lock/<attempt, 6 digits>.json`, which only a hard link to a finished record makes:
of several processes on any hosts exactly one gets the next number. The attempt with the highest number has
the run. Only its owner touches a file after that (its modification time is the heartbeat), so no write of a
process that lost the run can undo what its successor wrote. Heartbeats and their ages are told by the clock
of the file system, on shared storage its server's: the clocks of the hosts may disagree by any amount. There
is no flock: a forked loader worker would keep it after the death of its parent.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Final

from xptrain.checkpoint.files import replace_text, sync
from xptrain.checkpoint.machine import Machine, process_started
from xptrain.errors import CheckpointWriteError, FencedError, RunLiveError

STALE_SECONDS: Final = 60.0
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class LockRecord:
    """Who has, or had, a run.

    Args:
        attempt: Number of the process execution of the run, from 1.
        token: Secret of the holder.
        machine: Where it runs.
        pid: Its process id there.
        pid_started: When that process started, see `process_started`.
        acquired_ms: Wall clock, milliseconds since the epoch.
        released: True once it ended in good order.
        heartbeat: When it last said that it is alive, seconds since the epoch.
        live: True while it trains, as far as can be seen from here.
    """

    attempt: int
    token: str
    machine: Machine
    pid: int
    pid_started: float
    acquired_ms: int
    released: bool = False
    heartbeat: float = 0.0
    live: bool = False


class RunLock:
    """The lock in a checkpoint folder.

    Args:
        directory: The run's checkpoint folder; `acquire` makes it.
        heartbeat_seconds: Seconds between two heartbeats.
        clock: Seconds since the epoch; the file system's own clock when it is None.
        machine: Where this process runs; found out when it is None.

    Attributes:
        fenced: Set, within a heartbeat, when a later attempt has taken the run over.

    Example:
        >>> import tempfile
        >>> lock = RunLock(tempfile.mkdtemp())
        >>> lock.acquire(), lock.release()
        (1, None)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        heartbeat_seconds: float = 5.0,
        clock: Callable[[], float] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.folder = Path(directory).absolute() / "lock"
        self.record: LockRecord | None = None
        self._interval = heartbeat_seconds
        self._clock = clock
        self._machine = machine or Machine.here()
        self._stop = threading.Event()
        self.fenced = threading.Event()

    def acquire(self, *, above: int = 0) -> int:
        """Take the run and start the heartbeat.

        Args:
            above: Attempts known from elsewhere (the ledger); the number will be higher than this, too.

        Returns:
            The number of this attempt: one more than the last, 1 for the first.

        Raises:
            RunLiveError: Another process trains this run.
            CheckpointWriteError: The folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while not self._claim(above):
                pass
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        assert self.record is not None
        self._stop = threading.Event()
        threading.Thread(target=self._beat, name="xptrain-heartbeat", daemon=True).start()
        return self.record.attempt

    def check(self) -> None:
        """Make sure that this process still has the run; costs one listing and one read.

        Raises:
            FencedError: A later attempt has it, or this process never had it.
            CheckpointWriteError: The folder is gone or cannot be read.
        """
        try:
            last = self._read_last(self._now(ask=False))
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        mine = self.record
        if mine is None or last is None or last.token != mine.token or last.released:
            self.fenced.set()
            raise FencedError(
                "this process does not have the run any more",
                expected=f"attempt {mine.attempt}" if mine else "a lock that was acquired",
                found=f"attempt {last.attempt} on {_who(last)}" if last else "no lock file",
                remedy="let the later attempt go on; nothing more is written here",
            )

    def release(self) -> None:
        """Give the run back; does nothing when it was lost, or in a forked child of the holder."""
        mine = self.record
        if mine is None or mine.pid != os.getpid():
            return
        self._stop.set()
        self.record = None
        path = self._path(mine.attempt)
        try:
            if path.exists():
                replace_text(path, _text(replace(mine, released=True)))
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def peek(self, *, ask: bool = False) -> LockRecord | None:
        """Return who has the run, or had it last; None for a new run.

        Args:
            ask: Make and delete a file, to tell a heartbeat's age by the clock of the file system; without
                that nothing is touched, and this host's clock must do.
        """
        return self._read_last(self._now(ask=ask)) if self.folder.is_dir() else None

    def _now(self, *, ask: bool) -> float:
        if self._clock is not None:
            return self._clock()
        if ask:
            probe = self.folder / f".{token_hex(8)}"
            with suppress(OSError):
                try:
                    probe.write_text("what time is it?")
                    return probe.stat().st_mtime
                finally:
                    probe.unlink(missing_ok=True)
        return time.time()

    def _touch(self, path: Path) -> None:
        # Without a time, the file system takes its own.
        os.utime(path, None if self._clock is None else (self._clock(),) * 2)

    def _claim(self, above: int) -> bool:
        last = self._read_last(self._now(ask=True))
        if last and last.live:
            raise RunLiveError(
                "another process is training this run",
                expected="a run that nobody trains",
                found=f"attempt {last.attempt} on {_who(last)}",
                remedy=f"wait for it, or stop it there (kill {last.pid}); a host that is gone loses the run "
                f"{STALE_SECONDS:.0f} s after its last heartbeat",
            )
        attempt = 1 + max(above, last.attempt if last else 0)
        started = process_started(os.getpid())
        assert started is not None
        now_ms = int(self._now(ask=False) * 1000)
        record = LockRecord(attempt, token_hex(8), self._machine, os.getpid(), started, now_ms)
        draft = self.folder / f".{record.token}"
        try:
            draft.write_text(_text(record))
            sync(draft)
            self._touch(draft)
            won = _link(draft, self._path(attempt))
        finally:
            draft.unlink(missing_ok=True)
        sync(self.folder)
        if won:
            self.record = record
        return won

    def _read_last(self, now: float) -> LockRecord | None:
        attempts = [int(path.stem) for path in self.folder.iterdir() if path.stem.isdecimal()]
        return self._read(max(attempts), now) if attempts else None

    def _read(self, attempt: int, now: float) -> LockRecord:
        # Opening first makes a network file system ask its server for the time of the heartbeat.
        with self._path(attempt).open() as stream:
            text, heartbeat = stream.read(), os.fstat(stream.fileno()).st_mtime
        is_fresh = now - heartbeat < STALE_SECONDS
        try:
            fields = json.loads(text)
            record = LockRecord(**{**fields, "machine": Machine(**fields["machine"])})
        except (ValueError, TypeError, KeyError):
            # Half-written where hard links do not exist, or damaged: only the heartbeat can be trusted.
            return LockRecord(
                attempt, "", Machine("an unknown host", "", ""), 0, 0, 0, False, heartbeat, is_fresh
            )
        if record.machine == self._machine:
            alive = process_started(record.pid) == record.pid_started
        else:
            alive = is_fresh
        return replace(record, heartbeat=heartbeat, live=alive and not record.released)

    def _beat(self) -> None:
        mine, stop = self.record, self._stop
        while mine and not stop.wait(self._interval):
            try:
                self._touch(self._path(mine.attempt))
                last = self._read_last(self._now(ask=False))
            except OSError:
                # The next check() meets the same folder and raises where somebody can see it.
                continue
            if last is not None and last.token != mine.token:
                self.fenced.set()
                return

    def _path(self, attempt: int) -> Path:
        return self.folder / f"{attempt:06d}.json"


def _link(draft: Path, path: Path) -> bool:
    """Give `draft` its final name unless that name is taken; say whether it worked."""
    try:
        path.hardlink_to(draft)
        return True
    except FileExistsError:
        # A network file system may have lost the answer to a link that it did make.
        return draft.stat().st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        with path.open("x") as stream:
            stream.write(draft.read_text())
        sync(path)
        return True
    except FileExistsError:
        return False


def _text(record: LockRecord) -> str:
    fields = asdict(record)
    return json.dumps({name: fields[name] for name in fields if name not in ("heartbeat", "live")})


def _who(record: LockRecord) -> str:
    me = " (this process)" if record.pid == os.getpid() and record.machine == Machine.here() else ""
    return f"{record.machine.host}, process {record.pid}{me}, acquired at {_utc(record.acquired_ms)}"


def _utc(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms / 1000))


def _unwritable(folder: Path, error: OSError) -> CheckpointWriteError:
    return CheckpointWriteError(
        "the run's checkpoint folder cannot be used",
        expected=f"a folder that can be written: {folder.parent}",
        found=str(error),
        remedy="make the folder writable or free some space, or give another checkpoint_dir=",
    )
