"""`xptrain explain`: where two runs part, and what differed before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.padding import Padding
from rich.text import Text

from xptrain.analysis.causes import Cause, text_of
from xptrain.analysis.explain import Explanation, explain
from xptrain.analysis.parting import Parting, StateParting
from xptrain.analysis.proof.narrowing import Narrowed, narrow
from xptrain.analysis.reading import Reading, read
from xptrain.analysis.recorded import recorded
from xptrain.cli import console
from xptrain.cli.resuming import ask
from xptrain.cli.syncing import settle
from xptrain.provenance.diff.difference import check_allow
from xptrain.tracking.finding import find, home

_MOST_NAMES = 4
_MOST_OTHERS = 6


def explain_runs(
    first: str,
    second: str,
    as_json: bool,
    *,
    replay: bool = False,
    allow: Sequence[str] = (),
    yes: bool = False,
) -> bool:
    """Print where two runs part and why; returns whether all states that both have are equal.

    Args:
        first: A run, as the user typed it.
        second: The other one.
        as_json: Print JSON.
        replay: Train both again to find the very step.
        allow: What may differ from the recorded runs then, although it moves bits.
        yes: Do not ask then.

    Raises:
        RunNotFoundError: No run or more than one has one of the names.
        UsageError: Both names mean one run.
    """
    folders = [find(name, home()) for name in (first, second)]
    found = explain(folders[0].key, folders[1].key, home=home())
    readings = (read(folders[0]), read(folders[1]))
    narrowed = _narrow(readings, found, allow, yes) if replay else None
    headline = (narrowed and narrowed.headline) or found.headline
    if as_json:
        more = {} if narrowed is None else {"replayed": asdict(narrowed)}
        console.print_json({**found.to_json(), "headline": headline, **more})
    else:
        out = console.out()
        for reading in readings:
            name = console.label(reading.info.experiment, reading.info.name, reading.info.key)
            title = Text(f"{name}  ") + Text(reading.info.key, "bold") + "  "
            out.print(title + console.status(reading.status) + f"  {reading.step} steps")
        _print(found, headline)
        if narrowed is not None:
            _section("Trained again", _trained_again(found.runs, narrowed))
    settle(readings)
    return found.equal is True


def _narrow(
    readings: tuple[Reading, Reading], found: Explanation, allow: Sequence[str], yes: bool
) -> Narrowed | None:
    state = found.parting.state
    if state is None or state.step == 0:
        why = "no two recorded states differ" if state is None else "they differ before the first step"
        console.err().print(f"nothing to train again: {why}", style="dim")
        return None
    if not yes:
        for reading in readings:
            ask(reading, recorded(reading))
    console.err().print("both runs are trained again, step by step, from where they were equal", style="dim")
    return narrow(readings, found.parting, allow=check_allow(allow), yes=True)


def _trained_again(keys: tuple[str, str], found: Narrowed) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    if found.last_equal is not None:
        rows["last equal state"] = f"step {found.last_equal}"
    if found.state is not None:
        rows["first other state"] = _tensors(found.state)
    else:
        rows["states"] = "equal at every step: what made the runs part did not come again"
    for key in keys:
        if key in found.unlike_record:
            rows[key] = "did not come to the state that it recorded: it does not repeat itself here"
    return rows


def _print(found: Explanation, headline: str) -> None:
    out = console.out()
    out.print()
    out.print(Text(_sentence(headline), "green" if found.equal else "bold"))
    if found.causes:
        style = "yellow" if found.causes[0].kind == "unknown" else "bold red"
        out.print(Text("Likely cause: ") + Text(found.causes[0].title, style))
    _print_causes(found)
    if rows := _where(found.runs, found.parting):
        _section("Where they part", rows)
    if found.consequences:
        rows = {f"{c.title}{f', {c.place}' if c.place else ''}": _shown(c) for c in found.consequences}
        _section("What follows from it, as a rule", rows)
    if found.others:
        texts = [text_of(difference) for difference in found.others]
        title = "Also different, but no cause" if found.causes else "Different, without effect so far"
        _lines(title, [*texts[:_MOST_OTHERS], *_more(texts, _MOST_OTHERS)])
    for within in found.within:
        texts = [text_of(difference) for difference in within.differences]
        fate = "no cause" if found.causes else "without effect so far"
        title = f"Changed within {within.run} at {within.where}: {fate}"
        _lines(title, [*texts[:_MOST_OTHERS], *_more(texts, _MOST_OTHERS)])
    if found.causes and found.causes[0].kind == "unknown":
        for key, grade, hazards in zip(found.runs, found.grades, found.hazards, strict=True):
            _section(key, {"grade": console.grade(grade), "hazards": "\n".join(hazards) or "none known"})
    if found.notes:
        _lines("Note", found.notes)


def _print_causes(found: Explanation) -> None:
    if not found.causes or not found.causes[0].differences:
        return
    table = console.table("", *found.runs)
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for number, cause in enumerate(found.causes, 1):
        title = f"{number}  {'perhaps ' if cause.perhaps else ''}{cause.title}"
        table.add_row(Text(title, "bold") + Text(f"  {cause.place}" if cause.place else "", "dim"))
        for difference in cause.differences[:_MOST_NAMES]:
            values = [difference.before, difference.after]
            if cause.run:
                # Both values are of one run, and stand in its column.
                values = [" -> ".join(filter(None, values)) if key == cause.run else "" for key in found.runs]
            table.add_row(Text(f"   {difference.name}", "dim"), *values)
            if difference.note:
                table.add_row(Text(f"     {difference.note}", "dim"))
        for line in _more(cause.differences, _MOST_NAMES):
            table.add_row(Text(f"   {line}", "dim"))
    console.out().print()
    console.out().print(Padding(table, (0, 0, 0, 2)))


def _where(keys: tuple[str, str], parting: Parting) -> dict[str, Any]:
    """Return the last equal and the first different things as rows."""
    if not parting.parted:
        return {}
    rows: dict[str, Any] = {}
    if parting.last_equal is not None:
        rows["last equal state"] = f"step {parting.last_equal}"
    if parting.state is not None:
        rows["first other state"] = _tensors(parting.state)
    elif parting.states:
        rows["states"] = f"equal at all {parting.states} steps that both saved"
    if (point := parting.point) is not None:
        unit = "step" if point.metric.startswith("batch/") else "epoch"
        unit = unit if point.metric.partition("/")[0] in ("batch", "train", "val") else "step"
        values = " | ".join(repr(value) for value in point.values)
        rows["first other value"] = f"{point.metric} at {unit} {point.step}: {values}"
    elif parting.points:
        rows["values"] = f"all {parting.points} that both logged are equal"
    return rows


def _tensors(state: StateParting) -> str:
    return f"step {state.step}: {state.counted}: {state.named(_MOST_NAMES)}"


def _shown(cause: Cause) -> str:
    texts = [text_of(difference) for difference in cause.differences]
    return "; ".join([*texts[:2], *_more(texts, 2)])


def _more(texts: Any, most: int) -> list[str]:
    return [f"and {len(texts) - most} more"] if len(texts) > most else []


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _section(title: str, rows: dict[str, Any]) -> None:
    console.out().print()
    console.out().print(console.heading(title))
    console.out().print(console.facts(rows))


def _lines(title: str, lines: Iterable[str]) -> None:
    console.out().print()
    console.out().print(console.heading(title))
    for line in lines:
        console.out().print(Padding(line, (0, 0, 0, 2)))
