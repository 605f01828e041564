"""Helpers of the tracking tests: run folders, what a database holds, a real server."""

from __future__ import annotations

import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from xptrain.tracking import folder, journal, processes
from xptrain.tracking.journal import Journal
from xptrain.tracking.stores import resolve_store

ROOT = Path(__file__).resolve().parents[2]


def make_run(home: Path, uri: str | None = None, experiment: str = "exp", **info: object) -> folder.RunFolder:
    """Make a run folder whose store is `uri` or the home's own."""
    store = resolve_store(uri, home)
    values: dict[str, object] = {
        "key": folder.new_key(),
        "experiment": experiment,
        "name": None,
        "created_ms": journal.now_ms(),
        "tracking_uri": store.uri,
        "artifact_location": store.artifact_location,
        "checkpoint_dir": str(home / "checkpoints"),
        "description": "why it was run",
        "script": "train.py",
        "argv": ("--fast",),
        "cwd": str(home),
        "user": "ada",
        "host": "here",
    }
    return folder.create(folder.RunInfo(**{**values, **info}), home)  # type: ignore[arg-type]


def begin(run: folder.RunFolder, attempt: int = 1, resumed_from: int | None = None) -> Journal:
    """Open the journal and write this process's `attempt` record."""
    opened = Journal(run.journal)
    pid, started = processes.own()
    who = {"pid": pid, "pid_started": started, "host": processes.hostname()}
    opened.append("attempt", attempt=attempt, resumed_from=resumed_from, **who)
    return opened


Rows = dict[tuple[str, int], list[float]]


def points_in(db: Path, run_id: str) -> Rows:
    """All values by (metric, step), straight from the database (a point stored twice shows twice)."""
    found: Rows = {}
    with sqlite3.connect(db) as connection:
        query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
        for key, step, value, is_nan in connection.execute(query, (run_id,)):
            assert isinstance(step, int)
            found.setdefault((key, step), []).append(math.nan if is_nan else value)
    connection.close()
    return found


def row_of(db: Path, run_id: str, column: str) -> object:
    """One column of a run's row."""
    with sqlite3.connect(db) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
    connection.close()
    return value


def pairs_in(db: Path, run_id: str, table: str) -> dict[str, str]:
    """The tags or params of a run."""
    with sqlite3.connect(db) as connection:
        found = dict(connection.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ?", (run_id,)))
    connection.close()
    return found


def wait_for(what: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


class Server:
    """A real `mlflow server` on loopback that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.db = folder / "mlflow.db"
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.db}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        env = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env, cwd=self.folder, start_new_session=True
            )
        wait_for(self._answers, 120.0)

    def kill(self) -> None:
        """End the server's own process group at once, as a crash would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
