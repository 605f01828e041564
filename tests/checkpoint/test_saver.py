from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from xptrain import faults
from xptrain.checkpoint import files
from xptrain.checkpoint.lock import RunLock
from xptrain.checkpoint.machine import Machine
from xptrain.checkpoint.policies import Policy, best, every, keep
from xptrain.checkpoint.saver import Saver
from xptrain.checkpoint.store import Store
from xptrain.errors import CheckpointWriteError, FencedError
from xptrain.state.snapshot import Cursor

KEEP_ALL = Policy((every(epochs=1),))


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(faults, "hooks", [lambda name, step: seen.append((name, step))])
    return seen


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keep every save at its start until the event is set."""
    gate = threading.Event()
    monkeypatch.setattr(
        faults, "hooks", [lambda name, step: gate.wait(60) if name == "save-started" else None]
    )
    yield gate
    gate.set()


def test_snapshots_are_saved_in_the_background_in_order(store: Store, kit: Any) -> None:
    saver = Saver(store, KEEP_ALL, attempt=3)
    for step in (10, 20, 30):
        saver.submit(kit.snapshot(step))
    saver.close()
    again = Store(store.folder.path)
    for step in (10, 20, 30):
        kit.assert_same(again.load(step), kit.snapshot(step))
    assert [r.attempt for r in again.folder.receipts()] == [3, 3, 3]


def test_l5_l13_the_order_of_a_save(store: Store, kit: Any, moments: list[tuple[str, int]]) -> None:
    folder = store.folder

    def look(name: str) -> None:
        ledger = Store(folder.path).folder.ledger.entries()
        moments.append((f"{name} visible={folder.folder_of(10).exists()} ledger={10 in ledger}", 10))

    faults.hooks.append(lambda name, step: look(name))
    saver = Saver(
        store,
        KEEP_ALL,
        1,
        before_commit=lambda step: look("before"),
        after_commit=lambda receipt: look("after"),
    )
    saver.submit(kit.snapshot(10))
    saver.close()
    assert [name for name, _ in moments] == [
        "save-started",
        "save-started visible=False ledger=False",
        "before visible=False ledger=False",
        "journal-durable",
        "journal-durable visible=False ledger=False",
        "committed",
        "committed visible=True ledger=False",
        "ledger-written",
        "ledger-written visible=True ledger=True",
        "after visible=True ledger=True",
    ]


def test_the_data_is_durable_before_the_commit_and_nothing_else_is_in_sight(store: Store, kit: Any) -> None:
    def before(step: int) -> None:
        (hidden,) = store.folder.path.iterdir()
        assert hidden.name.startswith(".tmp-")
        assert (hidden / "000000000010" / "receipt" / "metadata").stat().st_size > 0

    saver = Saver(store, KEEP_ALL, 1, before_commit=before)
    saver.submit(kit.snapshot(10))
    saver.close()


def test_submit_waits_for_nobody_and_make_room_for_the_save_in_flight(
    store: Store, kit: Any, held: threading.Event
) -> None:
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10))
    waiting = threading.Thread(target=saver.make_room)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and store.folder.steps() == []
    held.set()
    waiting.join(60)
    assert not waiting.is_alive() and store.folder.steps() == [10]
    saver.submit(kit.snapshot(20))
    saver.close()
    assert store.folder.steps() == [10, 20]


def test_what_is_under_way_when_the_saver_closes_is_saved(
    store: Store, kit: Any, held: threading.Event
) -> None:
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10))
    saver.submit(kit.snapshot(20, pinned=True))
    threading.Timer(0.1, held.set).start()
    saver.close()
    assert store.folder.steps() == [10, 20]


def test_case_22_the_state_at_the_submit_is_what_is_saved(
    store: Store, kit: Any, held: threading.Event
) -> None:
    step = jax.jit(lambda w: w + 1, donate_argnums=0)
    live = jnp.zeros((512, 1024), jnp.float32)
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(1, {"w": jnp.copy(live)}))
    for _ in range(2):
        live = step(live)
    held.set()
    saver.close()
    assert not store.load(1).leaves["w"].any() and (live == 2).all()


def test_retention_follows_the_policy(store: Store, kit: Any) -> None:
    saver = Saver(store, Policy((every(epochs=1), keep(2), best("loss", "min"))), 1)
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, float("nan")), (50, 4.0)):
        saver.submit(kit.snapshot(step, metrics={"loss": loss}, pinned=step == 30))
    saver.close()
    assert store.folder.steps() == [20, 30, 40, 50]
    assert [r.step for r in store.folder.ledger.history()] == [10, 20, 30, 40, 50]
    assert not list(store.folder.path.glob(".*"))


def test_case_9_best_knows_the_scores_of_earlier_attempts(store: Store, kit: Any) -> None:
    policy = Policy((every(epochs=1), best("loss", "min")))
    for attempt, scores in ((1, {10: 5.0, 20: 1.0}), (2, {30: 2.0, 40: 2.0})):
        saver = Saver(Store(store.folder.path), policy, attempt)
        for step, loss in scores.items():
            saver.submit(kit.snapshot(step, metrics={"loss": loss}))
        saver.close()
    assert store.folder.steps() == [20, 40]


def test_case_11_the_end_of_a_fit_keeps_the_metrics_of_its_last_epoch(store: Store, kit: Any) -> None:
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10, metrics={"loss": 0.5, "val_loss": 0.7}))
    saver.submit(kit.snapshot(10, cursor=Cursor(0, 1, 0, True), pinned=True, host={"ended": True}))
    saver.close()
    loaded = Store(store.folder.path).newest_good()
    assert loaded and loaded.host == {"ended": True}
    assert loaded.receipt.pinned and loaded.receipt.metrics == {"loss": 0.5, "val_loss": 0.7}


def test_a_metric_that_does_not_exist_is_said_once(store: Store, kit: Any) -> None:
    saver = Saver(store, Policy((every(epochs=1), best("val_lss", "min"))), 1)
    with pytest.warns(UserWarning, match="val_lss") as caught:
        saver.submit(kit.snapshot(5))
        for step in (10, 20):
            saver.submit(kit.snapshot(step, metrics={"val_loss": 1.0}))
    saver.close()
    assert len(caught) == 1


def test_clocks_are_injected(store: Store, kit: Any) -> None:
    now = [100.0]
    saver = Saver(store, KEEP_ALL, 1, clock=lambda: 1234.5, timer=lambda: now[0])
    now[0] = 130.0
    assert saver.seconds_since_save() == 30
    saver.submit(kit.snapshot(10))
    assert saver.seconds_since_save() == 0
    saver.close()
    assert store.folder.receipts()[0].created_ms == 1234500


# --- failures ------------------------------------------------------------------------------------------


def fails_everywhere(saver: Saver, kit: Any, error: type[Exception] = CheckpointWriteError) -> Exception:
    """Wait for the failure, then expect it from each place that must not hide it."""
    calls: list[Callable[[], None]] = [saver.wait, lambda: saver.submit(kit.snapshot(99)), saver.close]
    caught = []
    for call in calls:
        with pytest.raises(error) as raised:
            call()
        caught.append(raised.value)
    assert saver.failure is caught[0] is caught[1] is caught[2]
    return caught[0]


def test_case_24_a_folder_in_the_way_of_the_store(tmp_path: Path, kit: Any) -> None:
    (tmp_path / "file").write_text("in the way")
    saver = Saver(Store(tmp_path / "file"), KEEP_ALL, 1)
    saver.submit(kit.snapshot(10))
    assert "writable" in str(fails_everywhere(saver, kit))


@pytest.mark.parametrize("when", ["save-started", "before_commit", "committed"])
def test_case_24_the_directory_is_taken_away_while_the_last_save_is_pending(
    store: Store, kit: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    first = Saver(store, KEEP_ALL, 1)
    first.submit(kit.snapshot(10))
    first.close()
    take_away = lambda *_: store.folder.path.rename(store.folder.path.with_name("away"))  # noqa: E731
    monkeypatch.setattr(faults, "hooks", [lambda name, step: take_away() if name == when else None])
    before = take_away if when == "before_commit" else lambda step: None
    saver = Saver(store, KEEP_ALL, 1, before_commit=before)
    saver.submit(kit.snapshot(20))
    fails_everywhere(saver, kit)
    kit.assert_same(Store(store.folder.path.with_name("away")).load(10), kit.snapshot(10))


def test_case_24_another_folder_in_its_place_is_not_taken_for_it(
    store: Store, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap(step: int) -> None:
        if step == 20:
            store.folder.path.rename(store.folder.path.with_name("away"))
            store.folder.path.mkdir()
            shutil.copytree(store.folder.path.with_name("away"), store.folder.path, dirs_exist_ok=True)

    saver = Saver(store, KEEP_ALL, 1, before_commit=swap)
    saver.submit(kit.snapshot(10))
    saver.submit(kit.snapshot(20))
    assert "taken away" in str(fails_everywhere(saver, kit))


def test_case_24_a_hidden_folder_that_is_removed_while_orbax_writes_is_not_committed_in_part(
    store: Store, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_then_write_the_rest(path: Path) -> None:
        rest = shutil.copytree(path, store.folder.path / "rest", ignore=shutil.ignore_patterns("state"))
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        rest.rename(path)

    monkeypatch.setattr("xptrain.checkpoint.store.sync_tree", remove_then_write_the_rest)
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10))
    assert "vanished" in str(fails_everywhere(saver, kit))
    assert store.folder.steps() == []


def test_case_24_a_full_disk_says_so_and_keeps_the_checkpoint_before(tmp_path: Path, kit: Any) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs; the next test stands in")
    try:
        store = Store(mount / "checkpoints")
        saver = Saver(store, KEEP_ALL, 1)
        saver.submit(kit.snapshot(10))
        saver.wait()
        saver.submit(kit.snapshot(20, {"big": jax.random.normal(jax.random.key(0), (1000, 1000))}))
        error = fails_everywhere(saver, kit)
        assert "No space left" in str(error) and "free some space" in str(error)
        again = Store(mount / "checkpoints")
        kit.assert_same(again.newest_good(), kit.snapshot(10))
        assert again.notices == [] and not list(again.folder.path.glob(".*"))
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("place", ["store.sync_tree", "folder.sync", "ledger.append_line"])
def test_case_24_any_failing_write_is_raised_later(
    store: Store, kit: Any, monkeypatch: pytest.MonkeyPatch, number: int, place: str
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"xptrain.checkpoint.{place}", fail)
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10))
    assert os.strerror(number) in str(fails_everywhere(saver, kit))


def test_a_failed_save_does_not_stop_the_one_that_waits(
    store: Store, kit: Any, held: threading.Event
) -> None:
    saver = Saver(store, KEEP_ALL, 1)
    saver.submit(kit.snapshot(10, {"text": "no array"}))
    saver.submit(kit.snapshot(20, pinned=True))
    held.set()
    with pytest.raises(CheckpointWriteError, match="text"):
        saver.close()
    kit.assert_same(store.load(20), kit.snapshot(20))


def test_an_exception_of_a_hook_is_not_lost(store: Store, kit: Any) -> None:
    def explode(step: int) -> None:
        raise RuntimeError("the journal broke")

    saver = Saver(store, KEEP_ALL, 1, before_commit=explode)
    saver.submit(kit.snapshot(10))
    error = fails_everywhere(saver, kit)
    assert "the journal broke" in str(error) and isinstance(error.__cause__, RuntimeError)
    assert store.folder.steps() == []


def test_case_30_a_fenced_off_process_commits_nothing(store: Store, kit: Any) -> None:
    old = RunLock(
        store.folder.path, clock=lambda: 1000.0, machine=Machine("a", "b", "c"), heartbeat_seconds=9999
    )
    saver = Saver(store, KEEP_ALL, old.acquire(), before_commit=lambda step: old.check())
    saver.submit(kit.snapshot(10))
    saver.wait()
    new = RunLock(store.folder.path)
    assert new.acquire() == 2
    saver.submit(kit.snapshot(20))
    fails_everywhere(saver, kit, FencedError)
    assert store.folder.steps() == [10]
    new.check()


def test_durable_means_synced_before_the_rename(
    store: Store, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync = files.sync
    monkeypatch.setattr(files, "sync", lambda path: (synced.append(path.name), real_sync(path))[1])
    saver = Saver(store, KEEP_ALL, 1, before_commit=lambda step: synced.append("BEFORE COMMIT"))
    saver.submit(kit.snapshot(10))
    saver.close()
    committed = store.folder.folder_of(10)
    names = {path.name for path in committed.rglob("*")} | {committed.name}
    assert names <= set(synced[: synced.index("BEFORE COMMIT")])
