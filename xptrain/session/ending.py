"""How a run ends, and how device scalars come to the host."""

from __future__ import annotations

from typing import Any


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status and reason that an exception (or none) at the end of a run means."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "FINISHED", None
    if isinstance(error, KeyboardInterrupt):
        return "KILLED", "interrupted (Ctrl-C)"
    if isinstance(error, SystemExit):
        return "FAILED", f"exit code {error.code}"
    text = str(error).splitlines()[0] if str(error) else ""
    return "FAILED", f"{type(error).__name__}: {text}"[:500]


def fetch(values: list[Any]) -> Any:
    """Return device scalars as host numbers, all in one transfer."""
    import jax

    return jax.device_get(values)
