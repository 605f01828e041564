"""A run as a small table for notebooks: no scripts, every text escaped, in the colours of the page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, Final

from xptrain.session.config import flatten
from xptrain.session.recorded import RunState

if TYPE_CHECKING:
    from xptrain.session.life import Life

_MOST: Final = 12
_LONGEST: Final = 200
# Nothing but shades of the page's own text colour, so that dark themes are readable as well.
_TABLE: Final = "border-collapse:collapse;border:1px solid rgba(128,128,128,.4);color:inherit"
_CELL: Final = (
    "padding:.25em .9em;text-align:left;vertical-align:top;color:inherit;background:none;"
    "border-top:1px solid rgba(128,128,128,.25)"
)
_NAME: Final = f"{_CELL};opacity:.7;font-weight:normal;white-space:nowrap"


def html(run: Life, state: RunState) -> str:
    """Return a run as an HTML table.

    Args:
        run: The run, started or not.
        state: Where it is in its life.

    Returns:
        One `<table>` without scripts or style sheets.

    Example:
        >>> run = xptrain.run("digits")  # doctest: +SKIP
        >>> html(run, RunState.NEW)  # doctest: +SKIP
    """
    cells = "".join(_row(name, values) for name, values in _rows(run, state))
    title = f"xptrain run {'' if state is RunState.NEW else run.key}".strip()
    head = f'<th colspan="2" style="{_CELL};border-top:none">{_text(title)}</th>'
    return f'<table style="{_TABLE}"><tr>{head}</tr>{cells}</table>'


def _rows(run: Life, state: RunState) -> Iterable[tuple[str, list[str]]]:
    yield "experiment", [run.settings.experiment]
    if state is RunState.NEW:
        yield "status", ["not started: run.start()"]
        return
    where = "open" if state is RunState.OPEN else "closed"
    yield "status", [f"{run.status} ({where}), attempt {run.attempt}, {run.step} steps"]
    yield "grade", ["known at the first fit" if run.grade is None else str(run.grade)]
    yield "seed", [str(run.seed)]
    config = [f"{name} = {value!r}" for name, value in _shown(run).items()]
    more = [f"and {len(config) - _MOST} more"] if len(config) > _MOST else []
    yield "config", [*config[:_MOST], *more] or ["none"]
    yield "folder", [str(run.folder.path)]
    if run.status != "FINISHED":
        yield "to go on later", [_resume(run)]


def _resume(run: Life) -> str:
    code = run.manifest.get("code", {})
    if code.get("script") or code.get("module"):
        return f"xptrain resume {run.key}"
    return f"run = xptrain.run({run.settings.experiment!r}, resume={run.key!r}).start(), then the same cells"


def _shown(run: Life) -> dict[str, Any]:
    # As it is recorded: a notebook is saved with what its cells show.
    return flatten(run.manifest.get("config") or {})


def _row(name: str, values: list[str]) -> str:
    shown = "<br>".join(_text(value) for value in values)
    return f'<tr><th style="{_NAME}">{_text(name)}</th><td style="{_CELL}">{shown}</td></tr>'


def _text(value: str) -> str:
    return escape(value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…")
