"""What is still to be done when the process ends without having said so."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its own exit comes after ours, if it is imported before
import threading
from collections.abc import Callable

_WAITING: list[Callable[[], None]] = []


def call_at_exit(call: Callable[[], None]) -> None:
    """Call something when the process ends, while threads can still work: a save needs them.

    Functions of `atexit` are called when Python's thread pools are closed already. The place before that has
    no public name (CPython 3.11 to 3.14); without it `atexit` must do.
    """
    if not _WAITING:
        getattr(threading, "_register_atexit", atexit.register)(_call_all)
    _WAITING.append(call)


def forget(call: Callable[[], None]) -> None:
    """Take back what `call_at_exit` was told."""
    if call in _WAITING:
        _WAITING.remove(call)


def _call_all() -> None:
    while _WAITING:
        _WAITING.pop()()
