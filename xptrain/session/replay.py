"""Replays: a run trained again beside its record, for a proof. Nothing of it reaches the run or MLflow.

Whoever replays a run lays out a home with copies (`analysis/proof/scratch.py`), writes orders into a file,
names that in XPTRAIN_REPLAY, and starts the run's own command. States are digested where the orders say
instead of being saved, and the process ends when there is no more to digest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from xptrain.checkpoint.receipts import Receipt, make_receipt, plain
from xptrain.errors import EXIT_PREEMPTED, UsageError
from xptrain.state.snapshot import Snapshot
from xptrain.tracking import processes
from xptrain.tracking.durable import now_ms

VARIABLE: Final = "XPTRAIN_REPLAY"
_LOOK_S: Final = 1.0
_GRACE_S: Final = 10.0


@dataclass(frozen=True)
class Orders:
    """What a process is to replay.

    Args:
        out: File that receives one JSON object for each state: `receipt`, and `host` without its session.
        files: Folder in which callbacks of Keras write instead of where they say.
        key: The run; None for the first one that the process opens.
        seed: Seed of a run that draws one.
        attempts: Attempts that the run has had.
        steps: Steps at which the state is digested; None for every step.
        stop_at: Step at which the process ends, once its state is digested; None for the end of the script.
        at_end: Whether the end of a fit, not just its last step, is meant by `stop_at`.
        save_at: Step at which a checkpoint is saved besides.
        kill: Whether the process is killed where it would end.
        compiled: Home whose compiled programs are used.
        parent: Number and start time of the process that replays; this one ends when that is gone.
    """

    out: str
    files: str
    key: str | None = None
    seed: int | None = None
    attempts: int = 0
    steps: tuple[int, ...] | None = None
    stop_at: int | None = None
    at_end: bool = False
    save_at: int | None = None
    kill: bool = False
    compiled: str | None = None
    parent: tuple[int, float] | None = None

    def write(self, path: Path) -> None:
        """Write them as JSON, for XPTRAIN_REPLAY."""
        path.write_text(json.dumps(asdict(self)))


class Replayed(SystemExit):
    """Everything that was to be replayed is; the process ends well."""

    def __init__(self) -> None:
        super().__init__(0)


class Replay:
    """The replay that this process does for one of its runs.

    Args:
        orders: What to do.
    """

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.key = orders.key
        self._is_over = False

    @property
    def files(self) -> Path:
        """Where callbacks of Keras write."""
        return Path(self.orders.files)

    def due(self, step: int) -> bool:
        """Tell whether the state after a step is wanted."""
        orders = self.orders
        wanted = orders.steps is None or step in orders.steps or step == orders.save_at
        return wanted or (orders.stop_at is not None and step >= orders.stop_at)

    def take(self, snapshot: Snapshot, attempt: int, save: Callable[[Snapshot], None]) -> None:
        """Digest a state.

        Args:
            snapshot: The state.
            attempt: Number of this process execution of the run.
            save: Saves it and returns when it is a checkpoint.

        Raises:
            Replayed: There is no more to replay.
        """
        orders = self.orders
        if self._is_over:
            return
        receipt = make_receipt(snapshot, attempt, now_ms())
        host = {name: value for name, value in plain(snapshot.host).items() if name != "session"}
        with Path(orders.out).open("a") as file:
            file.write(json.dumps({"receipt": receipt.to_json(), "host": host}) + "\n")
        if snapshot.step == orders.save_at:
            save(snapshot)
        if orders.stop_at is not None and snapshot.step >= orders.stop_at:
            if orders.at_end and not snapshot.cursor.done and snapshot.step == orders.stop_at:
                return
            self._end()

    def _end(self) -> NoReturn:
        self._is_over = True
        if self.orders.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if threading.current_thread() is not threading.main_thread():
            # Nobody would see this thread end.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        raise Replayed


@dataclass(frozen=True)
class State:
    """A state that was digested.

    Args:
        receipt: Its leaves, with their digests.
        host: The host state, without what belongs to the session.
    """

    receipt: Receipt
    host: Mapping[str, Any]


def states(out: Path) -> list[State]:
    """Read what a replay wrote to `Orders.out`, in order; a torn last line is left out."""
    text = out.read_bytes() if out.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    records = [json.loads(line) for line in lines]
    return [State(Receipt.from_json(record["receipt"]), record["host"]) for record in records]


def by_step(states: Iterable[State]) -> dict[int, list[State]]:
    """Return states by their step, those of one step in order."""
    found: dict[int, list[State]] = {}
    for state in states:
        found.setdefault(state.receipt.step, []).append(state)
    return found


@cache
def ordered() -> Replay | None:
    """Return the replay that this process was started for, or None.

    The variable is taken away, so that no child process replays.

    Raises:
        UsageError: The file that it names cannot be read.
    """
    path = os.environ.pop(VARIABLE, None)
    if not path:
        return None
    try:
        record = json.loads(Path(path).read_text())
        lists = {name: tuple(value) for name, value in record.items() if isinstance(value, list)}
        orders = Orders(**{**record, **lists})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{VARIABLE} names a file that cannot be read",
            expected="orders as `xptrain verify` writes them",
            found=f"{path}: {error}",
            remedy=f"unset {VARIABLE}; it is not for use by hand",
        ) from error
    if orders.parent is not None:
        watch = threading.Thread(target=_end_with, args=orders.parent, name="xptrain-replay", daemon=True)
        watch.start()
    return Replay(orders)


def _end_with(pid: int, started: float) -> None:
    """End this process when the one that replays is gone, which was killed and could not end it."""
    parent = processes.Watched(pid, started)
    while parent.alive():
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(EXIT_PREEMPTED)


def of_run(key: str) -> Replay | None:
    """Return the replay if it is of this run: of the one it names, or of the first that asks."""
    replay = ordered()
    if replay is None:
        return None
    replay.key = replay.key or key
    return replay if replay.key == key else None
