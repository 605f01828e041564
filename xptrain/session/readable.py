"""Our own errors as one readable block instead of a traceback, when they end the user's script."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from xptrain.errors import XptrainError

_installed = False
_PACKAGE = str(Path(__file__).resolve().parents[1])
_STANDARD = sysconfig.get_path("stdlib")
_TOLD = "_xptrain_told"


def install() -> None:
    """Show uncaught `XptrainError`s without a traceback and exit with their code.

    A Ctrl-C that `told` marked is one line, too. Set XPTRAIN_TRACEBACK=1 to see the traceback. Every other
    exception is shown as before. At Python's prompt an error ends nothing.
    """
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if getattr(error, _TOLD, False) and not os.environ.get("XPTRAIN_TRACEBACK"):
            # Python itself ends the process by the signal then, as shells expect.
            print(kind.__name__, file=sys.stderr, flush=True)
            return
        if not isinstance(error, XptrainError):
            before(kind, error, trace)
            return
        if os.environ.get("XPTRAIN_TRACEBACK"):
            before(kind, error, trace)
        else:
            print(f"xptrain: {error}{_place(trace)}", file=sys.stderr, flush=True)
        # Python would exit with 1 for every uncaught error.
        if not hasattr(sys, "ps1"):
            raise SystemExit(error.exit_code)

    sys.excepthook = hook


def _place(trace: TracebackType | None) -> str:
    """Return the last line of the user's own code on the way to an error, as one more line of the block."""
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_library(frame.filename)]
    return f"\n  at:       {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _is_library(file: str) -> bool:
    return file.startswith((_PACKAGE, "<", _STANDARD)) or "site-packages" in file


def told(error: BaseException) -> BaseException:
    """Return an exception of which the user was told; its traceback would only show our own loop."""
    setattr(error, _TOLD, True)
    return error


def say(text: str) -> None:
    """Tell the user something, on stderr."""
    print(f"xptrain: {text}", file=sys.stderr, flush=True)
