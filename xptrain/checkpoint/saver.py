"""The saver: one background thread that takes a snapshot from memory to a visible, recorded checkpoint.

The order binds (laws L5 and L13): digests, write to a hidden folder, `before_commit` (the run's points up to
this step become durable, the lock is still ours), rename, ledger, `after_commit` (the tracker hears of it),
retention. Whatever names a checkpoint comes after the checkpoint.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import TYPE_CHECKING

from xptrain import faults
from xptrain.checkpoint.policies import Policy
from xptrain.checkpoint.problems import write_error
from xptrain.checkpoint.receipts import Receipt, make_receipt
from xptrain.errors import CheckpointWriteError, XptrainError
from xptrain.state.snapshot import Snapshot

if TYPE_CHECKING:
    from xptrain.checkpoint.store import Store


class Saver:
    """Saves snapshots in the background, one at a time.

    Whoever takes snapshots calls `make_room` first, so that there is never more than one: the state itself
    and one copy of it are all that training holds.

    Args:
        store: Where to.
        policy: What retention may delete.
        attempt: Number of this process execution of the run.
        before_commit: Called with the step when the data is on disk and not yet visible; if it raises, the
            checkpoint never becomes visible.
        after_commit: Called with the receipt when the ledger has it.
        clock: Wall clock in seconds since the epoch, for the receipts.
        timer: Monotonic clock in seconds, for `seconds_since_save`.

    Example:
        >>> import tempfile
        >>> from xptrain.checkpoint.store import Store
        >>> saver = Saver(Store(tempfile.mkdtemp()), Policy(), attempt=1)
        >>> saver.close()
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        attempt: int,
        before_commit: Callable[[int], None] = lambda step: None,
        after_commit: Callable[[Receipt], None] = lambda receipt: None,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.policy = policy
        self.attempt = attempt
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._clock = clock
        self._timer = timer
        self._last_save = timer()
        self._failure: XptrainError | None = None
        self._unknown: set[str] = set()
        self._pending: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="xptrain-saver")

    @property
    def failure(self) -> XptrainError | None:
        """The first failure of a save, or None."""
        return self._failure

    def seconds_since_save(self) -> float:
        """Return the seconds since a snapshot was last submitted, or since the saver was made."""
        return self._timer() - self._last_save

    def submit(self, snapshot: Snapshot) -> None:
        """Hand a snapshot over; returns at once.

        Args:
            snapshot: Its arrays must be donated to no step, nor written to.

        Raises:
            CheckpointWriteError: An earlier save failed.
            FencedError: An earlier save found that another attempt has the run.
        """
        self._raise_failure()
        self._warn_of_unknown_metrics(snapshot)
        created_ms = int(self._clock() * 1000)
        self._last_save = self._timer()
        self._pending = [future for future in self._pending if not future.done()]
        self._pending.append(self._thread.submit(self._run, snapshot, created_ms))

    def make_room(self) -> None:
        """Wait until nothing is being saved, also when that fails; for before the next snapshot is taken."""
        wait_for(self._pending)
        self._pending = []

    def wait(self) -> None:
        """Wait until everything submitted is saved.

        Raises:
            CheckpointWriteError: A save failed.
            FencedError: Another attempt has the run.
        """
        for future in self._pending:
            future.result()
        self._raise_failure()

    def wait_at_most(self, seconds: float) -> None:
        """Wait until everything submitted is saved, or failed, or the time is over.

        Args:
            seconds: The longest wait.
        """
        wait_for(self._pending, timeout=seconds)

    def close(self) -> None:
        """Wait for the last save and end the thread; raises as `wait` does."""
        self._thread.shutdown(wait=True)
        self.wait()

    def _run(self, snapshot: Snapshot, created_ms: int) -> None:
        try:
            self._save(snapshot, created_ms)
        except XptrainError as error:
            self._failure = self._failure or error
        except BaseException as error:  # noqa: BLE001  the training thread raises it, see _raise_failure
            failure = write_error(snapshot.step, self.store.folder.path, error)
            failure.__cause__ = error
            self._failure = self._failure or failure

    def _save(self, snapshot: Snapshot, created_ms: int) -> None:
        step = snapshot.step
        faults.moment("save-started", step)
        receipt = make_receipt(self._superseding(snapshot), self.attempt, created_ms)
        staged = self.store.write(snapshot, receipt)
        self._before_commit(step)
        faults.moment("journal-durable", step)
        self.store.commit(staged)
        faults.moment("committed", step)
        self.store.record(staged)
        faults.moment("ledger-written", step)
        self._after_commit(receipt)
        for doomed in self.policy.doomed(self.store.folder.receipts()):
            try:
                self.store.delete(doomed)
            except CheckpointWriteError as error:
                # The new checkpoint is safe; the old one is tried again after the next save.
                warnings.warn(
                    f"the checkpoint of step {doomed} could not be deleted: {error.found}", stacklevel=2
                )

    def _superseding(self, snapshot: Snapshot) -> Snapshot:
        # A fit's last snapshot has the step of its last epoch's: that epoch's metrics must not get lost.
        if snapshot.step not in self.store.folder.steps():
            return snapshot
        there = self.store.folder.receipt_in(snapshot.step)
        return replace(
            snapshot,
            metrics={**there.metrics, **snapshot.metrics},
            pinned=snapshot.pinned or there.pinned,
        )

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _warn_of_unknown_metrics(self, snapshot: Snapshot) -> None:
        if not snapshot.metrics:
            return
        for name in self.policy.unknown_metrics(snapshot.metrics):
            if name not in self._unknown:
                self._unknown.add(name)
                known = ", ".join(sorted(snapshot.metrics))
                warnings.warn(f"best({name!r}) keeps nothing: the epoch's logs have {known}", stacklevel=3)
