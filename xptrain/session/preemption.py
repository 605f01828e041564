"""Signals: a run that is told to stop finishes its step, saves, and ends with the signal's exit code."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from xptrain.errors import UsageError
from xptrain.session.readable import say, told
from xptrain.session.watchdog import Watchdog

if TYPE_CHECKING:
    from xptrain.session.life import Life

# What schedulers and terminals end a job with; other signals mean other things.
_NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU", "SIGINT")
_LONGEST_S = 86_400.0
# A scheduler may signal the process and its group, a moment apart: that is one signal.
_SAME_S = 1.0
_clock = time.monotonic
# When this process heard each signal first since its last fit or loop began.
_first_heard: dict[int, float] = {}
_told: set[str] = set()
# Signals that were sent to the main thread once more, because it did not wake up.
_repeated: set[int] = set()


class Preempted(SystemExit):
    """A signal ended the run; its code is 128 plus the signal's number.

    Args:
        number: The signal.
        reason: What the run's status says.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(128 + number)
        self.reason = reason


def check_signals(names: str | Iterable[str]) -> tuple[signal.Signals, ...]:
    """Return the signals that `preempt_on` names, SIGINT among them, or raise UsageError."""
    listed = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [None]
    if not all(name in _NAMES for name in listed):
        raise UsageError(
            "preempt_on= cannot be used",
            expected=f"names of signals among {', '.join(_NAMES)}",
            found=repr(names),
            remedy='for example preempt_on=("SIGTERM", "SIGUSR1"); () leaves all but Ctrl-C alone',
        )
    return tuple(signal.Signals[name] for name in dict.fromkeys([*map(str, listed), "SIGINT"]))


