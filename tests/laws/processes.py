"""Runs that are really killed and really resumed, and what is left of them on disk and in MLflow."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import launching
from xptrain.tracking.folder import RunFolder

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
PATIENCE_S = 240


@dataclass
class Lab:
    """One home with many runs of the training script.

    Args:
        home: XPTRAIN_HOME of all of them.
        real: Whether each attempt is a new interpreter, no fork of one that has Keras imported.
    """

    home: Path
    real: bool = False

    def train(
        self, key: str, *arguments: str, die: dict[str, Any] | None = None, resume: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the script as one attempt, in a process of its own, to its end."""
        with self.start(key, *arguments, die=die, resume=resume) as process:
            return launching.finish(process, PATIENCE_S)

    def start(
        self, key: str, *arguments: str, die: dict[str, Any] | None = None, resume: bool = False
    ) -> launching.Process:
        """Begin an attempt, and do not wait for it."""
        env = {**os.environ, "XPTRAIN_HOME": str(self.home), "DIE": json.dumps(die)}
        if resume:
            env["XPTRAIN_RESUME"] = key
        command = [sys.executable, str(SCRIPT), str(self.out(key)), "--key", key, *arguments]
        return launching.start(command, env=env, cwd=self.home, real=self.real)

    def out(self, key: str) -> Path:
        return self.home / "out" / key

    def folder(self, key: str) -> RunFolder:
        return RunFolder(self.home / "runs" / key)

    def result(self, key: str) -> Any:
        return json.loads((self.out(key) / "result.json").read_text())

    def steps(self, key: str) -> dict[int, list[int]]:
        """Return the steps that each attempt trained, in order."""
        found: dict[int, list[int]] = {}
        for line in (self.out(key) / "steps.txt").read_text().splitlines():
            attempt, step = line.split()
            found.setdefault(int(attempt), []).append(int(step))
        return found

    # --- what MLflow has, read from its database -------------------------------------------------

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.home / 'mlflow.db'}?mode=ro", uri=True, timeout=60) as database:
            return database.execute(sql, values).fetchall()

    def mlflow_status(self, key: str) -> str | None:
        rows = self.query(
            "select r.status from runs r join tags t on t.run_uuid = r.run_uuid "
            "where t.key = 'xptrain.key' and t.value = ?",
            key,
        )
        return rows[0][0] if rows else None

    def wait_for_status(self, key: str, *wanted: str) -> float:
        """Wait until MLflow shows one of the statuses; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_S:
            try:
                if self.mlflow_status(key) in wanted:
                    return time.monotonic() - began
            except sqlite3.OperationalError:
                pass  # the recorder has not made the database yet
            time.sleep(0.2)
        log = self.folder(key).recorder_log
        raise AssertionError(
            f"{key}: not {wanted}; recorder: {log.read_text()[-2000:] if log.exists() else '-'}"
        )

    def points(self, key: str) -> list[tuple[str, int, float]]:
        """Return all points that do not measure time, sorted; doubles stay."""
        rows = self.query(
            "select m.key, m.step, m.value from metrics m join tags t on t.run_uuid = m.run_uuid "
            "where t.key = 'xptrain.key' and t.value = ? and m.key not like 'time/%' order by 1, 2, 3",
            key,
        )
        return [(name, int(step), float(value)) for name, step, value in rows]

    def tags(self, key: str) -> dict[str, str]:
        rows = self.query(
            "select a.key, a.value from tags a join tags t on t.run_uuid = a.run_uuid "
            "where t.key = 'xptrain.key' and t.value = ?",
            key,
        )
        return dict(rows)


def was_killed(process: subprocess.CompletedProcess[str]) -> bool:
    return process.returncode == -signal.SIGKILL


def final_state(folder: RunFolder) -> tuple[dict[str, str], Any]:
    """Return the digest of every leaf of a run's last checkpoint, and its host state without positions."""
    from xptrain.checkpoint.store import Store

    loaded = Store(folder.info.checkpoint_dir).newest_good()
    assert loaded is not None
    assert loaded.receipt.cursor.done
    host = {name: value for name, value in loaded.host.items() if name != "session"}
    return {leaf.path: leaf.digest for leaf in loaded.receipt.leaves}, host


def differences(lab: Lab, key: str, straight: str) -> list[str]:
    """Return in words what of a finished run is not as in the one that was never stopped."""
    found = []
    (leaves, host), (expected_leaves, expected_host) = (final_state(lab.folder(k)) for k in (key, straight))
    if leaves != expected_leaves:
        names = [n for n in leaves.keys() | expected_leaves.keys() if leaves.get(n) != expected_leaves.get(n)]
        found.append(f"other tensors: {', '.join(sorted(names)[:8])}")
    if host != expected_host:
        found.append(f"another host state: {host} instead of {expected_host}")
    if lab.result(key) != lab.result(straight):
        found.append(f"another result: {lab.result(key)} instead of {lab.result(straight)}")
    points = lab.points(key)
    if len({(name, step) for name, step, _ in points}) != len(points):
        found.append("a point stands twice in MLflow")
    if points != lab.points(straight):
        found.append("other points in MLflow")
    tags = lab.tags(key)
    if "xptrain.divergence" in tags or tags["xptrain.grade"] != lab.tags(straight)["xptrain.grade"]:
        found.append(f"graded {tags['xptrain.grade']}, {tags.get('xptrain.divergence', 'no divergence')}")
    for attempt, steps in lab.steps(key).items():
        start = int(tags.get(f"xptrain.attempt.{attempt}.from_step", 0))
        if steps != list(range(start + 1, start + 1 + len(steps))):
            found.append(f"attempt {attempt} went on from step {start} and trained {steps}")
    return found
