"""Runs, their histories and their differences as pandas tables, read from local files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from xptrain.analysis.facts import SECTIONS, facts, same
from xptrain.analysis.reading import Reading, read
from xptrain.errors import UsageError
from xptrain.tracking import finding, journal
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.points import points

Home = str | os.PathLike[str] | None
COLUMNS = (
    "key",
    "run_id",
    "experiment",
    "name",
    "status",
    "grade",
    "attempts",
    "step",
    "epochs",
    "checkpoints",
    "created",
)


def runs(experiment: str | None = None, home: Home = None) -> pd.DataFrame:
    """List runs, newest first.

    Only local files are read, so a tracking server is not needed.

    Args:
        experiment: Name of an experiment; all of them when None.
        home: Folder of the runs; `$XPTRAIN_HOME`, else `.xptrain` in the working directory, when None.

    Returns:
        One row a run: `key`, `run_id` (MLflow's, None before it gave one), `experiment`, `name`, `status`
        (RUNNING only while its process lives, KILLED when it ended without a word), `grade`, `attempts`,
        `step` (train steps done), `epochs`, `checkpoints` (on disk), `created` (UTC), then one column for
        the last value of each metric, such as `val/loss`; those under `batch/` and `time/` are left out.

    Raises:
        TrackerError: The folder cannot be read.

    Example:
        >>> xptrain.runs("digits").sort_values("val/loss").head()  # doctest: +SKIP
    """
    readings = [read(folder) for folder in reversed(finding.all_runs(resolve_home(home)))]
    rows = [_row(r) for r in readings if experiment is None or r.info.experiment == experiment]
    metrics = sorted({name for row in rows for name in row} - set(COLUMNS))
    table = pd.DataFrame(rows, columns=[*COLUMNS, *metrics])
    table["created"] = pd.to_datetime(table["created"], unit="ms", utc=True)
    return table


def history(run: Any, home: Home = None) -> pd.DataFrame:
    """Return every point of a run, one row each.

    Args:
        run: A key, an MLflow run id, a unique prefix of either, `"@last"`, or a `Run`.
        home: As for `runs`.

    Returns:
        Columns `metric`, `step` (train steps for `batch/`, the epoch number for `train/` and `val/`),
        `value` and `time` (UTC), sorted by metric and step. Each (metric, step) is there once. For a table
        with a column per metric: `history(run).pivot(index="step", columns="metric", values="value")`.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        TrackerError: The journal cannot be read.

    Example:
        >>> points = xptrain.history("3f2a")  # doctest: +SKIP
        >>> points[points.metric == "val/loss"].plot(x="step", y="value")  # doctest: +SKIP
    """
    folder = find_run(run, home)
    metric_records = (record for record, _ in journal.read(folder.journal) if record.kind == "metrics")
    rows = [point for record in metric_records for point in points(record)]
    table = pd.DataFrame(rows, columns=["metric", "step", "value", "time"])
    table = table.astype({"step": "int64", "value": "float64"})
    table["time"] = pd.to_datetime(table["time"], unit="ms", utc=True)
    return table.sort_values(["metric", "step"], kind="stable", ignore_index=True)


def compare(*runs: Any, home: Home = None, all_rows: bool = False) -> pd.DataFrame:
    """Compare what runs were and what they gave.

    Args:
        *runs: Two or more runs, each as for `history`.
        home: As for `runs`.
        all_rows: Also return the rows in which the runs agree.

    Returns:
        One column a run, named by its key; rows by (`section`, `name`): config, params, last metrics, code
        (commit, digest of the sources), packages, machine and devices, environment, data digest, program
        and the digest of the newest checkpoint's state. None where a run does not have a value.

    Raises:
        RunNotFoundError: No run or more than one has one of the names.
        UsageError: No run was named.
        TrackerError: A journal cannot be read.

    Example:
        >>> xptrain.compare("3f2a", "9c01").loc["config"]  # doctest: +SKIP
    """
    if not runs:
        raise UsageError("compare() needs runs", expected="two or more keys", found="none")
    columns = {}
    for run in runs:
        reading = read(find_run(run, home))
        columns[reading.info.key] = facts(reading)
    names = sorted(dict.fromkeys(name for column in columns.values() for name in column), key=_section_order)
    rows = {name: [column.get(name) for column in columns.values()] for name in names}
    kept = {
        n: values for n, values in rows.items() if all_rows or not all(same(values[0], v) for v in values)
    }
    index = pd.MultiIndex.from_tuples(list(kept), names=["section", "name"]) if kept else _no_rows()
    return pd.DataFrame(list(kept.values()), index=index, columns=list(columns), dtype=object)


def resolve_home(home: Home) -> Path:
    """Return the absolute home that `home` means."""
    return finding.home() if home is None else Path(home).expanduser().absolute()


def find_run(run: Any, home: Home = None) -> RunFolder:
    """Return the folder of a run given by name or as a `Run`; see `history`."""
    return finding.find(str(getattr(run, "key", run)), resolve_home(home))


def _row(reading: Reading) -> dict[str, Any]:
    info = reading.info
    known = (info.key, reading.run_id, info.experiment, info.name, reading.status, reading.grade)
    counts = (len(reading.attempts), reading.step, reading.epochs, len(reading.checkpoints.steps()))
    row = dict(zip(COLUMNS, (*known, *counts, info.created_ms), strict=True))
    return {**row, **{metric: value for metric, (_, value) in reading.last.items()}}


def _section_order(name: tuple[str, str]) -> int:
    # `sorted` is stable: within a section the order of the facts stays.
    return SECTIONS.index(name[0])


def _no_rows() -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([[], []], names=["section", "name"])
