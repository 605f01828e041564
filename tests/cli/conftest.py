"""Commands as users start them, in processes of their own, on runs that were really trained."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import launching

TRAIN = Path(__file__).parent / "scripts" / "train.py"
XPTRAIN = (sys.executable, "-m", "xptrain.cli.main")
PATIENCE_S = 400


@dataclass
class Shell:
    """A folder in which commands are started; its runs are in `.xptrain`.

    Args:
        folder: The folder.
    """

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / ".xptrain"

    def start(
        self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; whatever it says, it must not be a traceback of ours."""
        full = {**os.environ, "XPTRAIN_HOME": str(self.home), "COLUMNS": "80", **(env or {})}
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=full,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            **more,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def script(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a training script to its end, see `tests.launching`."""
        done = launching.run(
            [sys.executable, *arguments],
            env={**os.environ, "XPTRAIN_HOME": str(self.home), "COLUMNS": "80", **(env or {})},
            cwd=cwd or self.folder,
            timeout=PATIENCE_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def xptrain(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.start(*XPTRAIN, *arguments, **more)

    def json(self, *arguments: str) -> Any:
        done = self.xptrain(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def mlflow_status(self, key: str) -> str | None:
        if not (self.home / "mlflow.db").exists():
            return None  # the recorder has not made it yet
        with sqlite3.connect(f"file:{self.home / 'mlflow.db'}?mode=ro", uri=True, timeout=60) as database:
            tables = database.execute("select name from sqlite_master where name in ('runs', 'tags')")
            if len(tables.fetchall()) < 2:
                return None  # it is being made
            rows = database.execute(
                "select r.status from runs r join tags t on t.run_uuid = r.run_uuid "
                "where t.key = 'xptrain.key' and t.value = ?",
                (key,),
            ).fetchall()
        return rows[0][0] if rows else None

    def wait_for(self, key: str, status: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.mlflow_status(key) != status:
            assert time.monotonic() < deadline, f"{key} is not {status} in MLflow"
            time.sleep(0.2)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A home with a finished run (`done0001`) and one killed in its third epoch (`dead0002`)."""
    shell = Shell(tmp_path_factory.mktemp("cli"))
    with ThreadPoolExecutor() as both:
        started = [
            both.submit(shell.script, str(TRAIN), "--key", *arguments)
            for arguments in (("done0001",), ("dead0002", "--die-in-epoch", "2"))
        ]
    done, dead = (future.result() for future in started)
    assert done.returncode == 0, done.stderr
    assert dead.returncode == -9, dead.stderr
    shell.wait_for("dead0002", "KILLED")
    shell.wait_for("done0001", "FINISHED")
    return shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """An empty folder."""
    made = Shell(tmp_path / "project")
    made.folder.mkdir()
    return made


@pytest.fixture
def copy(trained: Shell, shell: Shell) -> Shell:
    """A copy of the trained runs that a test may damage; its paths lead to the copy."""
    shutil.copytree(trained.home, shell.home)
    for pattern in ("runs/*/run.json", "runs/*/manifest/*.json"):
        for path in shell.home.glob(pattern):
            path.write_text(path.read_text().replace(str(trained.folder), str(shell.folder)))
    return shell
