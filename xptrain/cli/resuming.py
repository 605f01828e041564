"""`xptrain resume`: finds the run, says where it goes on, and becomes its recorded command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import typer

from xptrain.analysis.reading import Reading, read
from xptrain.analysis.recorded import Recorded, recorded, refuse_strangers, strangers
from xptrain.cli import console
from xptrain.cli.showing import HOW_TO_TRAIN, where_it_goes_on
from xptrain.errors import RunLiveError
from xptrain.provenance.diff.difference import check_allow
from xptrain.provenance.environment import environment_changes, resume_environment
from xptrain.session.opening import check_checkpoint_folder
from xptrain.tracking.finding import find, home
from xptrain.tracking.stores import check_sqlite, sqlite_path, unmask

# The rest is set by libraries as they are imported, and would hide what the user set.
_TELLING = ("KERAS_", "XLA_", "JAX_", "PYTHON", "NPROC", "PJRT_NPROC", "CUDA_VISIBLE", "OMP_NUM")


def resume_run(name: str, extra: Sequence[str], allow: Sequence[str], yes: bool) -> None:
    """Go on with a run: this process becomes its recorded command.

    Args:
        name: The run, as the user typed it.
        extra: More arguments for the script.
        allow: What may differ although it moves bits.
        yes: Do not ask.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        RunLiveError: A process trains it.
        UsageError: Its command cannot be started again.
        CheckpointError: Its checkpoint folder is gone or cannot be written.
        TrackerError: Its tracking store cannot be used.
    """
    names = check_allow(allow)
    reading = read(find(name, home()))
    _refuse_live(reading)
    if reading.status == "FINISHED" and "epochs" not in names:
        _say_finished(reading)
        return
    command = recorded(reading).with_arguments(extra)
    command.check()
    if reading.attempts:
        check_checkpoint_folder(reading.info)
    check_store(reading)
    _say_what(reading, command)
    if not yes:
        ask(reading, command)
    become(reading, command, names)


def check_store(reading: Reading) -> None:
    """Raise TrackerError if a run's store is a file that cannot be used."""
    uri = unmask(reading.info.tracking_uri)
    if uri.startswith("sqlite:"):
        check_sqlite(sqlite_path(uri))


def _refuse_live(reading: Reading) -> None:
    if reading.live:
        last = reading.attempts[-1].attempt if reading.attempts else None
        raise RunLiveError(
            f"run {reading.info.key} is being trained now",
            expected="a run that no process trains",
            found=f"process {last.pid} on {last.host}, attempt {last.attempt}"
            if last
            else "its lock is held",
            remedy="wait for it, or stop that process first",
        )


def _say_finished(reading: Reading) -> None:
    key = reading.info.key
    if not reading.step:
        done = f"run {key} is finished, and nothing was trained under it{HOW_TO_TRAIN}. Nothing was started."
        console.out().print(done, soft_wrap=True)
        return
    done = f"run {key} is finished: {reading.step} steps, {reading.epochs} epochs. Nothing was started."
    console.out().print(done, soft_wrap=True)
    console.out().print(
        f"To train it further: xptrain resume {key} --allow epochs -- ARGS", style="dim", soft_wrap=True
    )


def _say_what(reading: Reading, command: Recorded) -> None:
    info = reading.info
    changes = environment_changes(command.environment, os.environ)
    shown = [(name, then) for name, _, then in changes if name.startswith(_TELLING)]
    settings = [f"{name}={shlex.quote(then)}" if then else f"without {name}" for name, then in shown]
    title = f"run {info.key} of {info.experiment}: {reading.status} after step {reading.step}"
    rows = {
        "goes on from": where_it_goes_on(reading),
        "command": command.shown,
        "in": command.cwd,
        "environment": ", ".join(settings),
    }
    console.err().print(title, style="bold", soft_wrap=True)
    console.err().print(console.facts(rows))


def ask(reading: Reading, command: Recorded) -> None:
    """Ask before a command of somebody else is started (law L12).

    Raises:
        UsageError: Nobody is here to answer.
    """
    strange = strangers(reading, command)
    if not strange:
        return
    if not sys.stdin.isatty():
        refuse_strangers(reading, command, "look at the command above; then give --yes")
    typer.confirm(f"It was recorded by {', '.join(strange)}. Start it?", abort=True, err=True)


def become(reading: Reading, command: Recorded, allow: frozenset[str]) -> None:
    """Let this process become a run's command."""
    env = resume_environment(command.environment, os.environ)
    env |= {"XPTRAIN_HOME": str(reading.folder.home), "XPTRAIN_RESUME": reading.info.key}
    env.pop("XPTRAIN_ALLOW", None)
    if allow:
        env["XPTRAIN_ALLOW"] = ",".join(sorted(allow))
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(command.cwd)
    # No child: whoever signals, waits for or looks up this process means the training itself.
    os.execve(command.interpreter, command.command, env)
