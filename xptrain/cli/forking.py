"""`xptrain fork`: a new run from a checkpoint of another one."""

from __future__ import annotations

from collections.abc import Sequence

from xptrain.analysis.forking import check, fork, parse
from xptrain.analysis.reading import read
from xptrain.analysis.recorded import recorded
from xptrain.cli import console
from xptrain.cli.resuming import ask, become, check_store
from xptrain.tracking.finding import find, home


def fork_run(
    name: str, step: int, settings: list[str], key: str | None, extra: Sequence[str], yes: bool
) -> None:
    """Make the new run, and let this process become its command.

    Args:
        name: The run to fork, as the user typed it.
        step: Step of its checkpoint.
        settings: `NAME=VALUE` for each changed value of the config.
        key: Key of the new run; drawn when None.
        extra: More arguments for the script.
        yes: Do not ask.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        CheckpointNotFoundError: It has no such checkpoint.
        UsageError: The config has no such value, or the key or the command cannot be used.
        TrackerError: Its tracking store cannot be used.
    """
    reading = read(find(name, home()))
    changes = parse(settings, reading.info.setup.get("config") or {})
    command = recorded(reading).with_arguments(extra)
    command.check()
    check(reading, step, key)
    check_store(reading)
    rows = {
        "from": f"step {step} of run {reading.info.key}",
        "changed": ", ".join(f"{name}={value}" for name, value in changes.items()) or "nothing",
        "command": command.shown,
        "in": command.cwd,
    }
    console.err().print(f"a fork of run {reading.info.key} of {reading.info.experiment}", style="bold")
    console.err().print(console.facts(rows))
    if not yes:
        ask(reading, command)
    child = read(fork(reading, step, changes, key))
    become(child, command, frozenset())
