"""The journal: everything a run has to tell, one JSON object a line, in order, safe against any kill."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xptrain.errors import TrackerError
from xptrain.tracking.durable import fsync, fsync_folder, now_ms
from xptrain.tracking.records import Hearing, Record, decode, encode, plain

__all__ = ["Damage", "Journal", "Record", "last", "now_ms", "pick", "plain", "read", "scan", "sound_end"]

_BLOCK = 1 << 16
_MOST_PENDING = 10_000


@dataclass(frozen=True)
class Damage:
    """A stretch of a journal that is not a record although records follow it."""

    path: Path
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}: {self.size} damaged bytes at offset {self.offset} were skipped"


def warn(damage: Damage) -> None:
    """Tell about damage by a Python warning."""
    warnings.warn(str(damage), stacklevel=3)


def read(
    path: Path,
    start: int = 0,
    stop: int | None = None,
    damaged: Callable[[Damage], None] = warn,
    hearing: Hearing | None = None,
) -> Iterator[tuple[Record, int]]:
    """Read what counts in a journal: the late words of an attempt that lost the run are left out.

    Args:
        path: As in `scan`, which takes and raises the same.
        start: As in `scan`.
        stop: As in `scan`.
        damaged: As in `scan`.
        hearing: What was heard before `start`; goes on listening.

    Yields:
        A record and the position behind it.
    """
    hearing = hearing or Hearing()
    return ((record, end) for record, end in scan(path, start, stop, damaged) if hearing.counts(record))


def scan(
    path: Path, start: int = 0, stop: int | None = None, damaged: Callable[[Damage], None] = warn
) -> Iterator[tuple[Record, int]]:
    """Read every record of a journal, also while another process writes it.

    Args:
        path: The journal; a missing one has no records.
        start: Byte position to begin at, one that this function or `Journal.append` gave.
        stop: Byte position to end at, or None for all that is there.
        damaged: Called for each stretch of damage that records follow; those are skipped, the rest is kept.

    Yields:
        A record and the position behind it. A torn or damaged tail ends the reading.

    Raises:
        TrackerError: The file cannot be read, or `start` is not between two records.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if start:
            raise TrackerError(f"{path} is gone", remedy="restore it from a backup") from None
        return
    except OSError as error:
        raise TrackerError(f"{path} cannot be read", found=error.strerror) from error
    with file:
        _seek(file.fileno(), file, start, path)
        offset, good = start, start
        for line in file:
            offset += len(line)
            if stop is not None and offset > stop:
                return
            record = decode(line)
            if record is None:
                continue
            if good < offset - len(line):
                damaged(Damage(path, good, offset - len(line) - good))
            good = offset
            yield record, offset


def _seek(fd: int, file: Any, start: int, path: Path) -> None:
    size = os.fstat(fd).st_size
    if start > size or (start and os.pread(fd, 1, start - 1) != b"\n"):
        raise TrackerError(
            f"{path} has no record boundary at {start}",
            found=f"{size} bytes",
            remedy="the journal was replaced or cut: restore it from a backup",
        )
    file.seek(start)


def pick(path: Path, kinds: tuple[str, ...]) -> Iterator[Record]:
    """Read only some kinds of the records that count, fast (other lines are not parsed)."""
    heads = tuple(f'{{"kind":"{kind}"'.encode() for kind in (*kinds, "attempt"))
    hearing = Hearing()
    try:
        with path.open("rb") as file:
            for line in file:
                record = decode(line) if line.startswith(heads) else None
                if record is not None and hearing.counts(record) and record.kind in kinds:
                    yield record
    except FileNotFoundError:
        return


