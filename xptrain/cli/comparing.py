"""`xptrain compare`: where runs differ."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from xptrain.analysis.reading import read
from xptrain.analysis.runs import compare
from xptrain.cli import console
from xptrain.cli.syncing import settle
from xptrain.errors import UsageError
from xptrain.tracking.folder import find, home


def compare_runs(names: list[str], all_rows: bool, as_json: bool) -> None:
    """Print where runs differ.

    Raises:
        UsageError: Fewer than two runs were named.
    """
    folders = [find(name, home()) for name in names]
    keys = list(dict.fromkeys(folder.key for folder in folders))
    if len(keys) < 2:
        raise UsageError(
            "compare needs two runs", expected="two or more different runs", found=", ".join(keys) or "none"
        )
    found = compare(*keys, all_rows=all_rows)
    if as_json:
        rows = [
            {"section": section, "name": name, "values": dict(zip(keys, values, strict=True))}
            for (section, name), values in zip(found.index, found.values.tolist(), strict=True)
        ]
        console.print_json({"runs": keys, "rows": rows})
    elif found.empty:
        console.out().print("nothing that is recorded differs")
    else:
        _print(keys, list(zip(found.index, found.values.tolist(), strict=True)))
    settle([read(folder) for folder in folders])


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
