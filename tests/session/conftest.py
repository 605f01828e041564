"""Runs inside the test process, without a recorder: what they would deliver is in their journals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import xptrain
from xptrain.session import identity, life
from xptrain.tracking import journal
from xptrain.tracking.points import points


@pytest.fixture(autouse=True)
def no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start", "keep", "wait"):
        monkeypatch.setattr(life.Delivery, name, lambda self: None)
    monkeypatch.setattr(identity, "PROCESS", identity.Process())


@dataclass
class Runs:
    """Opens runs as separate processes would, one after another."""

    home: Path

    def open(self, key: str, resume: bool = False, **arguments: Any) -> Any:
        identity.PROCESS = identity.Process()
        arguments = {"seed": 0, "key": key, **arguments}
        if resume:
            arguments = {**arguments, "key": None, "resume": key}
        return xptrain.run("tests", **arguments)

    def records(self, key: str, kind: str) -> list[Any]:
        path = self.home / "runs" / key / "journal.jsonl"
        return [record for record, _ in journal.read(path) if record.kind == kind]

    def points(self, key: str) -> list[tuple[str, int, float]]:
        found = [point for record in self.records(key, "metrics") for point in points(record)]
        return sorted((p.metric, p.step, p.value) for p in found if not p.metric.startswith("time/"))

    def status(self, key: str) -> str:
        return str(self.records(key, "status")[-1].fields["status"])

    def tags(self, key: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in self.records(key, "tags"):
            found.update(record.fields["values"])
        return found


@pytest.fixture
def runs(isolated_home: Path) -> Runs:
    return Runs(isolated_home)


@pytest.fixture
def stop_at() -> Callable[[int], Any]:
    """Return a maker of callbacks that raise at the n-th batch they see."""
    import keras

    def make(batches: int) -> Any:
        seen = [0]

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen[0] += 1
                if seen[0] == batches:
                    raise RuntimeError("stopped by the test")

        return Stop()

    return make
