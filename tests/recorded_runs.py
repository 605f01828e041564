"""Runs made by hand, file by file, so that tests can look at them without training."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xptrain.checkpoint.receipts import make_receipt
from xptrain.checkpoint.store import Store
from xptrain.state.snapshot import Cursor, Snapshot
from xptrain.tracking.folder import Delivered, RunFolder, RunInfo, create
from xptrain.tracking.journal import Journal

DEAD_PID = 2**22 + 1  # above what Linux gives out


@dataclass
class MadeRun:
    """A run folder and the means to write into it.

    Args:
        folder: The run's folder.
    """

    folder: RunFolder

    @property
    def key(self) -> str:
        return self.folder.key

    def tell(self, *records: tuple[str, Mapping[str, Any]], ms: int = 1_000) -> MadeRun:
        """Append records to the journal."""
        journal = Journal(self.folder.journal)
        for kind, fields in records:
            journal.append(kind, ms, **fields)
        journal.close()
        return self

    def attempt(self, number: int = 1, pid: int = DEAD_PID, started: float = 1.0) -> MadeRun:
        """Begin an attempt, by a process that does not live unless told otherwise."""
        fields = {"attempt": number, "pid": pid, "pid_started": started, "host": socket.gethostname()}
        (self.folder.checkpoints / "lock").mkdir(parents=True, exist_ok=True)
        return self.tell(("attempt", {**fields, "resumed_from": None}))

    def epoch(self, number: int, steps: int, **values: float) -> MadeRun:
        """Tell an epoch: its last step, and values such as loss=0.5."""
        attempt = f"xptrain.attempt.{self.attempts}.to_step"
        named = {f"train/{name}": value for name, value in values.items()}
        records = [
            ("metrics", {"step": number, "values": named}),
            ("tags", {"values": {attempt: str(steps)}}),
        ]
        return self.tell(*records)

    def status(self, status: str, reason: str | None = None) -> MadeRun:
        return self.tell(("status", {"status": status, "reason": reason}))

    def delivered(self) -> MadeRun:
        """Let it look as if the tracking store had everything, so that no command opens MLflow for it."""
        size = self.folder.journal.stat().st_size
        self.folder.acknowledge(Delivered(size, "ab" * 16, "FINISHED"))
        return self

    def checkpoint(self, step: int, epoch: int, batch: int = 0, **snapshot: Any) -> MadeRun:
        """Save a real checkpoint."""
        done = snapshot.pop("done", False)
        leaves = snapshot.pop("leaves", {"model/0.dense/kernel": np.full(2, step, "float32")})
        made = Snapshot(step, Cursor(0, epoch, batch, done), leaves, {"callbacks": []}, **snapshot)
        store = Store(self.folder.checkpoints)
        staged = store.write(made, make_receipt(made, self.attempts or 1, 1_000))
        store.commit(staged)
        store.record(staged)
        return self

    def manifest(self, script: Path | None, *arguments: str, **sections: Any) -> MadeRun:
        """Write a manifest that says how the run was started."""
        code = {
            "script": None if script is None else str(script),
            "module": None,
            "argv": ["" if script is None else str(script), *arguments],
            "cwd": str(self.folder.home.parent),
            "interpreter": sys.executable,
            "root": str(self.folder.home.parent),
            "git": {"commit": "0" * 40, "dirty": False},
            "files": {},
        }
        code |= sections.pop("code", {})
        record = {"code": code, "environment": {}, "program": {"train": "ab"}, **sections}
        target = self.folder.path / "manifest" / "attempt-1.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(record))
        return self

    @property
    def attempts(self) -> int:
        text = self.folder.journal.read_text() if self.folder.journal.exists() else ""
        return text.count('{"kind":"attempt"')


def make_run(home: Path, key: str = "aaaa0001", experiment: str = "digits", **fields: Any) -> MadeRun:
    """Make the folder of a run."""
    info: dict[str, Any] = {
        "key": key,
        "experiment": experiment,
        "name": None,
        "created_ms": 1_000,
        "tracking_uri": f"sqlite:///{home / 'mlflow.db'}",
        "artifact_location": (home / "artifacts").as_uri(),
        "checkpoint_dir": str(home / "runs" / key / "checkpoints"),
        "description": None,
        "script": None,
        "argv": (),
        "cwd": os.fspath(home.parent),
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "setup": {"seed": 0, "config": {"lr": 0.1}},
    }
    return MadeRun(create(RunInfo(**{**info, **fields}), home))
