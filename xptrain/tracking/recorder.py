"""The recorder: a process of its own that delivers a run's journal while, and after, the run trains."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from xptrain.errors import TrackerError, XptrainError
from xptrain.tracking import journal, processes
from xptrain.tracking.attempts import run_state
from xptrain.tracking.drain import Delivery, Drain, TrackerFactory
from xptrain.tracking.durable import write_json
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.stores import open_tracker

POLL_S = 0.5
# A point costs MLflow some 0.1 ms of processor time, which a fast loop on few cores would feel. While the run
# trains and no core is free, one part of the time goes to delivery and this many parts to rest; what waits is
# delivered when the run has ended.
REST = 6.0
FREE_CORES = 1.5
MOST_POINTS = 1000
LONGEST_PAUSE_S = 15.0
# MLflow takes seconds to import, just when the trainer compiles and trains its first epochs.
START_S = 10.0
GIVE_UP_S = 300.0
LONGEST_LOG = 4 << 20
_PYTHON = re.compile(r"(python|pypy)[\d.]*[a-z]?$", re.IGNORECASE)
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
        TrackerError: It cannot be started.
    """
    pid, started = processes.own()
    # -P and another cwd: a mlflow.py in the user's folder must not be taken for the real one.
    command = [interpreter(), "-P", "-m", "xptrain.tracking.recorder", str(folder.path.absolute())]
    command += ["--watch-pid", str(pid), "--pid-started", repr(started)]
    try:
        bound(folder.recorder_log)
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
        told = {"pid": child.pid, "pid_started": _started(child.pid), "watches": pid}
        write_json(folder.recorder_json, told)
    except OSError as error:
        raise TrackerError(
            "the recorder, which delivers to the tracking store, cannot be started",
            found=f"{command[0]}: {error}",
            remedy="free memory, processes or disk space; xptrain sync delivers what waits",
        ) from error
    return child


def interpreter() -> str:
    """Return the Python to run the recorder with: in an embedding program `sys.executable` is another one."""
    here = Path(sys.executable or "")
    if _PYTHON.match(here.name):
        return str(here)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix):
        for name in (version, "python3", "python"):
            found = Path(prefix) / "bin" / name
            if os.access(found, os.X_OK):
                return str(found)
    raise TrackerError(
        "no Python interpreter is found to run the recorder with",
        expected=f"{version} in {Path(sys.prefix) / 'bin'}",
        found=f"sys.executable = {sys.executable!r}",
        remedy="set sys.executable to the interpreter that has xptrain installed",
    )


def bound(log: Path) -> None:
    """Keep a log from growing for ever: one that is long becomes `<name>.1`, and its writers begin anew."""
    with suppress(OSError):
        if log.stat().st_size > LONGEST_LOG:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def ensure(folder: RunFolder, tracking_uri: str | None = None) -> bool:
    """Start a recorder for this process unless one is alive.

    Args:
        folder: The run.
        tracking_uri: As in `spawn`.

    Returns:
        True when one was started; one that cannot be is warned about, since training outlives its tracker.
    """
    for child in _children:
        child.poll()  # takes the exit status of dead ones, which would stay zombies
    if lives(folder, watches=os.getpid()):
        return False
    try:
        spawn(folder, tracking_uri)
    except TrackerError as error:
        warnings.warn(str(error), stacklevel=2)
        return False
    return True


