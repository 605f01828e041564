"""Replays: the run's own command once more, in a home of its own, with its record switched off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final

from xptrain.analysis.copies import lay_out
from xptrain.analysis.parting import Points, points_of
from xptrain.analysis.proof.scratch import scratch_in
from xptrain.analysis.reading import Reading
from xptrain.analysis.recorded import Recorded
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import (
    BackendError,
    CheckpointError,
    InexactError,
    RunLiveError,
    RunNotFoundError,
    TrackerError,
    UsageError,
    XptrainError,
)
from xptrain.provenance.environment import resume_environment
from xptrain.session.replay import VARIABLE, Orders, State, states
from xptrain.tracking import processes

# What a child says by its exit code is said again.
_ERRORS: Final = {
    kind.exit_code: kind
    for kind in (UsageError, RunNotFoundError, RunLiveError, InexactError, CheckpointError, TrackerError)
}
_TAIL: Final = 12
_GRACE_S: Final = 10.0


@dataclass(frozen=True)
class Replay:
    """What came out of a replay.

    Args:
        states: The states that were digested, in order.
        points: The values that were logged.
        seconds: How long the process took, in seconds.
    """

    states: tuple[State, ...]
    points: Points
    seconds: float


def replay(
    reading: Reading,
    command: Recorded,
    start: Receipt | None,
    stop: Receipt,
    *,
    steps: Collection[int] | None,
    allow: Collection[str] = (),
    quiet: bool = False,
) -> Replay:
    """Train a part of a run again, from one of its checkpoints.

    Args:
        reading: The run.
        command: Its command.
        start: The checkpoint to begin from; None for the beginning.
        stop: The state to stop at.
        steps: Steps whose state is digested; None for each.
        allow: What may differ from the recorded run although it moves bits.
        quiet: Show nothing of what the script prints, unless it fails.

    Returns:
        The digested states and logged values.

    Raises:
        XptrainError: The replay was refused, or ended before it reached its end.
    """
    with scratch_in(reading.folder.home) as scratch:
        folder = lay_out(reading, scratch / "home", start)
        orders = Orders(
            out=str(scratch / "states.jsonl"),
            files=str(scratch / "files"),
            key=reading.info.key,
            attempts=max((facts.attempt.attempt for facts in reading.attempts), default=0),
            steps=None if steps is None else tuple(sorted(steps)),
            stop_at=stop.step,
            at_end=stop.cursor.done,
            compiled=str(reading.folder.home),
        )
        env = resume_environment(command.environment, os.environ)
        env |= {"XPTRAIN_RESUME": reading.info.key}
        took = start_process(command.command, command.cwd, env, orders, scratch, allow, quiet)
        found = states(Path(orders.out))
        if not found or found[-1].receipt.step < stop.step:
            raise XptrainError(
                f"the replay of run {reading.info.key} ended before it came to step {stop.step}",
                expected="the script trains as it did when the run was recorded",
                found=f"it ended after step {found[-1].receipt.step if found else 0}",
                remedy="look at what it printed above",
            )
        return Replay(tuple(found), points_of(folder.journal), took)


def start_process(
    command: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    orders: Orders,
    scratch: Path,
    allow: Collection[str] = (),
    quiet: bool = False,
) -> float:
    """Run a command under orders and wait for it.

    Args:
        command: The command line.
        cwd: Working directory.
        env: Environment; the home, the orders and what may differ are added.
        orders: What the process is to do.
        scratch: Folder of the replay; its home is `home` in it.
        allow: What may differ although it moves bits.
        quiet: Show nothing of what it prints, unless it fails.

    Returns:
        How long it took, in seconds.

    Raises:
        XptrainError: It ended with an error; the class says which kind.
    """
    # One that is killed cannot end its child; the child looks after itself.
    replace(orders, parent=processes.own()).write(scratch / "orders.json")
    env = {**env, "XPTRAIN_HOME": str(scratch / "home"), VARIABLE: str(scratch / "orders.json")}
    # What is tracked goes nowhere; the user's store may not even be there.
    env = {name: value for name, value in env.items() if name != "MLFLOW_TRACKING_URI"}
    env["XPTRAIN_ALLOW"] = ",".join(sorted(allow))
    began = time.monotonic()
    log = scratch / "log.txt"
    with log.open("wb") as file:
        sys.stderr.flush()
        output = file if quiet else 2
        code = _wait([*command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    if code == -9 and orders.kill:
        return time.monotonic() - began
    if code:
        tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
        if tail and tail[-1].startswith("ModuleNotFoundError: No module named 'tensorflow"):
            raise BackendError(
                "the script failed: Keras looks for TensorFlow, which is not installed",
                expected="KERAS_BACKEND=jax",
                found=f"KERAS_BACKEND={env['KERAS_BACKEND']}"
                if "KERAS_BACKEND" in env
                else "no KERAS_BACKEND",
                remedy="set it where you start the script: export KERAS_BACKEND=jax",
            )
        said = "\n            ".join(tail) if quiet else "what is printed above"
        what, remedy = "the script failed", "run it as you usually do, and see"
        if code == InexactError.exit_code:
            what = "what it would be resumed with differs from what it was started with"
            remedy = "what may differ from the recorded run is named with --allow"
        raise _ERRORS.get(code, XptrainError)(what, found=f"exit code {code}: {said}", remedy=remedy)
    return time.monotonic() - began


def _wait(command: Sequence[str], **more: Any) -> int:
    """Run a command to its end and return its exit code; when this process is told to end, end that first."""
    mine = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if mine is not None:
        # Ctrl-C reaches every process of the terminal; what it means is decided, and said, here alone.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, **more)
    finally:
        if mine is not None:
            signal.signal(signal.SIGINT, mine)
    try:
        with _told_to_end():
            return child.wait()
    except BaseException:
        # So that the script ends what it has started itself, such as a loader's workers.
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
        raise
    finally:
        child.kill()
        child.wait()


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Turn what schedulers and closed terminals send into an exception, so that nothing is left behind."""
    before = {}

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    if current_thread() is main_thread():
        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
