"""Our own errors as one readable block instead of a traceback, when they end the user's script."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from xptrain.errors import XptrainError

_installed = False


def install() -> None:
    """Show uncaught `XptrainError`s without a traceback and exit with their code.

    Set XPTRAIN_TRACEBACK=1 to see the traceback. Every other exception is shown as before.
    """
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, XptrainError):
            before(kind, error, trace)
            return
        if os.environ.get("XPTRAIN_TRACEBACK"):
            before(kind, error, trace)
        else:
            print(f"xptrain: {error}", file=sys.stderr, flush=True)
        # Python would exit with 1 for every uncaught error.
        raise SystemExit(error.exit_code)

    sys.excepthook = hook


def say(text: str) -> None:
    """Tell the user something, on stderr."""
    print(f"xptrain: {text}", file=sys.stderr, flush=True)
