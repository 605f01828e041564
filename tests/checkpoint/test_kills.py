"""Real SIGKILLs of real processes that save with real Orbax."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from xptrain import faults
from xptrain.checkpoint.lock import RunLock
from xptrain.checkpoint.policies import Policy, every, keep
from xptrain.checkpoint.saver import Saver
from xptrain.checkpoint.store import Store
from xptrain.state.snapshot import Cursor, Snapshot

# A fork server imports JAX and Orbax once; no backend runs in it, so its children are sound.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["xptrain.checkpoint.store", "xptrain.checkpoint.saver"])


def snapshot(step: int) -> Snapshot:
    """Return the state of a step: every bit follows from the step, so that a test can know it."""
    rng = np.random.default_rng(step)
    leaves = {
        "model/0.dense/kernel": jnp.asarray(rng.standard_normal((256, 256)).astype("float32")),
        "optimizer/iteration": jnp.int32(step),
        "host/0": rng.integers(0, 255, 100, dtype="uint8"),
    }
    return Snapshot(step, Cursor(0, step, 0), leaves, {"step": step}, {"loss": 1 / (step + 1)})


def save_for_ever(directory: Path, told: Path) -> None:
    """Resume from the newest good checkpoint and save step after step; say which commits were heard of."""
    lock = RunLock(directory)
    attempt = lock.acquire()
    store = Store(directory)
    loaded = store.newest_good()
    step = loaded.receipt.step + 1 if loaded else 0

    def tell(receipt: Any) -> None:
        with told.open("a") as stream:
            stream.write(f"{receipt.step}\n")

    saver = Saver(store, Policy((every(steps=1), keep(3))), attempt, lambda step: lock.check(), tell)
    while True:
        saver.submit(snapshot(step))
        step += 1


def save_and_die(directory: Path, step: int, moment: str) -> None:
    """Save the checkpoint of a step and die at a named moment of it."""
    faults.hooks.append(lambda name, at: os.kill(os.getpid(), signal.SIGKILL) if name == moment else None)
    saver = Saver(Store(directory), Policy((every(steps=1), keep(3))), 1)
    saver.submit(snapshot(step))
    saver.wait()


def assert_holds(loaded: Any, step: int) -> None:
    wanted = snapshot(step)
    assert loaded.receipt.step == step and loaded.receipt.cursor == wanted.cursor
    assert loaded.host == wanted.host and loaded.receipt.metrics == wanted.metrics
    for key, leaf in wanted.leaves.items():
        assert np.asarray(loaded.leaves[key]).tobytes() == np.asarray(leaf).tobytes(), key


def test_case_25_ten_kills_at_random_moments_of_saves(tmp_path: Path) -> None:
    directory, told = tmp_path / "checkpoints", tmp_path / "told"
    delays = random.Random(20)
    newest = -1
    for kill in range(1, 11):
        told.write_text("")
        child = SERVER.Process(target=save_for_ever, args=(directory, told))
        child.start()
        patience = time.monotonic() + 120
        while not told.read_text().count("\n"):  # at least one checkpoint, then anywhere in the next ones
            assert child.is_alive() and time.monotonic() < patience
            time.sleep(0.01)
        time.sleep(delays.uniform(0, 0.3))
        assert child.pid
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        last_told = int(told.read_text().split()[-1])
        assert RunLock(directory).acquire() == 2 * kill  # the dead process does not keep the run
        _release(directory)
        store = Store(directory)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a kill damages nothing, so nothing may be called damaged
            warnings.filterwarnings("ignore", message=".*unreadable.*")
            loaded = store.newest_good()
        assert loaded
        assert_holds(loaded, loaded.receipt.step)
        assert loaded.receipt.step >= last_told > newest
        assert store.folder.aside() == []
        assert not [path for path in directory.iterdir() if path.name.startswith(".")]
        newest = loaded.receipt.step
    # Beyond keep(3) a kill may leave what its retention had no time for; the next save deletes it.
    assert len(Store(directory).folder.steps()) <= 4


def _release(directory: Path) -> None:
    """End this test process's own hold of the run, so that the next child can take it."""
    import json

    path = max((directory / "lock").glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "released": True}))


@pytest.mark.parametrize("moment", faults.MOMENTS)
def test_case_25_a_kill_at_each_named_moment(tmp_path: Path, moment: str) -> None:
    directory = tmp_path / "checkpoints"
    before = Saver(Store(directory), Policy((every(steps=1), keep(3))), 1)
    before.submit(snapshot(1))
    before.close()
    child = SERVER.Process(target=save_and_die, args=(directory, 2, moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    store = Store(directory)
    visible = moment in ("committed", "ledger-written")
    assert store.folder.steps() == ([1, 2] if visible else [1])
    assert sorted(store.folder.ledger.entries()) == ([1, 2] if moment == "ledger-written" else [1])
    assert_holds(store.newest_good(), 2 if visible else 1)
    assert sorted(store.folder.ledger.entries()) == store.folder.steps()
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]
    went_on = Saver(store, Policy((every(steps=1), keep(3))), 2)
    went_on.submit(snapshot(3))
    went_on.close()
    assert_holds(Store(directory).newest_good(), 3)
