"""Progress on the terminal: a bar where it can be redrawn, plain lines elsewhere; never once per step.

The loop only notes how far it is. A thread of its own fetches values and draws, a few times a second on a
terminal and every few seconds elsewhere, so that no step waits for the screen or the device.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from xptrain.training.logs import is_number, number

_WIDTH = 20


class Progress:
    """Shows how a fit goes on.

    Args:
        verbose: 0 nothing, 1 or "auto" a bar, 2 one line per epoch, as in Keras.
        epochs: Where the epochs end.
        steps: Batches in an epoch, or None when not known.
        stream: Where to write; stdout by default.
        clock: Seconds, for the rates.
    """

    def __init__(
        self,
        verbose: Any,
        epochs: int,
        steps: int | None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verbose = 1 if verbose == "auto" else int(verbose)
        self._epochs = epochs
        self._steps = steps
        self._stream = stream or sys.stdout
        self._clock = clock
        self._redraw = self._verbose == 1 and self._stream.isatty()
        self._newest: tuple[int, Mapping[str, Any]] | None = None
        self._began = (0.0, 0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def epoch_begin(self, epoch: int, done: int = 0) -> None:
        """Start an epoch of which `done` batches are trained already."""
        if not self._verbose:
            return
        self._newest = None
        self._began = (self._clock(), done)
        if self._epochs > 1:
            note = f" (going on at step {done + 1})" if done else ""
            self._write(f"Epoch {epoch + 1}/{self._epochs}{note}\n")
        if self._verbose == 1:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._draw_until_stopped, name="xptrain-progress", daemon=True
            )
            self._thread.start()

    def batch_end(self, done: int, logs: Mapping[str, Any]) -> None:
        """Note that `done` batches of the epoch are trained; costs one assignment."""
        self._newest = (done, logs)

    def epoch_end(self, done: int, logs: Mapping[str, float]) -> None:
        """Write the epoch's final line."""
        self.stop()
        if self._verbose:
            self._write(("\r" if self._redraw else "") + self._line(done, logs, final=True) + "\n")

    def __enter__(self) -> Progress:
        self.epoch_begin(0)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the drawing thread; safe to call at any time."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _draw_until_stopped(self) -> None:
        interval = 0.2 if self._redraw else 10.0
        drawn = None
        while not self._stop.wait(interval):
            newest = self._newest
            if newest is None or newest is drawn:
                continue
            drawn = newest
            values = {k: number(v) if is_number(v) else v for k, v in newest[1].items()}
            line = self._line(newest[0], values, final=False)
            self._write(f"\r{line}" if self._redraw else f"{line}\n")

    def _line(self, done: int, logs: Mapping[str, Any], *, final: bool) -> str:
        began, skipped = self._began
        seconds = max(self._clock() - began, 1e-9)
        here = max(done - skipped, 1)
        parts = [f"{done}/{self._steps}" if self._steps else str(done)]
        if self._verbose == 1 and self._steps:
            full = _WIDTH * done // self._steps
            parts.append("━" * full + ("╸" if full < _WIDTH else "") + " " * (_WIDTH - full - 1))
        remaining = (self._steps or done) - done
        parts.append(
            _duration(seconds) if final or not remaining else f"eta {_duration(seconds / here * remaining)}"
        )
        parts.append(f"{_duration(seconds / here)}/step")
        parts += [f"{name}: {_short(value)}" for name, value in logs.items()]
        line = " ".join(part for part in parts if part.strip())
        # A redrawn line must cover the one before it.
        return f"{line:<110}" if self._redraw else line

    def _write(self, text: str) -> None:
        with self._lock:
            self._stream.write(text)
            self._stream.flush()


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.4e}"


def _duration(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f}h"
    if seconds >= 60:
        return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
    if seconds >= 1:
        return f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f}us"
