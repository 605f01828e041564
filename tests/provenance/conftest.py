"""Helpers of the provenance tests: projects with real git repositories, processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Python = Callable[..., str]


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run code in a fresh process and return what it printed."""
    empty = tmp_path_factory.mktemp("empty")

    def run(code: str, *arguments: str, cwd: Path = empty, **env: str) -> str:
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            **env,
        }
        command = [sys.executable, *arguments] if arguments else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run git in a folder, without the user's own settings."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)

    def run(folder: Path, *arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
        command = ["git", "-C", str(folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    return run
