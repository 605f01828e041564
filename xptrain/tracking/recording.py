"""What the training process writes its points with: nothing here waits for a device, file or network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, SupportsFloat

from xptrain.errors import FencedError, TrackerError, UsageError, XptrainError
from xptrain.tracking.durable import now_ms
from xptrain.tracking.entries import Entry, Row, checked_name, checked_number, checked_step, floats, rows_of
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import PointIndex
from xptrain.tracking.records import Hearing
from xptrain.tracking.rows import Divergence, Rows

Fetch = Callable[[list[Any]], Sequence[SupportsFloat]]
_BATCH = 1024
_PAUSE_S = 0.05


class PointWriter:
    """Writes points and other records to the journal from a background thread, in call order, each once.

    Every call that adds something queues it first and then raises what went wrong earlier, so a record is
    never dropped because of another one. Timestamps are those of the calls. The queue holds at most
    `capacity` entries; only when it is full (device or disk that far behind) does a call wait.

    Args:
        journal: Where to write; owned from now on (closed by `close`).
        index: What the journal has already (`PointIndex.from_journal` on resume).
        fetch: Turns a list of device scalars into host numbers in one go, such as `jax.device_get`.
        capacity: Most entries that may wait.
        clock: Milliseconds since the epoch.
        attempt: Number of this process execution of the run; stands in every record.
        fenced: Set by whoever learns that a later attempt has the run (the writer itself sets it when that
            attempt stands in the journal). From then on nothing is written: `log` and `append` drop what they
            are given and raise FencedError once, `flush` and `sync` raise it always, `close` never.

    Example:
        >>> writer = PointWriter(Journal(path), PointIndex(path))  # doctest: +SKIP
        >>> writer.log(3, {"val_loss": 0.25})  # doctest: +SKIP
        >>> position = writer.sync()  # doctest: +SKIP
    """

    def __init__(
        self,
        journal: Journal,
        index: PointIndex,
        fetch: Fetch = floats,
        *,
        capacity: int = 1 << 14,
        clock: Callable[[], int] = now_ms,
        attempt: int | None = None,
        fenced: threading.Event | None = None,
    ) -> None:
        self.fenced = fenced or threading.Event()
        self._fence_told = False
        self._attempt = attempt
        self._stamp = {} if attempt is None else {"attempt": attempt}
        self._journal = journal
        self._index = index
        self._rows = Rows(journal, index, self._stamp)
        self._fetch = fetch
        self._capacity = capacity
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._queued = self._done = 0
        self._urgent = self._closing = self._closed = False
        self._error: XptrainError | None = None
        self._lost: XptrainError | None = None
        self._thread = threading.Thread(target=self._work, name="xptrain-points", daemon=True)
        self._thread.start()

    @property
    def divergences(self) -> int:
        """How many recomputed points differed from the journaled ones (as of the last flush)."""
        return self._rows.divergences

    @property
    def first_divergence(self) -> Divergence | None:
        """The first recomputed point that differed, or None."""
        return self._rows.first_divergence

    def log(self, step: int, values: Mapping[str, Any], volatile: Collection[str] = ()) -> None:
        """Log host values at one step.

        Args:
            step: Train step or epoch number; any integer type.
            values: Numbers (Python, NumPy, or arrays of one element) by metric name.
            volatile: Names of those that measure time: never compared on resume.

        Raises:
            UsageError: A name is not text, a value not a number, or the step not an integer of 64 bits.
            FencedError: A later attempt has the run; raised once.
            TrackerError: An earlier record could not be written; this call's points are queued all the same.
        """
        numbers = {checked_name(metric): checked_number(metric, value) for metric, value in values.items()}
        self._put(Entry(self._clock(), "metrics", checked_step(step), numbers, volatile, on_device=0))

    def log_device(
        self, step: int, scalars: Mapping[str, Any], volatile: Collection[str] = (), count: int = 1
    ) -> None:
        """Log device scalars at one step without waiting for them.

        Args:
            step: Train step.
            scalars: Arrays of one element by metric name; they must not be donated to a later step.
            volatile: As in `log`.
            count: For several steps at once, how many, ending with `step`; then arrays of shape (count,).

        Raises:
            TrackerError: As in `log`.
        """
        self._put(
            Entry(self._clock(), "metrics", checked_step(step), dict(scalars), volatile, on_device=count)
        )

    def append(self, kind: str, **fields: Any) -> None:
        """Write any other record, in order with the points.

        Args:
            kind: attempt, params, tags, artifact, dataset or status.
            **fields: What rooms.md lists for it.

        Raises:
            TrackerError: As in `log`.
        """
        self._put(Entry(self._clock(), kind, 0, fields, (), on_device=0))

    def flush(self) -> int:
        """Wait until everything queued is in the journal.

        Returns:
            The journal position behind it; belongs into the checkpoint of this moment.

        Raises:
            TrackerError: Something could not be written, or points were lost.
            FencedError: A later attempt has the run: nothing was written.
        """
        with self._changed:
            target = self._queued
            self._urgent = True
            self._changed.notify_all()
            while self._done < target and self._thread.is_alive():
                self._changed.wait(1.0)
            if self.fenced.is_set():
                raise _lost_the_run(self._attempt)
            self._raise()
            if self._lost is not None:
                raise self._lost
            if self._done < target:
                raise TrackerError(
                    "the thread that writes the journal has ended too early",
                    remedy="look for an earlier error; what was queued is not in the journal",
                )
        return self._journal.end

    def sync(self) -> int:
        """Flush and make the journal durable (law L13); returns and raises as `flush` does."""
        self.flush()
        return self._journal.sync()

    def close(self) -> None:
        """Write what is queued, make it durable, and close the journal.

        Raises:
            TrackerError: Something could not be written.
        """
        if self._closed:
            return
        self._closed = True
        try:
            with suppress(FencedError):
                self.sync()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()
            if self.fenced.is_set():
                self._journal.discard()
            self._journal.close()

    def _put(self, entry: Entry) -> None:
        if self._closed:
            raise UsageError(
                "nothing can be logged any more",
                expected="an open run",
                found="a run that is finished",
                remedy="log before the run ends",
            )
        if self.fenced.is_set():
            told, self._fence_told = self._fence_told, True
            if not told:
                raise _lost_the_run(self._attempt)
            return
        with self._changed:
            while len(self._queue) >= self._capacity and self._thread.is_alive():
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait(1.0)
            self._queue.append(entry)
            self._queued += 1
            if self._error is not None:
                self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                # The hot path never notifies: entries gather for a moment and are taken together.
                if not self._urgent and not self._closing:
                    self._changed.wait(_PAUSE_S)
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                if not batch:
                    self._urgent = False
                    if self._closing:
                        return
            self._write(batch)
            with self._changed:
                self._done += len(batch)
                self._changed.notify_all()

    def _write(self, batch: list[Entry]) -> None:
        if self._is_fenced():
            return
        for entry, numbers in zip(batch, self._numbers(batch), strict=True):
            if entry.kind == "metrics":
                for step, values in numbers:
                    with self._noted():
                        self._rows.add(entry.ms, step, values, entry.volatile)
                continue
            # Each for itself: what cannot be written now is kept, and the next one must not be lost for it.
            with self._noted():
                self._rows.write()
            with self._noted():
                end = self._journal.append(entry.kind, entry.ms, **{**self._stamp, **entry.content})
                if entry.kind == "attempt":
                    self._index.catch_up(end)
        with self._noted():
            self._rows.write()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it surfaces at the next call
            self._note(error)

    def _is_fenced(self) -> bool:
        # A process that was suspended meets its successor's record before any heartbeat can tell it.
        if self._attempt is not None and not self.fenced.is_set():
            try:
                heard = self._journal.heard()
            except (OSError, TrackerError) as error:
                self._note(error)
                return False
            hearing = Hearing(self._attempt)
            for record in heard:
                hearing.counts(record)
            if hearing.attempt > self._attempt:
                self.fenced.set()
        return self.fenced.is_set()

    def _numbers(self, batch: list[Entry]) -> list[list[Row]]:
        """Bring the device values of a whole batch to the host in one call."""
        waiting = [value for entry in batch if entry.on_device for value in entry.content.values()]
        try:
            fetched = iter(self._fetch(waiting)) if waiting else iter(())
            return [rows_of(entry, fetched) for entry in batch]
        except Exception:  # noqa: BLE001 - one bad scalar must not take its neighbours along
            return [self._rows_alone(entry) for entry in batch]

    def _rows_alone(self, entry: Entry) -> list[Row]:
        try:
            return rows_of(entry, iter(self._fetch(list(entry.content.values())) if entry.on_device else ()))
        except Exception as error:  # noqa: BLE001 - it surfaces at the next call
            self._lost = TrackerError(
                f"the metrics {', '.join(entry.content)} of step {entry.step} could not be read",
                found=f"{type(error).__name__}: {error}",
                remedy="log scalars that no later step donates",
            )
            self._note(self._lost)
            return []

    def _note(self, error: Exception) -> None:
        if not isinstance(error, XptrainError):
            cause = error
            error = TrackerError("a record could not be journaled", found=f"{type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._lost = error
        with self._changed:
            self._error = self._error or error


def _lost_the_run(attempt: int | None) -> FencedError:
    return FencedError(
        "a later attempt has this run; nothing more is recorded here",
        expected=f"attempt {attempt} to be the newest" if attempt is not None else None,
        remedy="let the later attempt go on, and end this process",
    )
