"""The checkpoints of a run as its fits see them: where each goes on from, and when it saves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xptrain.checkpoint.folder import HOST_FILE, Folder
from xptrain.checkpoint.lock import RunLock
from xptrain.checkpoint.policies import Policy, SaveEvent
from xptrain.checkpoint.receipts import Loaded, Receipt
from xptrain.errors import CheckpointNotFoundError, XptrainError
from xptrain.state.snapshot import Snapshot

if TYPE_CHECKING:
    from xptrain.checkpoint.saver import Saver
    from xptrain.session.replay import Replay


class Checkpoints:
    """Reads and writes one run's checkpoints. Orbax is not loaded before the first fit.

    Args:
        folder: The checkpoint folder.
        policy: When to save and what to keep.
        before_commit: Makes the journal durable; called with the step.
        after_commit: Tells the tracker; called with the receipt of a checkpoint that is visible.
        say: Tells the user a sentence.
        replay: What is done with states instead of saving them, in a replay.
        is_fork: Whether a run without an attempt has checkpoints all the same: those it was forked with.
    """

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        before_commit: Callable[[int], None],
        after_commit: Callable[[Receipt], None],
        say: Callable[[str], None],
        *,
        replay: Replay | None = None,
        is_fork: bool = False,
    ) -> None:
        self.folder = folder
        self.lock = RunLock(folder)
        self.attempt = 0
        self._policy = policy
        self._before_commit = before_commit
        self._after_commit = after_commit
        self._say = say
        self._replay = replay
        self._is_fork = is_fork
        self._newest: Loaded | None = None
        self._newest_fit = -1
        self._searched = False
        self._made: Saver | None = None

    def acquire(self, above: int) -> int:
        """Take the run's lock; returns the number of this attempt."""
        self.attempt = self.lock.acquire(above=above)
        # Orbax takes seconds to load: meanwhile the user's script builds its model.
        threading.Thread(target=_load_early, name="xptrain-load-orbax", daemon=True).start()
        return self.attempt

    def journal_position(self) -> int:
        """Return where in the journal the points after the newest checkpoint begin; 0 when not known.

        Read without verifying: a wrong position costs memory or time, never a point.
        """
        if self._replay is not None or self._is_fork:
            # Their journals begin anew.
            return 0
        folder = Folder(self.folder)
        try:
            newest = folder.folder_of(max(folder.steps()))
            return int(json.loads((newest / HOST_FILE).read_bytes())["session"]["journal"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def for_fit(self, fit: int) -> Loaded | None:
        """Return the verified checkpoint that a fit goes on from, or None when it has not begun.

        Args:
            fit: Number of the fit. One that was finished gets its last checkpoint.

        Raises:
            CheckpointDamagedError: If there are checkpoints and none is whole.
        """
        if not self._searched:
            self._searched = True
            if self.attempt > 1 or self._is_fork:
                seen = len(self._saver.store.notices)
                self._newest = self._saver.store.newest_good()
                for notice in self._saver.store.notices[seen:]:
                    self._say(notice)
            self._newest_fit = -1 if self._newest is None else self._newest.receipt.cursor.fit
        if self._newest_fit < fit:
            return None
        if self._newest_fit == fit:
            # Handed out once: it would keep a copy of the whole state in memory.
            newest, self._newest = self._newest, None
            return newest
        for receipt in self._saver.store.folder.receipts():
            if receipt.cursor.fit == fit and receipt.cursor.done:
                return self._saver.store.load(receipt.step)
        if any(r.cursor.fit == fit and r.cursor.done for r in self._saver.store.folder.ledger.history()):
            raise CheckpointNotFoundError(
                f"the last checkpoint of fit {fit} is gone, and a later fit builds on it",
                expected="the checkpoint that ended the fit (pinned, never deleted by retention)",
                found=f"nothing for it in {self.folder}",
                remedy="put the step's folder back, or start a new run",
            )
        # It trained no step, or ended in an error that the script caught: it does so again.
        return None

    def give_back(self, loaded: Loaded) -> None:
        """Keep for the next call of `for_fit` what nobody has used."""
        self._newest = loaded

    def due(self, step: int, steps_done: int, epochs_done: int | None) -> bool:
        """Tell whether the policy wants a checkpoint at this step boundary."""
        if self._replay is not None:
            return self.replayed(step)
        return self._policy.due(
            SaveEvent(
                step=step,
                steps_done=steps_done,
                epoch_end=epochs_done is not None,
                epochs_done=epochs_done or 0,
                seconds=self._saver.seconds_since_save(),
            )
        )

    def replayed(self, step: int) -> bool:
        """Tell whether a replay wants the state after a step; never outside of one."""
        return self._replay is not None and self._replay.due(step)

    @property
    def fenced(self) -> threading.Event:
        """Set when a later attempt has taken the run over."""
        return self.lock.fenced

    @property
    def wants_steps(self) -> bool:
        """Whether the policy can want a checkpoint inside an epoch."""
        return self._replay is not None or self._policy.wants_steps

    def save(self, snapshot: Snapshot) -> None:
        """Save in the background; raises what an earlier save failed with."""
        if snapshot.cursor.fit < self._newest_fit:
            # A fit that is repeated on the way to the newest checkpoint.
            return
        if self._replay is not None:
            self._replay.take(snapshot, self.attempt, self._save_now)
            return
        self._saver.submit(snapshot)

    def _save_now(self, snapshot: Snapshot) -> None:
        self._saver.submit(snapshot)
        self._saver.wait()

    def make_room(self) -> None:
        """Wait for a save in flight, so that its snapshot is gone before the next is taken."""
        if self._made is not None:
            self._made.make_room()

    def wait(self, seconds: float) -> None:
        """Wait for the saves, but not longer than so many seconds."""
        if self._made is not None:
            self._made.wait_at_most(seconds)

    def close(self) -> XptrainError | None:
        """Wait for the saves; returns what one failed with."""
        failure: XptrainError | None = None
        if self._made is not None:
            try:
                self._made.close()
            except XptrainError as error:
                failure = error
        return failure

    @property
    def _saver(self) -> Saver:
        if self._made is None:
            saver, store = _load_orbax()
            self._made = saver.Saver(
                store.Store(self.folder),
                self._policy,
                self.attempt,
                before_commit=self._fenced_commit,
                after_commit=self._after_commit,
            )
        return self._made

    def _fenced_commit(self, step: int) -> None:
        self._before_commit(step)
        self.lock.check()


def _load_orbax() -> tuple[Any, Any]:
    from xptrain.checkpoint import saver, store

    return saver, store


def _load_early() -> None:
    # What fails here is loaded again where it is needed, and fails there where somebody sees it.
    with suppress(Exception):
        _load_orbax()