def lives(folder: RunFolder, watches: int | None = None) -> bool:
    """Tell whether a run's recorder runs.

    Args:
        folder: The run.
        watches: Only one that watches this process counts; None for any.
    """
    try:
        found = json.loads(folder.recorder_json.read_bytes())
        is_it = watches is None or found["watches"] == watches
        return is_it and processes.alive(found["pid"], found["pid_started"])
    except (OSError, ValueError, KeyError):
        return False


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
        last_words: Called before each delivery once nothing trains that should go first.
    """

    def __init__(
        self,
        folder: RunFolder,
        trainer: processes.Watched,
        tracker_factory: TrackerFactory = open_tracker,
        give_up_s: float = GIVE_UP_S,
        last_words: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._trainer = trainer
        self._drain = Drain(folder, tracker_factory)
        self._give_up_s = give_up_s
        self._last_words = last_words
        self._failures = 0

    def run(self) -> int:
        """Deliver until done; 0 when the store has everything, 1 when it stayed unusable."""
        ended: float | None = None
        while True:
            # Before delivering, so that what the trainer wrote last is delivered too.
            if ended is None and not self._trainer.alive():
                ended = time.monotonic()
                self._failures = 0
            if ended is not None or self._is_over():
                self._last_words()
            began = time.monotonic()
            told = self._pass(final=ended is not None)
            spent = time.monotonic() - began
            waits_for_files = told is not None and told.postponed > 0
            complete = told is not None and not waits_for_files
            if complete and (ended is not None or self._finished()):
                return 0
            if ended is not None and not self._folder.path.is_dir():
                _log.error("the run's folder is gone; there is nothing to deliver any more")
                return 1
            if not complete and ended is not None and time.monotonic() - ended > self._give_up_s:
                _log.error("giving up: the next xptrain command, or xptrain sync, delivers the rest")
                return 1
            bound(self._folder.recorder_log)
            rest = 0.0 if self._is_idle() else REST * spent
            if waits_for_files and ended is not None:
                rest = LONGEST_PAUSE_S
            self._pause(rest, watch=ended is None)

    def let_begin(self) -> None:
        """Wait a while where no core is free, so that the trainer can begin."""
        until = time.monotonic() + START_S
        # What it says first is of no span of time.
        self._is_idle()
        while time.monotonic() < until and self._trainer.alive() and not self._is_over():
            time.sleep(POLL_S)
            if self._is_idle():
                return

    def _pass(self, final: bool) -> Delivery | None:
        try:
            if final:
                done = self._drain.reconcile()
            else:
                done = self._drain.deliver(most=None if self._is_over() else MOST_POINTS)
        except Exception as error:  # noqa: BLE001 - a recorder that ends delivers nothing any more
            self._failures += 1
            if self._failures in (1, 10, 100):
                trace = None if isinstance(error, XptrainError | OSError) else error
                _log.warning("delivery failed %d times in a row: %s", self._failures, error, exc_info=trace)
            return None
        if self._failures:
            _log.info("delivery works again")
        self._failures = 0
        if done.records:
            _log.info("run %s: %d records, up to %d, %s", done.run_id, done.records, done.offset, done.status)
        return done

    def _finished(self) -> bool:
        state = run_state(self._folder) if self._told_final() else None
        return state is not None and state.status != "RUNNING"

    def _told_final(self) -> bool:
        delivered = self._folder.delivered
        return delivered.status not in (None, "RUNNING") and (
            delivered.offset == self._folder.journal.stat().st_size
        )

    def _is_idle(self) -> bool:
        """Tell whether cores had nothing to do since the last look."""
        import psutil

        return float(psutil.cpu_count() or 1) * (1 - psutil.cpu_percent() / 100) > FREE_CORES

    def _is_over(self) -> bool:
        """Tell whether the trainer has written its status, and waits for the delivery."""
        newest = journal.last(self._folder.journal)
        return newest is not None and newest.kind == "status"

    def _pause(self, rest: float, watch: bool) -> None:
        pause = max(rest, POLL_S * 2 ** min(self._failures, 10))
        until = time.monotonic() + min(LONGEST_PAUSE_S, pause)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left))
            if watch and (not self._trainer.alive() or (not self._failures and self._is_over())):
                return


def _be_nice(value: int) -> None:
    """Set how far this process lets others go first, 0 (not at all) to 19."""
    # Back to 0 takes a privilege, but not for a session as a whole.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, value)
    # With autogroups (most Linux desktops and servers) that counts only within one session, and this process
    # has one of its own: the session as a whole must give way. Source: sched(7), "The autogroup feature".
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(value))


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
    _be_nice(19)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trainer = processes.Watched(given.watch_pid, given.pid_started)
    # Who waits for the delivery of an ended run, or for its lock, must not wait for all that others train.
    folder, hurry = RunFolder(given.folder), partial(_be_nice, 0)
    recorder = Recorder(folder, trainer, give_up_s=given.give_up, last_words=hurry)
    recorder.let_begin()
    return recorder.run()


if __name__ == "__main__":
    sys.exit(main())
