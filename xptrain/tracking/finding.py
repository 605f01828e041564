"""The home of all runs, and how a run is found in it by name."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from xptrain.errors import RunNotFoundError, TrackerError
from xptrain.tracking.folder import RunFolder, RunInfo

_SHOWN = 5


def home() -> Path:
    """Return the absolute home of all runs: `$XPTRAIN_HOME`, else `.xptrain` in the working directory."""
    return Path(os.environ.get("XPTRAIN_HOME") or ".xptrain").expanduser().absolute()


def all_runs(home: Path) -> list[RunFolder]:
    """List the runs of a home, oldest first; none when the home does not exist.

    Args:
        home: The home of all runs.

    Returns:
        The folders whose identity can be read; a damaged one is warned about and left out.

    Raises:
        TrackerError: The home exists and cannot be read.
    """
    return [folder for _, folder in sorted(_dated(home), key=lambda pair: pair[0])]


def _dated(home: Path) -> Iterator[tuple[tuple[int, str], RunFolder]]:
    runs = home / "runs"
    try:
        names = sorted(p.name for p in runs.iterdir() if not p.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise TrackerError(
            f"the runs in {home} cannot be listed",
            found=error.strerror,
            remedy="make the folder readable, or point XPTRAIN_HOME elsewhere",
        ) from error
    for name in names:
        folder = RunFolder(runs / name)
        try:
            yield (folder.info.created_ms, name), folder
        except TrackerError as error:
            warnings.warn(f"left out: {error}", stacklevel=3)


def find(name: str, home: Path) -> RunFolder:
    """Find one run by what a person typed.

    Args:
        name: A key, an MLflow run id, a unique prefix of either, or `@last` (the newest run).
        home: The home of all runs.

    Returns:
        The run's folder.

    Raises:
        RunNotFoundError: No run or more than one matches; the message lists some.
        TrackerError: The home cannot be read.

    Example:
        >>> find("@last", home())  # doctest: +SKIP
    """
    wanted = name.strip().lower()
    runs = all_runs(home)
    if not runs:
        raise RunNotFoundError(
            f"no run is called {name!r}: there are no runs in {home}",
            found="no such folder" if not home.is_dir() else "a folder without runs",
            remedy="go to the folder in which the run was started, or set XPTRAIN_HOME",
        )
    if wanted == "@last":
        return runs[-1]
    ids = {folder: folder.delivered.run_id or "" for folder in runs}
    exact = [f for f in runs if wanted in (f.key, ids[f])]
    close = exact or [f for f in runs if wanted and (f.key.startswith(wanted) or ids[f].startswith(wanted))]
    if len(close) == 1:
        return close[0]
    raise _not_found(name, home, runs, close)


def _not_found(name: str, home: Path, runs: list[RunFolder], close: list[RunFolder]) -> RunNotFoundError:
    """Return the error for a name that means no run, or several; an experiment is pointed to its runs."""
    called = [f for f in runs if name.strip() in (f.info.experiment, f.info.name)]
    listed = close or called or runs
    shown = [f"{f.key}  {_label(f.info)}" for f in reversed(listed[-_SHOWN:])]
    more = [f"… and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    table = "\n            ".join([*shown, *more])
    if close:
        return RunNotFoundError(f"{len(close)} runs match {name!r}", found=table, remedy="give more digits")
    names = "a key, an MLflow run id, a prefix of one, or @last"
    if called:
        kind = "the experiment" if any(f.info.experiment == name.strip() for f in called) else "the name"
        what = f"{name!r} is {kind} of {len(called)} run{'s' if len(called) > 1 else ''}, and no key"
        return RunNotFoundError(what, expected=names, found=table, remedy="name one of these by its key")
    expected = f"{names}; the newest are\n            {table}"
    return RunNotFoundError(f"no run is called {name!r} in {home}", expected=expected)


def _label(info: RunInfo) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created_ms / 1000))
    return f"{when}  {info.experiment}" + (f"  {info.name}" if info.name not in (None, info.key) else "")
