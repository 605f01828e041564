"""`xptrain compare`: where runs differ."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from xptrain.analysis.reading import Reading, read
from xptrain.analysis.runs import compare
from xptrain.cli import console
from xptrain.cli.syncing import settle
from xptrain.errors import UsageError
from xptrain.tracking.finding import find, home


def compare_runs(names: list[str], all_rows: bool, as_json: bool) -> bool:
    """Print where runs differ; returns whether their newest states are equal bit for bit.

    Raises:
        UsageError: Fewer than two runs were named.
    """
    folders = {folder.key: folder for folder in (find(name, home()) for name in names)}
    keys = list(folders)
    if len(keys) < 2:
        raise UsageError(
            "compare needs two runs", expected="two or more different runs", found=", ".join(keys) or "none"
        )
    found = compare(*keys, all_rows=all_rows)
    readings = [read(folder) for folder in folders.values()]
    equal, state = _states(readings)
    if as_json:
        rows = [
            {"section": section, "name": name, "values": dict(zip(keys, values, strict=True))}
            for (section, name), values in zip(found.index, found.values.tolist(), strict=True)
        ]
        console.print_json({"runs": keys, "state_equal": equal, "rows": rows})
    else:
        if found.empty:
            console.out().print("nothing that is recorded differs")
        else:
            _print(keys, list(zip(found.index, found.values.tolist(), strict=True)))
        console.out().print(f"\nnewest checkpoints: {state}")
        if not equal and len(keys) == 2:
            console.out().print(f"where they part, and why: xptrain explain {' '.join(keys)}", style="dim")
    settle(readings)
    return equal


def _states(readings: list[Reading]) -> tuple[bool, str]:
    """Return whether the newest states of runs are equal, and a sentence that says so."""
    newest = [reading.receipts[-1] if reading.receipts else None for reading in readings]
    found = [receipt for receipt in newest if receipt is not None]
    if len(found) < len(newest):
        return False, "not every run has one"
    steps = sorted({receipt.step for receipt in found})
    if len(steps) > 1:
        return False, f"of other steps ({', '.join(map(str, steps))})"
    equal = len({receipt.digest for receipt in found}) == 1
    return equal, f"{'equal bit for bit' if equal else 'they differ'}, at step {steps[0]}"


def _print(keys: list[str], rows: list[tuple[tuple[str, str], list[Any]]]) -> None:
    table = console.table("", *keys)
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    section = ""
    for (group, name), values in rows:
        if group != section:
            if section:
                table.add_row("")
            table.add_row(console.heading(group))
            section = group
        table.add_row(Text(f"  {name}", "dim"), *(_cell(value) for value in values))
    console.out().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return console.number(value) if isinstance(value, float) else str(console.short(value))