def last(path: Path, attempt: int = 0) -> Record | None:
    """Return the last whole record of a journal that no attempt before `attempt` wrote, or None."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        end = sound_end(file.fileno())
        while end:
            line = _line(file.fileno(), end)
            record = decode(line)
            if record is not None and record.fields.get("attempt", attempt) >= attempt:
                return record
            end -= len(line)
    return None


def sound_end(fd: int) -> int:
    """Return the position behind the last whole record of an open journal."""
    end = os.fstat(fd).st_size
    while end:
        line = _line(fd, end)
        if decode(line) is not None:
            return end
        end -= len(line)
    return 0


def _line(fd: int, end: int) -> bytes:
    """Return the line that ends at `end`, with its newline if it has one."""
    data = b""
    begin = end
    while begin:
        step = min(_BLOCK, begin)
        begin -= step
        data = os.pread(fd, step, begin) + data
        cut = data.rfind(b"\n", 0, len(data) - 1)
        if cut >= 0:
            return data[cut + 1 :]
    return data


class Journal:
    """A journal open for writing, by one process (and for a moment by one that lost the run unnoticed).

    Whole lines go straight to the system, each by one write at the file's end, so they survive a SIGKILL and
    never mix with those of another process; `sync` makes them survive a power cut.
    When the disk refuses a record, `append` raises once; that record and later ones wait in memory, in
    order, and are tried again before each further one. `sync` and `close` raise while any wait.

    Args:
        path: The file; made when missing. A torn tail is cut off (whole damaged lines are kept aside).

    Raises:
        TrackerError: The file cannot be opened or written.

    Example:
        >>> journal = Journal(Path("journal.jsonl"))  # doctest: +SKIP
        >>> journal.append("metrics", step=10, values={"loss": 0.5})  # doctest: +SKIP
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pending: deque[bytes] = deque()
        self._complained = False
        self._lost: OSError | None = None
        self._named = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._end = self._seen = self._repair()
        except OSError as error:
            raise self._failure("cannot be opened for writing", error) from error

    @property
    def end(self) -> int:
        """Position behind the last record."""
        with self._lock:
            return self._end + sum(map(len, self._pending))

    def heard(self) -> list[Record]:
        """Return what another process has written since this one opened the journal, or asked last.

        Raises:
            TrackerError: The file cannot be read.
        """
        with self._lock:
            if os.fstat(self._fd).st_size <= self._seen:
                return []
            found = list(scan(self.path, self._seen, damaged=lambda damage: None))
            if found:
                self._seen = found[-1][1]
        return [record for record, _ in found]

    def append(self, kind: str, ms: int | None = None, **fields: Any) -> int:
        """Add a record.

        Args:
            kind: What it tells.
            ms: When it happened, milliseconds since the epoch; now when None.
            **fields: JSON values; NumPy scalars, nan and infinities are fine.

        Returns:
            The position behind the record.

        Raises:
            TrackerError: The system refused the write (disk full); see the class.
        """
        line = encode(kind, now_ms() if ms is None else ms, fields)
        with self._lock:
            self._pending.append(line)
            try:
                self._write_pending()
            except OSError as error:
                if not self._complained or len(self._pending) > _MOST_PENDING:
                    self._complained = True
                    raise self._failure("cannot be written", error) from error
            return self._end + sum(map(len, self._pending))

    def sync(self) -> int:
        """Make everything appended durable.

        Returns:
            The position behind the last record.

        Raises:
            TrackerError: Something is not on the disk.
        """
        with self._lock:
            try:
                self._write_pending()
                if self._lost is not None:  # after a failed fsync the system forgets what it could not write
                    raise self._lost
                try:
                    fsync(self._fd)
                except OSError as error:
                    self._lost = error
                    raise
                if not self._named:
                    fsync_folder(self.path.parent)
                    self._named = True
            except OSError as error:
                raise self._failure("is not durable", error) from error
            return self._end

    def discard(self) -> None:
        """Forget what waits for the disk: it is not to be written any more."""
        with self._lock:
            self._pending.clear()

    def close(self) -> None:
        """Close the file.

        Raises:
            TrackerError: Records that the disk refused are lost.
        """
        with self._lock:
            if self._fd < 0:
                return
            try:
                self._write_pending()
            except OSError as error:
                raise self._failure(f"lost {len(self._pending)} records", error) from error
            finally:
                os.close(self._fd)
                self._fd = -1

    def _write_pending(self) -> None:
        while self._pending:
            line = self._pending[0]
            self._write(line)
            self._pending.popleft()
            # Another process may have written, so the position is what the system says, not our own count.
            self._end = os.lseek(self._fd, 0, os.SEEK_CUR)
            if self._seen == self._end - len(line):
                self._seen = self._end
        self._complained = False

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
                if view and not self._is_at_end():  # cut short, and another process wrote behind it
                    view = memoryview(line)
        except OSError:
            if len(view) < len(line) and self._is_at_end():
                os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR) - (len(line) - len(view)))
            raise

    def _is_at_end(self) -> bool:
        return os.lseek(self._fd, 0, os.SEEK_CUR) == os.fstat(self._fd).st_size

    def _repair(self) -> int:
        while True:
            size = os.fstat(self._fd).st_size
            end = sound_end(self._fd)
            tail = os.pread(self._fd, size - end, end)
            if os.fstat(self._fd).st_size == size:  # else a process that lost the run is still writing
                break
        if b"\n" in tail:  # more than one interrupted write: keep the evidence
            aside = self.path.with_name(f"{self.path.name}.cut-{now_ms()}")
            aside.write_bytes(tail)
            warnings.warn(f"{self.path}: {len(tail)} damaged bytes were moved to {aside.name}", stacklevel=3)
        if tail:
            os.ftruncate(self._fd, end)
        return end

    def _failure(self, what: str, error: OSError) -> TrackerError:
        return TrackerError(
            f"the journal {self.path} {what}",
            found=error.strerror or str(error),
            remedy="free disk space or make the folder writable; then resume the run",
        )
