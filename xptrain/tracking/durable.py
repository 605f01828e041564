"""Files that survive a crash: atomic writes, real fsync, and locks that no child keeps."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xptrain.errors import TrackerError

_held: set[int] = set()


def now_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def fsync(fd: int) -> None:
    """Put a file's bytes on the disk, also past the drive's cache where the system lets us."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
        return
    try:
        fcntl.fcntl(fd, full)
    except OSError:  # network folders on macOS know only the plain form
        os.fsync(fd)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: a reader sees the old bytes or the new ones, also after a power cut.

    Args:
        path: The file; its folder exists.
        data: The new content.

    Raises:
        OSError: The file cannot be written.
    """
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically by a value as indented JSON."""
    write_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


@contextmanager
def exclusive(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file `path` (flock): closed on exec, closed in forked children, gone with the process.

    Args:
        path: The lock file; made when missing.
        timeout_s: Seconds to wait for another holder.

    Raises:
        TrackerError: The file cannot be made, or another process kept it for `timeout_s`.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TrackerError(
            f"the lock file {path} cannot be opened",
            found=error.strerror,
            remedy="make its folder writable for this user",
        ) from error
    _held.add(fd)
    try:
        _acquire(fd, path, timeout_s)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        if fd in _held:
            _held.discard(fd)
            os.close(fd)


def _acquire(fd: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TrackerError(
                    f"another process has held {path} for {timeout_s:g} s",
                    remedy="wait for it, or end it if it hangs (see recorder.log in the run's folder)",
                ) from None
            time.sleep(0.02)


def _forget_in_child() -> None:
    # A forked loader worker would otherwise keep the lock after this process was killed.
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
