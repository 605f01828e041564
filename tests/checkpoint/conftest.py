"""Snapshots, stores and savers for the tests of this room."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xptrain.checkpoint.receipts import Loaded, Receipt, make_receipt
from xptrain.checkpoint.store import Store
from xptrain.state.snapshot import Cursor, Snapshot


class Kit:
    """What the tests share; a class, so that helpers reach the tests without a module name of their own."""

    @staticmethod
    def snapshot(step: int, leaves: Mapping[str, Any] | None = None, **fields: Any) -> Snapshot:
        """Return a snapshot whose every value follows from its step."""
        random = np.random.default_rng(step)
        default = {
            "model/0.dense/kernel": random.standard_normal((16, 8)).astype("float32"),
            "model/0.dense/bias": random.standard_normal(8).astype("float32"),
            "optimizer/iteration": np.asarray(step, "int32"),
            "host/0": random.integers(0, 255, 40, dtype="uint8"),
        }
        fields.setdefault("cursor", Cursor(0, step // 10, step % 10))
        fields.setdefault("host", {"step": step, "history": {"loss": [1 / (step + 1)]}})
        return Snapshot(step, leaves=default if leaves is None else leaves, **fields)

    @staticmethod
    def receipt(step: int, fit: int = 0, pinned: bool = False, **metrics: float) -> Receipt:
        return Receipt(step, 1, 0, Cursor(fit, 0, 0), metrics, pinned, (), "h", "d")

    @staticmethod
    def save(store: Store, snapshot: Snapshot, attempt: int = 1) -> Receipt:
        receipt = make_receipt(snapshot, attempt, created_ms=1000 * snapshot.step)
        staged = store.write(snapshot, receipt)
        store.commit(staged)
        store.record(staged)
        return receipt

    @staticmethod
    def assert_same(loaded: Loaded | None, snapshot: Snapshot) -> None:
        assert loaded is not None
        assert loaded.receipt.step == snapshot.step
        assert loaded.receipt.cursor == snapshot.cursor
        assert loaded.host == snapshot.host
        assert list(loaded.leaves) == sorted(snapshot.leaves)
        for key, leaf in snapshot.leaves.items():
            there, here = np.asarray(loaded.leaves[key]), np.asarray(leaf)
            assert (there.dtype, there.shape) == (here.dtype, here.shape), key
            assert there.tobytes() == here.tobytes(), key


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "checkpoints")
