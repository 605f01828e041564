"""Real parts for the tracking tests: a SQLite store, a server, child processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest_tracking import ROOT, Server, make_run

from xptrain.tracking.stores import open_tracker


@pytest.fixture(scope="session")
def migrated_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store with its tables made, to copy: making them takes seconds."""
    home = tmp_path_factory.mktemp("template")
    run = make_run(home)
    open_tracker(run.info)._connect()  # type: ignore[attr-defined]
    return home / "mlflow.db"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home without a store."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def stored_home(home: Path, migrated_db: Path) -> Path:
    """A home with an empty SQLite store."""
    shutil.copy(migrated_db, home / "mlflow.db")
    return home


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in a process; what still runs at the end is ended by its own id."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'tracking'}"}
        process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.STDOUT, text=True, env=env)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, migrated_db: Path) -> Iterator[Server]:
    """One server for all tests."""
    folder_ = tmp_path_factory.mktemp("server")
    shutil.copy(migrated_db, folder_ / "mlflow.db")
    running = Server(folder_)
    running.start()
    yield running
    running.kill()


@pytest.fixture(params=["sqlite", "server"])
def where(request: pytest.FixtureRequest, stored_home: Path) -> tuple[str | None, Path]:
    """(tracking URI, database) of both kinds of stores."""
    if request.param == "sqlite":
        return None, stored_home / "mlflow.db"
    server: Server = request.getfixturevalue("server")
    return server.uri, server.db
