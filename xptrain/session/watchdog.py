"""The watchdog: ends a process that was told to stop and cannot, because a compile or a step is too long.

A Python signal handler runs between two bytecodes of the main thread, so not while that thread compiles. The
number of a signal is written to a socket at once, though, and a thread that waits there can act.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from xptrain.session.readable import say

if TYPE_CHECKING:
    from xptrain.session.life import Life

# Until then the main thread has heard a signal, unless it sleeps.
_WAKE_S = 0.1


class Watchdog:
    """Ends the process some time after the first signal, unless `stop` is called before.

    Args:
        run: The run, whose status it then writes.
        signals: Those that the run handles. Ctrl-C starts no clock: the user presses again.
        grace_s: Seconds until the process has ended; a margin before that is kept for the last words.

    Attributes:
        signals: Those that it watches for.
    """

    def __init__(self, run: Life, signals: Iterable[int], grace_s: float) -> None:
        self._run = run
        self.signals = frozenset(signals)
        self._margin = min(3.0, grace_s / 5)
        self._patience = grace_s - self._margin
        self._over = threading.Event()
        # Whoever has it first says how the run ended.
        self._last_word = threading.Lock()
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def start(self) -> None:
        """Watch from now on, in a thread; does nothing where somebody else listens for signals already."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:
            # An event loop: it would miss its own signals.
            signal.set_wakeup_fd(before)
            reader.close()
            writer.close()
            return
        self._sockets = reader, writer
        _started.add(self)
        threading.Thread(target=self._watch, args=(reader,), name="xptrain-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the watch. Where the watchdog acts already this waits: the process is about to end."""
        with self._last_word:
            self._over.set()
        _started.discard(self)
        if self._sockets is None:
            return
        with suppress(OSError):
            self._sockets[1].send(b"\0")  # wakes the thread, also where a forked child has the socket too
        if threading.current_thread() is threading.main_thread():
            self.forget()
            self._sockets[1].close()
            self._sockets = None

    def forget(self) -> None:
        """Take the descriptor back, if it is still ours."""
        if self._sockets is not None:
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._sockets[1].fileno()):
                signal.set_wakeup_fd(current)

    def _watch(self, reader: socket.socket) -> None:
        number, deadline = 0, 0.0
        with reader:
            while not self._over.is_set():
                left = max(0.0, deadline - time.monotonic()) if number else None
                if not select.select([reader], [], [], left)[0]:
                    self._end(number)
                    return
                heard = self.signals.intersection(reader.recv(4096))
                if heard - {signal.SIGINT} and not number:
                    number = min(heard - {signal.SIGINT})
                    deadline = time.monotonic() + self._patience
                if heard:
                    self._over.wait(_WAKE_S)
                with self._last_word:
                    for one in () if self._over.is_set() else heard:
                        self._run.preemption.repeat(one)

    def _end(self, number: int) -> None:
        run, until = self._run, time.monotonic() + self._margin * 0.9
        run.checkpoints.wait(self._margin / 2)
        # The main thread may only have waited for that save.
        if self._over.wait(self._margin / 10) or not self._last_word.acquire(blocking=False):
            return
        if self._over.is_set():
            self._last_word.release()
            return
        busy = "saving" if run.preemption.raised else "compiling or busy"
        reason = (
            f"{signal.Signals(number).name}: still {busy} after {self._patience:.0f} s; "
            "what was not checkpointed is lost"
        )
        # Each in a thread: a lock or a full disk must not keep the process beyond its time.
        for act in (self._write, self._write_past_the_queue):
            thread = threading.Thread(target=act, args=(reason,), daemon=True)
            thread.start()
            thread.join(max(0.05, (until - time.monotonic()) / 2))
            if not thread.is_alive():
                break
        thread = threading.Thread(target=self._say, args=(reason,), daemon=True)
        thread.start()
        thread.join(max(0.05, until - time.monotonic()))
        os._exit(128 + number)

    def _write(self, reason: str) -> None:
        if not self._run.checkpoints.fenced.is_set():
            with suppress(Exception):
                self._run.writer.append("status", status="KILLED", reason=reason)
                self._run.writer.sync()

    def _write_past_the_queue(self, reason: str) -> None:
        # The queue may wait for a value that a step still computes.
        run = self._run
        if not run.checkpoints.fenced.is_set():
            with suppress(Exception):
                run.journal.append("status", attempt=run.attempt, status="KILLED", reason=reason)
                run.journal.sync()

    def _say(self, reason: str) -> None:
        with suppress(Exception):
            self._run.checkpoints.lock.release()
        with suppress(Exception):
            say(f"run {self._run.key}: {reason}")
            sys.stdout.flush()


_started: WeakSet[Watchdog] = WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    # A worker may be signalled before it has let go of the socket: then its signal waits until it has.
    wanted = {number for watchdog in list(_started) for number in watchdog.signals}
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, wanted) if wanted else None


def _in_parent() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    # A signal to a forked worker must not start the clock of the trainer.
    with suppress(ValueError):
        for watchdog in list(_started):
            watchdog.forget()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
