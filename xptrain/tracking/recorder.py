"""The recorder: a process of its own that delivers a run's journal while, and after, the run trains."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from xptrain.errors import XptrainError
from xptrain.tracking import processes
from xptrain.tracking.attempts import run_state
from xptrain.tracking.drain import Drain, TrackerFactory
from xptrain.tracking.durable import write_json
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.stores import open_tracker

POLL_S = 0.5
LONGEST_PAUSE_S = 15.0
GIVE_UP_S = 300.0
_log = logging.getLogger("xptrain.recorder")
_children: list[subprocess.Popen[bytes]] = []


def spawn(folder: RunFolder, tracking_uri: str | None = None) -> subprocess.Popen[bytes]:
    """Start a recorder that watches this process.

    Args:
        folder: The run.
        tracking_uri: Complete tracking URI when the recorded one had a password.

    Returns:
        The process. It has a session of its own and outlives this one.

    Raises:
        OSError: It cannot be started.
    """
    pid, started = processes.own()
    # -P and another cwd: a mlflow.py in the user's folder must not be taken for the real one.
    command = [sys.executable, "-P", "-m", "xptrain.tracking.recorder", str(folder.path.absolute())]
    command += ["--watch-pid", str(pid), "--pid-started", repr(started)]
    with folder.recorder_log.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder.path,
            env=_environment(os.environ, tracking_uri),
        )
    _children.append(child)
    write_json(folder.recorder_json, {"pid": child.pid, "pid_started": _started(child.pid), "watches": pid})
    return child


def ensure(folder: RunFolder, tracking_uri: str | None = None) -> bool:
    """Start a recorder for this process unless one is alive.

    Args:
        folder: The run.
        tracking_uri: As in `spawn`.

    Returns:
        True when one was started.

    Raises:
        OSError: It cannot be started.
    """
    for child in _children:
        child.poll()  # takes the exit status of dead ones, which would stay zombies
    try:
        found = json.loads(folder.recorder_json.read_bytes())
    except (FileNotFoundError, ValueError):
        found = {"pid": 0, "pid_started": 0.0, "watches": 0}
    if found["watches"] == os.getpid() and processes.alive(found["pid"], found["pid_started"]):
        return False
    spawn(folder, tracking_uri)
    return True


def _started(pid: int) -> float:
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _environment(current: Mapping[str, str], tracking_uri: str | None) -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[2])
    paths = [p for p in current.get("PYTHONPATH", "").split(os.pathsep) if p]
    kept = {k: v for k, v in current.items() if k not in ("XLA_FLAGS", "MLFLOW_RUN_ID")}
    if tracking_uri:
        kept["MLFLOW_TRACKING_URI"] = tracking_uri
    return {
        **kept,
        # The trainer may have found us by a path that only its own sys.path knows.
        "PYTHONPATH": os.pathsep.join(paths if package in paths else [*paths, package]),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


class Recorder:
    """Delivers one run until its trainer ended and all is told.

    Args:
        folder: The run.
        trainer: The process that trains it.
        tracker_factory: Makes the tracker.
        give_up_s: Seconds after the trainer's end for which a store that fails is tried again.
    """

    def __init__(
        self,
        folder: RunFolder,
        trainer: processes.Watched,
        tracker_factory: TrackerFactory = open_tracker,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._folder = folder
        self._trainer = trainer
        self._drain = Drain(folder, tracker_factory)
        self._give_up_s = give_up_s
        self._failures = 0

    def run(self) -> int:
        """Deliver until done; 0 when the store has everything, 1 when it stayed unusable."""
        ended: float | None = None
        while True:
            # Before delivering, so that what the trainer wrote last is delivered too.
            if ended is None and not self._trainer.alive():
                ended = time.monotonic()
                self._failures = 0
            told = self._pass(final=ended is not None)
            if told and (ended is not None or self._finished()):
                return 0
            if not told and ended is not None and time.monotonic() - ended > self._give_up_s:
                _log.error("giving up: the next xptrain command, or xptrain sync, delivers the rest")
                return 1
            self._pause(watch=ended is None)

    def _pass(self, final: bool) -> bool:
        try:
            done = self._drain.reconcile() if final else self._drain.deliver()
        except (XptrainError, OSError) as error:
            self._failures += 1
            if self._failures in (1, 10, 100):
                _log.warning("delivery failed %d times in a row: %s", self._failures, error)
            return False
        if self._failures:
            _log.info("delivery works again")
        self._failures = 0
        if done.records:
            _log.info("run %s: %d records, up to %d, %s", done.run_id, done.records, done.offset, done.status)
        return True

    def _finished(self) -> bool:
        state = run_state(self._folder) if self._told_final() else None
        return state is not None and state.status != "RUNNING"

    def _told_final(self) -> bool:
        delivered = self._folder.delivered
        return delivered.status not in (None, "RUNNING") and (
            delivered.offset == self._folder.journal.stat().st_size
        )

    def _pause(self, watch: bool) -> None:
        pause = min(LONGEST_PAUSE_S, POLL_S * 2 ** min(self._failures, 10))
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left))
            if watch and not self._trainer.alive():
                return


def main(arguments: list[str] | None = None) -> int:
    """Run a recorder from the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m xptrain.tracking.recorder", description=__doc__)
    parser.add_argument("folder", type=Path, help="run folder")
    parser.add_argument("--watch-pid", type=int, required=True, help="process that trains the run")
    parser.add_argument("--pid-started", type=float, required=True, help="its start time, s since the epoch")
    parser.add_argument("--give-up", type=float, default=GIVE_UP_S, help="s to try a dead store at the end")
    given = parser.parse_args(arguments)
    # Ctrl-C and a scheduler's SIGTERM mean the trainer; its last words are still to be delivered.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(10)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trainer = processes.Watched(given.watch_pid, given.pid_started)
    return Recorder(RunFolder(given.folder), trainer, give_up_s=given.give_up).run()


if __name__ == "__main__":
    sys.exit(main())
