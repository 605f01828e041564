"""What every command prints with: two consoles, JSON, errors as one block, readable numbers and times."""

from __future__ import annotations

import json
import math
import sys
import time
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xptrain.errors import XptrainError
from xptrain.tracking.journal import plain

WIDE = 100
STATUS_STYLE = {"FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "KILLED": "yellow"}
GRADE_STYLE = {"exact": "green", "exact on the same topology": "green", "approximate": "yellow"}


@cache
def out() -> Console:
    """Return the console on stdout; what is printed there is never taken for markup."""
    return Console(markup=False, highlight=False, emoji=False)


@cache
def err() -> Console:
    """Return the console on stderr."""
    return Console(markup=False, highlight=False, emoji=False, stderr=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout; nan and infinities become text, as in the journal."""
    print(json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False))


def print_error(error: XptrainError, as_json: bool) -> None:
    """Print an error on stderr: one readable block, or one JSON object."""
    if as_json:
        fields = {n: getattr(error, n) for n in ("what", "expected", "found", "remedy")}
        fields = {"error": type(error).__name__, "exit_code": error.exit_code, **fields}
        print(json.dumps(fields, ensure_ascii=False), file=sys.stderr)
        return
    what, *rest = str(error).split("\n")
    err().print(Text("xptrain: ", "bold red") + Text(what, "bold"), soft_wrap=True)
    for line in rest:
        err().print(line, soft_wrap=True)


def table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without frames; the columns named in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", no_wrap=True)
    return made


def facts(rows: dict[str, Any]) -> Table:
    """Return names and values in two columns; rows without a value are left out."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        if value not in (None, ""):
            made.add_row(f"  {name}", value if isinstance(value, Text) else str(value))
    return made


def heading(text: str) -> Text:
    """Return a heading."""
    return Text(text, "bold")


def status(text: str) -> Text:
    """Return a status in its colour."""
    return Text(text, STATUS_STYLE.get(text, ""))


def grade(text: str, short: bool = False) -> Text:
    """Return a grade in its colour; `short` leaves the reasons out."""
    name, _, reasons = text.partition(":")
    return Text(name, GRADE_STYLE.get(name, "dim")) + Text("" if short or not reasons else f":{reasons}")


def label(experiment: str, name: str | None, key: str) -> str:
    """Return what a run is called: its experiment, and its name if that says more than its key."""
    return f"{experiment} · {name}" if name and name != key else experiment


def number(value: Any) -> str:
    """Return a number with the digits that people read.

    Example:
        >>> number(0.123456789), number(135), number(3e-5), number(None)
        ('0.1235', '135', '3e-05', '')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "" if value is None else "nan"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def when(ms: float) -> str:
    """Return a moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def ago(ms: float, now: float | None = None) -> str:
    """Return how long ago a moment was.

    Example:
        >>> ago(0, now=125_000), ago(0, now=3 * 86_400_000)
        ('2 min ago', '3 days ago')
    """
    seconds = max(0.0, (time.time() * 1000 if now is None else now) - ms) / 1000
    for unit, size in (("day", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''} ago"
    return f"{int(seconds)} s ago"


def took(ms: float) -> str:
    """Return a length of time.

    Example:
        >>> took(3_725_000), took(42_000)
        ('1:02:05', '42 s')
    """
    seconds = int(ms // 1000)
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short(value: Any) -> Any:
    """Return a value with a long hexadecimal digest cut to its first 12 digits."""
    is_digest = (
        isinstance(value, str) and len(value) in (32, 40, 64) and set(value) <= set("0123456789abcdef")
    )
    return value[:12] if is_digest else value
