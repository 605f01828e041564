"""`xptrain show`: everything about one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rich.text import Text

from xptrain.analysis.reading import AttemptFacts, Reading, read
from xptrain.analysis.recorded import recorded
from xptrain.checkpoint.receipts import Receipt
from xptrain.cli import console
from xptrain.cli.listing import summary
from xptrain.cli.syncing import settle
from xptrain.session.forked import Fork
from xptrain.session.manifests import train_program
from xptrain.tracking.finding import find, home

_MOST_ROWS = 12
HOW_TO_TRAIN = "; train with run.fit(model, …), not with model.fit(…), in a new run"


def show_run(name: str, as_json: bool) -> None:
    """Print everything about one run."""
    reading = read(find(name, home()))
    manifest = reading.manifest()
    if as_json:
        console.print_json(_as_json(reading, manifest))
    else:
        _print(reading, manifest)
    settle([reading])


def where_it_goes_on(reading: Reading) -> str:
    """Return in words where a resume begins, from the receipts alone."""
    if not reading.receipts:
        return "step 0: there is no checkpoint yet"
    receipt = reading.receipts[-1]
    if receipt.cursor.done:
        return f"step {receipt.step}, the end of fit {receipt.cursor.fit}"
    return f"step {receipt.step}, after {_done(receipt)}"


def _print(reading: Reading, manifest: dict[str, Any]) -> None:
    out, info = console.out(), reading.info
    title = f"{console.label(info.experiment, info.name, info.key)}  {info.key}  "
    out.print(Text(title, "bold") + console.status(reading.status))
    if info.description:
        out.print(info.description, style="italic")
    out.print()
    out.print(console.facts(_facts(reading, manifest)))
    _print_attempts(reading)
    _print_checkpoints(reading)
    if reading.divergences:
        _section("Points that came out differently", reading.divergences)
    if manifest.get("differences"):
        _section("Changed since the attempt before", manifest["differences"])
    hazards = [hit for hit in manifest.get("hazards", []) if hit["severity"] != "info"]
    if hazards:
        _section("Hazards", [f"{hit['severity']}: {hit['title']} ({hit['evidence']})" for hit in hazards])
    out.print()
    out.print(console.heading("Where"))
    out.print(console.facts(_places(reading)))
    out.print()
    out.print(console.heading("Resume"))
    out.print(console.facts(_resume(reading)))


def _facts(reading: Reading, manifest: dict[str, Any]) -> dict[str, Any]:
    info, code, devices = reading.info, manifest.get("code") or {}, manifest.get("devices") or {}
    git, fork = code.get("git") or {}, Fork.of(info)
    kinds = ", ".join(f"{count} x {kind}" for kind, count in (devices.get("kinds") or {}).items())
    commit = (git.get("commit") or "")[:12] + (" with uncommitted edits" if git.get("dirty") else "")
    versions = (manifest.get("packages") or {}).get("bit_movers") or {}
    shown = ", ".join(f"{name} {versions[name]}" for name in ("keras", "jax", "jaxlib") if name in versions)
    metrics = ", ".join(
        f"{m} {console.number(v)}" for m, (_, v) in sorted(reading.last.items(), reverse=True)
    )
    return {
        "progress": f"{reading.step} steps, {reading.epochs} epochs",
        "metrics": metrics,
        "reason": reading.reason,
        "grade": console.grade(reading.grade or "not known before the first fit"),
        "config": ", ".join(f"{name}={value}" for name, value in (info.setup.get("config") or {}).items()),
        "seed": info.setup.get("seed"),
        "fork of": "" if fork is None else f"{fork.parent}, from step {fork.step}",
        "started": f"{console.when(info.created_ms)} by {info.user} on {info.host}",
        "trained on": kinds,
        "commit": commit,
        "versions": shown,
        "data digest": ((manifest.get("data") or {}).get("digest") or "")[:12],
        "program hash": (train_program(manifest) or "")[:12],
        "MLflow run": reading.run_id or "not there yet",
    }


def _print_attempts(reading: Reading) -> None:
    headers = ("#", "FROM", "TO", "TRAINED", "STATUS", "STARTED", "TOOK", "PROCESS")
    table = console.table(*headers, right=("#", "FROM", "TO", "TRAINED", "TOOK"))
    for facts in reading.attempts:
        attempt = facts.attempt
        table.add_row(
            str(attempt.attempt),
            "-" if facts.from_step is None else str(facts.from_step),
            str(facts.to_step),
            f"{facts.trained} steps",
            Text("refused", "yellow") if facts.refused else console.status(facts.status),
            console.when(attempt.ms),
            console.took(facts.ended_ms - attempt.ms),
            f"{attempt.pid} on {attempt.host}",
        )
    console.out().print()
    console.out().print(console.heading("Attempts"))
    console.out().print(_indented(table) if reading.attempts else "  none: it died before its first record")
    for facts in reading.attempts:
        if facts.refused:
            console.out().print(f"  {facts.attempt.attempt}: {facts.refused}", style="dim", soft_wrap=True)
    numbers = [facts.attempt.attempt for facts in reading.attempts]
    if missing := sorted(set(range(1, max(numbers, default=0))) - set(numbers)):
        told = ", ".join(map(str, missing))
        console.out().print(f"  not listed: {told}; refused, or dead, before the first record", style="dim")


def _print_checkpoints(reading: Reading) -> None:
    out, receipts = console.out(), reading.receipts
    wide = out.width >= console.WIDE
    metrics = sorted({m for receipt in receipts for m in receipt.metrics if m.startswith("val_")}) or sorted(
        {metric for receipt in receipts for metric in receipt.metrics}
    )
    metrics = sorted(metrics, key=lambda metric: not metric.endswith("loss"))[: 3 if wide else 1]
    names = [metric.upper().replace("VAL_", "VAL/") for metric in metrics]
    table = console.table("STEP", "AFTER", *names, "SAVED", "BY", "DIGEST", "", right=("STEP", *names))
    for receipt in reversed(receipts[-_MOST_ROWS:]):
        values = [console.number(receipt.metrics[m]) if m in receipt.metrics else "" for m in metrics]
        note = "end of fit" if receipt.cursor.done else "pinned" if receipt.pinned else ""
        saved = (console.when if wide else console.ago)(receipt.created_ms)
        place = [str(receipt.step), _done(receipt), *values]
        table.add_row(*place, saved, f"#{receipt.attempt}", receipt.digest[:12], note)
    deleted = len({r.step for r in reading.checkpoints.ledger.history()} - {r.step for r in receipts})
    lost = reading.checkpoints.ledger.lost()
    notes = [f"{deleted - len(lost)} older ones were deleted by retention"] if deleted > len(lost) else []
    notes += [f"the one of step {step} is {why}" for step, why in lost.items()]
    out.print()
    out.print(console.heading("Checkpoints"))
    out.print(_indented(table) if receipts else "  none yet")
    for note in notes:
        out.print(f"  {note}", style="dim")


def _done(receipt: Receipt) -> str:
    """Return how much of its fit a checkpoint has behind it."""
    cursor = receipt.cursor
    fit = f"fit {cursor.fit}: " if cursor.fit else ""
    batches = f" + {cursor.batch} batches" if cursor.batch and not cursor.done else ""
    return f"{fit}{cursor.epoch} epoch{'s' if cursor.epoch != 1 else ''}{batches}"


def _places(reading: Reading) -> dict[str, Any]:
    return {
        "run folder": reading.folder.path,
        "checkpoints": reading.info.checkpoint_dir,
        "artifacts": _artifacts(reading),
        "MLflow store": reading.info.tracking_uri,
        "undelivered": _undelivered(reading),
    }


def _undelivered(reading: Reading) -> str | None:
    journal = [f"{reading.undelivered} bytes of the journal"] if reading.undelivered else []
    files = [f"files of {reading.postponed} records"] if reading.postponed else []
    return ", ".join([*journal, *files]) or None


def _artifacts(reading: Reading) -> str | None:
    location = reading.info.artifact_location
    if location is None or reading.run_id is None:
        return None
    path = Path(unquote(urlsplit(location).path)) / reading.run_id / "artifacts"
    return str(path) if path.is_dir() else None


def _resume(reading: Reading) -> dict[str, Any]:
    command = recorded(reading)
    key = reading.info.key
    if reading.live:
        typed = "it is being trained now"
    elif reading.status == "FINISHED" and not reading.step:
        typed = f"finished without training: there is nothing to go on with{HOW_TO_TRAIN}"
    elif not command.can_run:
        typed = f'run its code again with xptrain.run({reading.info.experiment!r}, resume="{key}")'
    elif reading.status == "FINISHED":
        typed = (
            f"finished; raise epochs= in the script, and xptrain resume {key} --allow epochs trains further"
        )
    else:
        typed = f"xptrain resume {key}"
    goes_on = None if reading.live or reading.status == "FINISHED" else f"from {where_it_goes_on(reading)}"
    return {"type": typed, "goes on": goes_on, "which runs": command.shown if command.can_run else None}


def _as_json(reading: Reading, manifest: dict[str, Any]) -> dict[str, Any]:
    info = reading.info
    return {
        **summary(reading),
        "description": info.description,
        "config": info.setup.get("config"),
        "seed": info.setup.get("seed"),
        "user": info.user,
        "host": info.host,
        "attempt_list": [_attempt_json(facts) for facts in reading.attempts],
        "checkpoint_list": [_checkpoint_json(receipt) for receipt in reading.receipts],
        "divergences": reading.divergences,
        "differences": manifest.get("differences", []),
        "hazards": manifest.get("hazards", []),
        "folder": str(reading.folder.path),
        "checkpoint_dir": info.checkpoint_dir,
        "artifacts": _artifacts(reading),
        "tracking_uri": info.tracking_uri,
        "undelivered_bytes": reading.undelivered,
        "undelivered_files": reading.postponed,
        "resume": {name: value for name, value in _resume(reading).items() if value},
    }


def _attempt_json(facts: AttemptFacts) -> dict[str, Any]:
    attempt = facts.attempt
    named = {"attempt": attempt.attempt, "pid": attempt.pid, "host": attempt.host, "started_ms": attempt.ms}
    steps = {"from_step": facts.from_step, "to_step": facts.to_step, "trained": facts.trained}
    ending = {"status": facts.status, "reason": facts.reason, "refused": facts.refused}
    return {**named, **steps, **ending, "ended_ms": facts.ended_ms}


def _checkpoint_json(receipt: Receipt) -> dict[str, Any]:
    record = receipt.to_json()
    record["leaves"] = {leaf.path: leaf.digest for leaf in receipt.leaves}
    return record


def _section(title: str, lines: list[str]) -> None:
    console.out().print()
    console.out().print(console.heading(title))
    for line in lines[:_MOST_ROWS]:
        console.out().print(f"  {line}", soft_wrap=True)
    if len(lines) > _MOST_ROWS:
        console.out().print(f"  … and {len(lines) - _MOST_ROWS} more", style="dim")


def _indented(table: Any) -> Any:
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, 2))
