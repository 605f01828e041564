"""`xptrain list`: one line a run."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from rich.text import Text

from xptrain.analysis.reading import Reading, read
from xptrain.cli import console
from xptrain.cli.syncing import settle
from xptrain.tracking.finding import all_runs, home


def list_runs(experiment: str | None, limit: int, as_json: bool) -> None:
    """Print the runs of this home, newest first."""
    readings = [read(folder) for folder in reversed(all_runs(home()))]
    readings = [r for r in readings if experiment is None or r.info.experiment == experiment]
    if as_json:
        console.print_json([summary(reading) for reading in readings])
    elif readings:
        _print(readings[:limit])
        if len(readings) > limit:
            console.out().print(
                f"… and {len(readings) - limit} older ones: --limit {len(readings)}", style="dim"
            )
    else:
        of = f" of {experiment!r}" if experiment else ""
        console.out().print(f"no runs{of} in {home()}{missing_home()}", soft_wrap=True)
    settle(readings)


def missing_home() -> str:
    """Return what to add where there are no runs since there is no such folder; empty where there is one."""
    if home().is_dir():
        return ""
    what = ": there is no such folder. "
    if os.environ.get("XPTRAIN_HOME"):
        return f"{what}XPTRAIN_HOME names it: correct it or unset it, or train a run there first"
    return f"{what}Go to the folder in which the runs were started, or set XPTRAIN_HOME"


def summary(reading: Reading) -> dict[str, Any]:
    """Return what a list tells of a run, as JSON data."""
    info = reading.info
    return {
        "key": info.key,
        "run_id": reading.run_id,
        "experiment": info.experiment,
        "name": info.name,
        "status": reading.status,
        "reason": reading.reason,
        "grade": reading.grade,
        "attempts": len(reading.attempts),
        "step": reading.step,
        "epochs": reading.epochs,
        "checkpoints": len(reading.checkpoints.steps()),
        "created_ms": info.created_ms,
        "metrics": {metric: value for metric, (_, value) in sorted(reading.last.items())},
    }


def _print(readings: list[Reading]) -> None:
    wide = console.out().width >= console.WIDE
    metrics = _shown_metrics(readings, most=3 if wide else 1)
    names = [metric.upper() for metric in metrics]
    headers = ["RUN", "EXPERIMENT", "STATUS", "STEP", "EPOCHS", *(["ATTEMPTS"] if wide else []), "GRADE"]
    rows = [_row(reading, metrics, wide) for reading in readings]
    columns = list(zip([*headers, *names, "STARTED"], *rows, strict=True))
    widths = [max(len(cell) for cell in column) + 2 for column in columns]
    room = console.out().width - sum(widths) + widths[1] - 2
    table = console.table(*headers, *names, "STARTED", right=("STEP", "EPOCHS", "ATTEMPTS", *names))
    table.columns[1].max_width = max(10, room)
    table.columns[1].overflow = "ellipsis"
    for row in rows:
        table.add_row(*row)
    console.out().print(table)


def _row(reading: Reading, metrics: list[str], wide: bool) -> list[str | Text]:
    info = reading.info
    tries = [str(len(reading.attempts))] if wide else []
    return [
        Text(info.key, "bold"),
        console.label(info.experiment, info.name, info.key),
        console.status(reading.status),
        str(reading.step),
        str(reading.epochs),
        *tries,
        _grade(reading.grade),
        *(_last(reading, metric) for metric in metrics),
        console.ago(info.created_ms),
    ]


def _grade(grade: str) -> Text:
    short = console.grade(grade or "-", short=True)
    return Text("same topology", short.style) if "topology" in short.plain else short


def _last(reading: Reading, metric: str) -> str:
    return console.number(reading.last[metric][1]) if metric in reading.last else ""


def _shown_metrics(readings: list[Reading], most: int) -> list[str]:
    """Return the metrics to show: validation before training, loss before others, common before rare."""
    count = Counter(metric for reading in readings for metric in reading.last)
    chosen = [
        metric for metric in count if metric.startswith(("val/", "train/")) and "learning_rate" not in metric
    ]
    known = {metric for metric in chosen if metric.startswith("val/")}
    chosen = [m for m in chosen if m in known or f"val/{m[6:]}" not in known] or list(count)
    chosen.sort(key=lambda m: (m not in known, -count[m], not m.endswith("loss"), m))
    return chosen[:most]