def check_grace(seconds: Any) -> float:
    """Return `grace_s` as a float, or raise UsageError."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_S:
        raise UsageError(
            "grace_s= cannot be used",
            expected="seconds, more than 0 and at most 86400",
            found=repr(seconds),
            remedy="give the time between the scheduler's signal and its kill, for example grace_s=25.0",
        )
    return float(seconds)


class Preemption:
    """What a run does with signals; its handlers stand from `install` to `uninstall`.

    Args:
        run: The run.
        signals: From `check_signals`.
        grace_s: Seconds from the first signal to the end of the process.

    Attributes:
        stopping: True when the fit, or loop, that is active shall stop at its next step boundary.
        raised: What ended the run, once something did.
    """

    def __init__(self, run: Life, signals: Iterable[signal.Signals], grace_s: float) -> None:
        self._run = run
        self._signals = tuple(signals)
        self._watchdog = Watchdog(run, self._signals, grace_s)
        self._owner = os.getpid()
        self._before: dict[int, Any] = {}
        self._active: set[object] = set()
        self._seen: set[int] = set()
        self._heard: set[int] = set()
        self._signal = signal.SIGTERM
        self._owed: BaseException | None = None
        self._stopped_after: int | None = None
        self._closed = True
        self.stopping = False
        self.raised: BaseException | None = None

    def install(self) -> None:
        """Handle the signals from now on; those that the user handles himself are left to him."""
        self._owner, self._closed = os.getpid(), False
        if threading.current_thread() is not threading.main_thread():
            _say_once(
                "thread",
                "the run was opened outside the main thread, where signals cannot be handled: "
                "one that stops this process costs the steps since the last checkpoint",
            )
            return
        own = []
        for number in self._signals:
            handler = signal.getsignal(number)
            if handler is None or (handler == signal.SIG_DFL and _is_caught(number)):
                # Put there by C code, such as faulthandler; Python could not put it back.
                own.append(number.name)
            elif handler in (signal.SIG_DFL, signal.default_int_handler) or _other(handler) is not None:
                self._before[number] = handler
                signal.signal(number, self._handle)
            elif handler != signal.SIG_IGN:
                own.append(number.name)
        if own:
            names = " and ".join(own)
            _say_once(names, f"your own handler of {names} stays; xptrain does not stop at {names}")
        self._watchdog.start()

    def disarm(self) -> None:
        """End the watchdog: the run is about to say how it ended."""
        self._watchdog.stop()

    def uninstall(self) -> None:
        """Put back the handlers that were there; one that was put over ours stays."""
        self._closed = True
        self._active.clear()
        self._watchdog.stop()
        if threading.current_thread() is not threading.main_thread():
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            if _other(signal.getsignal(number)) is self:
                signal.signal(number, _resolved(handler, number))
            else:
                # A run that was opened later stands in front of this one, and hands the signal on.
                self._before[number] = handler

    def enter(self, what: object) -> None:
        """Note that something is active that will stop by itself at a good moment."""
        self._active.add(what)
        if what is not self._run:
            # Whoever begins anew after a stop was not ended by it.
            self.raised = self._stopped_after = None
            _first_heard.clear()

    def leave(self, what: object) -> None:
        """Note that it is not active any more."""
        self._active.discard(what)

    def stop(self, step: int) -> NoReturn:
        """Raise what ends the run after `step`, which is saved, or being saved."""
        self._stopped_after = step
        # In a notebook the run goes on after Ctrl-C, and the next one is a first one again.
        self._seen.discard(signal.SIGINT)
        what = f"stopped after step {step}, saved" if step else "stopped before the first step"
        error = self._error(what)
        if threading.current_thread() is not threading.main_thread():
            # Nobody sees how a thread ends: the main thread is told by the same signal.
            self._owed = error
            signal.pthread_kill(threading.main_thread().ident or 0, self._signal)
            raise self._error(what)
        raise told(error)

    def repeat(self, number: int) -> None:
        """Send a signal again, to the main thread, unless that has heard it.

        The system gives a signal to any thread. The main thread, which runs the handler, may sleep on.
        """
        if number in self._before and number not in self._heard:
            _repeated.add(number)
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def pending(self) -> BaseException | None:
        """Return what a signal that came too late to stop anything still asks for."""
        if self._owed is not None or not self.stopping:
            return self._owed
        return self._error("came when the run was ending")

    def say_stopped(self) -> None:
        """Tell the user where the run was stopped, now that this is saved."""
        if self._stopped_after and self._run.replay is None:
            key = self._run.key
            say(f"run {key}: stopped after step {self._stopped_after}, saved; `xptrain resume {key}` goes on")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A forked child, such as a loader's worker, is not the trainer.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._heard.add(number)
        if number in _repeated:
            _repeated.discard(number)
            if number in self._seen:
                return
        outer = _other(self._before.get(number))
        if outer is not None and not self._active:
            outer._handle(number, frame)
            return
        if self._owed is not None:
            owed, self._owed = self._owed, None
            raise owed
        if self._closed:
            signal.signal(number, _resolved(self._before.get(number, signal.SIG_DFL), number))
            os.kill(os.getpid(), number)
            return
        now = _clock()
        if now - _first_heard.setdefault(number, now - 2 * _SAME_S) < _SAME_S:
            return
        _first_heard[number] = now
        again = number in self._seen
        self._seen.add(number)
        self._signal = signal.Signals(number)
        if not again and self._active:
            self.stopping = True
            if self._run.replay is not None:
                # Nothing is saved, and whoever started the replay says how it ended.
                return
            # What it interrupts may be a print of the user's own.
            with suppress(RuntimeError):
                say(f"{self._signal.name}: stopping after this step, and saving; once more stops at once")
            return
        raise self._error("stopped at once")

    def _error(self, what: str) -> BaseException:
        self.stopping = False
        if self._signal == signal.SIGINT:
            self.raised = KeyboardInterrupt()
        else:
            self.raised = Preempted(self._signal, f"{self._signal.name}: {what}")
        return self.raised


def _is_caught(number: int) -> bool:
    """Tell whether some handler stands at a signal, where the system says so (Linux)."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    caught = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def _other(handler: Any) -> Preemption | None:
    """Return the run that a handler belongs to, if it is one of ours."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Preemption) else None


def _resolved(handler: Any, number: int) -> Any:
    """Return a handler that was there before, without those of runs that are closed by now."""
    while (owner := _other(handler)) is not None and owner._closed:
        handler = owner._before.get(number, signal.SIG_DFL)
    return handler


def _say_once(what: str, text: str) -> None:
    if what not in _told:
        _told.add(what)
        say(text)
