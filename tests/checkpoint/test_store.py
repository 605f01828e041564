from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xptrain.checkpoint.folder import Folder, step_name
from xptrain.checkpoint.receipts import make_receipt
from xptrain.checkpoint.store import Store
from xptrain.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    RestoreMismatchError,
)
from xptrain.state.snapshot import Cursor

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")


@pytest.fixture
def two(store: Store, kit: Any) -> Store:
    """A store with the checkpoints of steps 10 and 20."""
    kit.save(store, kit.snapshot(10))
    kit.save(store, kit.snapshot(20, metrics={"loss": float("nan"), "acc": float("inf")}))
    return store


def reopened(store: Store) -> Store:
    return Store(store.folder.path)


def newest_after_damage(store: Store) -> tuple[int, Store]:
    """Open the store as a new process would, and expect to be told of damage."""
    again = reopened(store)
    with pytest.warns(UserWarning, match=r"damaged|gone"):
        loaded = again.newest_good()
    assert loaded
    return loaded.receipt.step, again


def test_a_snapshot_comes_back_bit_for_bit(store: Store, kit: Any) -> None:
    snapshot = kit.snapshot(30, pinned=True, metrics={"loss": 0.25}, cursor=Cursor(1, 2, 3, True))
    receipt = kit.save(store, snapshot, attempt=4)
    loaded = reopened(store).load(30)
    kit.assert_same(loaded, snapshot)
    assert loaded.receipt == receipt


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert store.newest_good() is None
    with pytest.raises(CheckpointNotFoundError):
        store.load(10)
    assert not store.folder.path.exists()


LEAVES: dict[str, Any] = {
    "a": np.arange(3.0),
    "a.b": np.arange(4),
    "a/b": np.arange(5),
    "a/b.c": np.arange(6),
    "a/0": np.float32(1),
    "a/0/0": np.int8(2),
    "bf16": jnp.full((2, 2), 1.5, jnp.bfloat16),
    "int4": jnp.arange(-8, 8, dtype=jnp.int4),
    "uint4": jnp.arange(16, dtype=jnp.uint4),
    "host int4": np.arange(3).astype(ml_dtypes.int4),
    "u32": jnp.array([0, 2**32 - 1], jnp.uint32),
    "bool": np.array([[True], [False]]),
    "f8": jnp.ones(3, jnp.float8_e4m3fn),
    "big": np.array(2**63 - 1),
    "nan": np.array([np.nan, -0.0, np.inf, -np.nan], "float32"),
    "zero": jnp.zeros((3, 0, 2), jnp.float16),
    "host zero": np.zeros((0,), "int64"),
    "scalar": jnp.int32(7),
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(4, impl="rbg"), (2, 3)),
    "no keys": jax.random.split(jax.random.key(0), 3)[:0],
    "transposed": np.arange(6).reshape(2, 3).T,
}


def raw(leaf: Any) -> tuple[Any, ...]:
    if jnp.issubdtype(getattr(leaf, "dtype", np.int8), jax.dtypes.prng_key):
        return str(jax.random.key_impl(leaf)), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return np.asarray(leaf).dtype, np.asarray(leaf).shape, np.asarray(leaf).tobytes()


def test_case_27_every_kind_of_leaf_round_trips(store: Store, kit: Any) -> None:
    host = {"empty": {}, "list": [], "rng": np.random.Philox(3).state["bit_generator"], "big": 2**127}
    kit.save(store, kit.snapshot(1, LEAVES, host=host))
    loaded = reopened(store).newest_good({"zero": None, "bf16": None, "uint4": None})
    assert loaded and loaded.host == host
    assert {key: raw(leaf) for key, leaf in loaded.leaves.items()} == {
        key: raw(leaf) for key, leaf in LEAVES.items()
    }
    assert all(isinstance(loaded.leaves[key], jax.Array) for key in ("zero", "bf16", "uint4", "key"))
    assert isinstance(loaded.leaves["u32"], np.ndarray)


def test_case_27_a_snapshot_without_leaves_round_trips(store: Store, kit: Any) -> None:
    snapshot = kit.snapshot(1, {})
    kit.save(store, snapshot)
    kit.assert_same(reopened(store).newest_good(), snapshot)


keys = st.text(st.sampled_from("ab./_-0 ü"), min_size=1, max_size=5).filter(lambda key: not key.endswith("/"))
arrays = hnp.arrays(
    st.sampled_from(["bool", "int8", "uint32", "int64", "float16", "float32", "float64", "complex64"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@settings(max_examples=15)
@given(leaves=st.dictionaries(keys, arrays, max_size=6))
def test_any_keys_and_arrays_round_trip_without_colliding(
    leaves: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, kit: Any
) -> None:
    store = Store(tmp_path_factory.mktemp("any"))
    snapshot = kit.snapshot(1, leaves)
    kit.save(store, snapshot)
    kit.assert_same(store.load(1), snapshot)


def test_plain_orbax_reads_a_checkpoint(two: Store, kit: Any) -> None:
    directory, snapshot = two.folder.path, kit.snapshot(20)
    state = ocp.StandardCheckpointer().restore(directory / "000000000020" / "state")
    assert {key: raw(leaf) for key, leaf in state.items()} == {
        key: raw(leaf) for key, leaf in snapshot.leaves.items()
    }
    names = ocp.path.step.standard_name_format(step_format_fixed_length=12)
    with ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(step_name_format=names)
    ) as manager:
        assert (manager.all_steps(), manager.latest_step()) == ([10, 20], 20)
        items = manager.restore(
            20, args=ocp.args.Composite(state=ocp.args.StandardRestore(), host=ocp.args.JsonRestore())
        )
    assert items.host == snapshot.host
    assert raw(items.state["model/0.dense/kernel"]) == raw(snapshot.leaves["model/0.dense/kernel"])
    kit.assert_same(reopened(two).newest_good(), snapshot)


def test_restored_leaves_never_alias(store: Store, kit: Any) -> None:
    same = np.ones((64, 64), "float32")
    kit.save(store, kit.snapshot(1, {"weights": same, "average": same, "host": same, "other": same}))
    placed = store.load(1, {"weights": None, "average": None})
    arrays = [np.asarray(leaf) for leaf in placed.leaves.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    donate = jax.jit(lambda w: w * 2, donate_argnums=0)
    donate(placed.leaves["weights"])
    assert (np.asarray(placed.leaves["average"]) == 1).all()


def test_a_dtype_that_jax_would_change_is_refused(store: Store, kit: Any) -> None:
    kit.save(store, kit.snapshot(1, {"x": np.ones(2)}))
    assert store.load(1).leaves["x"].dtype == np.float64
    with pytest.raises(RestoreMismatchError, match="float64"):
        store.load(1, {"x": jax.devices()[0]})


def test_a_sharding_for_a_leaf_that_is_not_there_is_refused(two: Store) -> None:
    with pytest.raises(RestoreMismatchError, match="nowhere"):
        two.load(20, {"nowhere": None})


def test_a_wrong_sharding_does_not_get_a_good_checkpoint_moved_aside(two: Store) -> None:
    with pytest.raises(RestoreMismatchError):
        reopened(two).newest_good({"nowhere": None})
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "x"))
    with pytest.raises(ValueError):
        reopened(two).newest_good({"model/0.dense/bias": sharding})
    assert two.folder.steps() == [10, 20]


SHARDED = """
    import sys, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from xptrain.checkpoint.store import Store
    from xptrain.checkpoint.receipts import make_receipt
    from xptrain.state.snapshot import Cursor, Snapshot

    devices = np.array(jax.devices())
    assert len(devices) == 8
    grid = Mesh(devices.reshape(4, 2), ("data", "model"))
    values = {
        "split": np.arange(64.0, dtype="float32").reshape(8, 8), "rows": np.arange(16, dtype="int32"),
        "copied": np.ones(5, "bool"), "nibbles": np.arange(16).astype("uint4"),
    }
    specs = {"split": P("data", "model"), "rows": P(("data", "model")), "copied": P(), "nibbles": P("data")}
    there = {key: NamedSharding(grid, spec) for key, spec in specs.items()}
    leaves = {key: jax.device_put(value, there[key]) for key, value in values.items()}
    leaves["keys"] = jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(grid, P("data")))
    plain = {**values, "keys": jax.random.split(jax.random.key(1), 8)}

    store = Store(sys.argv[1])
    receipt = make_receipt(Snapshot(1, Cursor(0, 0, 1), leaves, {}), 1, 0)
    assert receipt.digest == make_receipt(Snapshot(1, Cursor(0, 0, 1), plain, {}), 1, 0).digest
    assert receipt.leaves[-1].sharding == {"mesh": {"data": 4, "model": 2}, "spec": ["data", "model"]}
    staged = store.write(Snapshot(1, Cursor(0, 0, 1), leaves, {}), receipt)
    store.commit(staged); store.record(staged)

    line = Mesh(devices[:2], ("x",))
    for targets in (
        there, {key: NamedSharding(line, P("x")) if key != "copied" else devices[3] for key in values},
        dict.fromkeys(values, devices[0]), {"copied": NamedSharding(line, P())}, {},
    ):
        loaded = store.load(1, targets)
        for key, value in values.items():
            leaf = loaded.leaves[key]
            assert leaf.dtype == value.dtype and np.asarray(leaf).tobytes() == value.tobytes(), key
            if key in targets:
                wanted = targets[key]
                assert leaf.sharding == wanted or leaf.devices() == {wanted}, key
                buffers = [shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards]
                assert len(set(buffers)) == len(buffers), key
        assert (jax.random.key_data(loaded.leaves["keys"]) == jax.random.key_data(plain["keys"])).all()
    print("done")
"""


def test_case_26_sharded_leaves_come_back_on_8_2_and_1_devices(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SHARDED), str(tmp_path / "checkpoints")]
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        command,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]


def test_l5_a_commit_is_one_rename(store: Store, kit: Any) -> None:
    staged = store.write(kit.snapshot(1), make_receipt(kit.snapshot(1), 1, 0))
    inode = staged.path.stat().st_ino
    store.commit(staged)
    assert store.folder.folder_of(1).stat().st_ino == inode
    assert [path.name for path in store.folder.path.iterdir()] == ["000000000001"]


# --- saving over and behind what is there ---------------------------------------------------------------


def test_an_earlier_step_is_refused_not_skipped(two: Store, kit: Any) -> None:
    with pytest.raises(CheckpointWriteError, match="behind"):
        kit.save(two, kit.snapshot(15))
    assert two.folder.steps() == [10, 20] and not list(two.folder.path.glob(".*"))


def test_an_earlier_position_at_the_same_step_is_refused(two: Store, kit: Any) -> None:
    with pytest.raises(CheckpointWriteError, match="behind"):
        kit.save(two, kit.snapshot(20, cursor=Cursor(0, 1, 0)))


def test_the_end_of_a_fit_replaces_the_end_of_its_last_epoch(two: Store, kit: Any) -> None:
    last = kit.snapshot(20, cursor=Cursor(0, 2, 0, True), host={"on_train_end": True}, pinned=True)
    kit.save(two, last)
    again = reopened(two)
    kit.assert_same(again.newest_good(), last)
    assert again.folder.steps() == [10, 20] and again.notices == []


@pytest.mark.parametrize("came", [False, True])
def test_a_kill_while_replacing_leaves_one_of_the_two(two: Store, kit: Any, came: bool) -> None:
    path = two.folder.folder_of(20)
    path.rename(path.with_name(".old-000000000020-12345678"))
    if came:
        kit.save(two, kit.snapshot(20, host={"new": True}))
    loaded = reopened(two).newest_good()
    assert loaded and loaded.host == ({"new": True} if came else kit.snapshot(20).host)
    assert not list(two.folder.path.glob(".*"))


# --- damage ---------------------------------------------------------------------------------------------


def files_of(store: Store, step: int) -> list[str]:
    folder = store.folder.folder_of(step)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_case_25_any_flipped_byte_in_any_file_is_noticed(two: Store, kit: Any, tmp_path: Path) -> None:
    names = files_of(two, 20)
    assert len(names) >= 8
    folder, tried = two.folder.folder_of(20), 0
    for name in names:
        good = (folder / name).read_bytes()
        for place in {0, len(good) // 3, len(good) // 2, len(good) - 1} if good else ():
            (folder / name).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(CheckpointDamagedError) as caught:
                reopened(two).load(20)
            assert name in str(caught.value)
            tried += 1
        (folder / name).write_bytes(good)
    assert tried > 20
    kit.assert_same(reopened(two).load(20), kit.snapshot(20))


def test_case_25_a_flipped_byte_makes_the_previous_checkpoint_the_newest(two: Store, kit: Any) -> None:
    (data,) = (two.folder.folder_of(20) / "state" / "d").iterdir()
    good = data.read_bytes()
    data.write_bytes(good[:-5] + bytes([good[-5] ^ 16]) + good[-4:])
    again = reopened(two)
    with pytest.warns(UserWarning) as caught:
        kit.assert_same(again.newest_good(), kit.snapshot(10))
    said = [str(warning.message) for warning in caught]
    assert again.notices == said and len(said) == 2
    assert "step 20 is damaged" in said[0] and data.name in said[0] and "step 10 is used" in said[1]
    assert (two.folder.path / "damaged" / "000000000020" / "state").is_dir()
    kit.assert_same(reopened(two).newest_good(), kit.snapshot(10))
    kit.save(again, kit.snapshot(20))  # the run goes on and gets there again
    kit.assert_same(reopened(two).newest_good(), kit.snapshot(20))


def test_case_25_without_the_ledger_flipped_data_is_noticed_by_the_receipts(two: Store) -> None:
    two.folder.ledger.path.unlink()
    folder = two.folder.folder_of(20)
    noticed = []
    for name in files_of(two, 20):
        good = (folder / name).read_bytes()
        for place in {0, len(good) // 3, len(good) // 2, len(good) - 1} if good else ():
            (folder / name).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            try:
                loaded = reopened(two).load(20)
            except CheckpointDamagedError:
                noticed.append(name)
            else:  # a byte that no value depends on
                assert loaded.receipt.digest == two.folder.ledger.entries().get(20, loaded).receipt.digest
        (folder / name).write_bytes(good)
    data = {name for name in files_of(two, 20) if name.startswith("state/d/")}
    assert data | {"receipt/metadata", "host/metadata"} <= set(noticed)


@pytest.mark.parametrize("with_ledger", [True, False])
@pytest.mark.parametrize(
    "what",
    [
        "empty folder",
        "truncated",
        "removed file",
        "no receipt",
        "garbage receipt",
        "other host state",
        "no state",
    ],
)
def test_case_25_a_damaged_checkpoint_gives_way_to_the_previous_one(
    two: Store, kit: Any, what: str, with_ledger: bool
) -> None:
    folder = two.folder.folder_of(20)
    (data,) = (folder / "state" / "d").iterdir()
    match what:
        case "empty folder":
            shutil.rmtree(folder)
            folder.mkdir()
        case "truncated":
            data.write_bytes(data.read_bytes()[:-1])
        case "removed file":
            data.unlink()
        case "no receipt":
            shutil.rmtree(folder / "receipt")
        case "garbage receipt":
            (folder / "receipt" / "metadata").write_bytes(b"\x00\xff garbage")
        case "other host state":
            (folder / "host" / "metadata").write_text('{"step": 21}')
        case "no state":
            shutil.rmtree(folder / "state")
    if not with_ledger:
        two.folder.ledger.path.unlink()
    step, again = newest_after_damage(two)
    assert step == 10
    kit.assert_same(again.load(10), kit.snapshot(10))
    assert again.folder.aside() == ["000000000020"] and again.folder.steps() == [10]


def test_case_25_an_empty_folder_of_a_later_step_is_not_the_latest(two: Store) -> None:
    two.folder.folder_of(30).mkdir()
    assert newest_after_damage(two)[0] == 20


def test_case_25_a_removed_folder_is_said(two: Store) -> None:
    shutil.rmtree(two.folder.folder_of(20))
    step, again = newest_after_damage(two)
    assert step == 10 and "step 20 is gone" in again.notices[0]
    quiet = reopened(two)
    assert quiet.newest_good() and quiet.notices == []


def test_a_checkpoint_that_retention_deleted_is_not_missed(two: Store) -> None:
    two.delete(10)
    again = reopened(two)
    assert again.newest_good() and again.notices == []
    assert [r.step for r in again.folder.ledger.history()] == [10, 20]


def test_damaged_twice_keeps_both(two: Store, kit: Any) -> None:
    for expected in (["000000000020"], ["000000000020", "000000000020.1"]):
        (two.folder.folder_of(20) / "host" / "metadata").write_text("{}")
        _, again = newest_after_damage(two)
        assert again.folder.aside() == expected
        kit.save(again, kit.snapshot(20))


@pytest.mark.parametrize("with_ledger", [True, False])
def test_when_all_are_damaged_none_is_used_and_each_is_named_also_the_next_time(
    two: Store, with_ledger: bool
) -> None:
    for step in (10, 20):
        (two.folder.folder_of(step) / "host" / "metadata").write_text("{}")
    for again in (1, 2):
        with warnings.catch_warnings(), pytest.raises(CheckpointDamagedError) as caught:
            warnings.simplefilter("ignore")
            if again == 2 and not with_ledger:
                two.folder.ledger.path.unlink()
            reopened(two).newest_good()
        assert "10" in str(caught.value) and "20" in str(caught.value)


def test_when_all_folders_are_gone_the_run_does_not_begin_anew(two: Store) -> None:
    for step in (10, 20):
        shutil.rmtree(two.folder.folder_of(step))
    for _ in range(2):
        with warnings.catch_warnings(), pytest.raises(CheckpointDamagedError, match="step 20"):
            warnings.simplefilter("ignore")
            reopened(two).newest_good()


def test_values_that_changed_before_they_were_written_are_noticed(store: Store, kit: Any) -> None:
    snapshot = kit.snapshot(1)
    receipt = make_receipt(snapshot, 1, 0)
    snapshot.leaves["host/0"][3] ^= 1
    staged = store.write(snapshot, receipt)
    store.commit(staged)
    store.record(staged)
    with pytest.raises(CheckpointDamagedError, match="host/0"):
        store.load(1)


def test_a_file_that_may_not_be_read_is_no_damage(two: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Folder, step: int) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Folder, "receipt_in", refuse)
    with pytest.raises(CheckpointError, match="not yours") as caught:
        reopened(two).newest_good()
    assert not isinstance(caught.value, CheckpointDamagedError) and two.folder.steps() == [10, 20]


def test_what_orbax_cannot_read_though_the_files_are_right_is_no_damage(
    two: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("a version that knows nothing of this")

    monkeypatch.setattr(ocp.Checkpointer, "restore", fail)
    with pytest.raises(CheckpointError, match="its files are what was written") as caught:
        reopened(two).newest_good()
    assert not isinstance(caught.value, CheckpointDamagedError) and two.folder.steps() == [10, 20]


def test_a_folder_that_cannot_be_put_in_order_is_a_write_error(
    two: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Folder, step: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Folder, "set_aside", refuse)
    (two.folder.folder_of(20) / "host" / "metadata").write_text("{}")
    with pytest.raises(CheckpointWriteError, match="Read-only"):
        reopened(two).newest_good()


def test_foreign_files_in_the_folder_do_no_harm(two: Store, kit: Any) -> None:
    (two.folder.folder_of(20) / ".DS_Store").write_text("x")
    (two.folder.path / "20").mkdir()
    (two.folder.path / "notes.txt").write_text("mine")
    kit.assert_same(reopened(two).newest_good(), kit.snapshot(20))


# --- the ledger and the folders ------------------------------------------------------------------------


def test_case_25_a_checkpoint_that_the_ledger_does_not_know_is_checked_and_added(
    two: Store, kit: Any
) -> None:
    snapshot = kit.snapshot(30)
    two.commit(two.write(snapshot, make_receipt(snapshot, 1, 0)))
    again = reopened(two)
    assert [r.step for r in again.folder.receipts()] == [10, 20, 30]
    kit.assert_same(again.newest_good(), snapshot)
    assert "step 30 was not in the ledger" in again.notices[0]
    entries = reopened(two).folder.ledger.entries()
    assert sorted(entries) == [10, 20, 30] and sorted(entries[30].files) == files_of(two, 30)


def test_a_ledger_cut_in_the_middle_is_rebuilt_from_the_folders(two: Store, kit: Any) -> None:
    kit.save(two, kit.snapshot(30))
    before = reopened(two).folder.ledger.entries()
    path = two.folder.ledger.path
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    again = reopened(two)
    with pytest.warns(UserWarning, match="unreadable"):
        assert again.repair() == [20, 30]
    assert reopened(two).folder.ledger.entries() == before or "nan" in path.read_text()
    assert reopened(two).repair() == []
    kit.assert_same(reopened(two).newest_good(), kit.snapshot(30))


def test_a_flipped_ledger_line_does_not_condemn_its_checkpoint(two: Store, kit: Any) -> None:
    path = two.folder.ledger.path
    text = path.read_bytes()
    path.write_bytes(text[:-100] + bytes([text[-100] ^ 1]) + text[-99:])
    again = reopened(two)
    with pytest.warns(UserWarning, match="unreadable"):
        kit.assert_same(again.newest_good(), kit.snapshot(20))
    assert again.folder.aside() == []


def test_leftovers_of_killed_saves_are_cleaned_up_but_never_those_of_this_process(
    two: Store, kit: Any
) -> None:
    left = two.folder.path / ".tmp-000000000030-deadbeef" / "000000000030"
    left.mkdir(parents=True)
    (two.folder.path / ".bin-000000000005-deadbeef").mkdir()
    staged = two.write(kit.snapshot(30), make_receipt(kit.snapshot(30), 1, 0))
    assert two.newest_good() and staged.path.is_dir()
    shutil.rmtree(staged.path.parent)
    again = reopened(two)
    assert again.newest_good() and len(again.notices) == 2
    assert not [path for path in two.folder.path.iterdir() if path.name.startswith(".")]


def test_a_listing_reads_neither_jax_nor_orbax(two: Store) -> None:
    code = (
        "import sys; from xptrain.checkpoint.folder import Folder; "
        "print([r.step for r in Folder(sys.argv[1]).receipts()], 'jax' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(two.folder.path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[10, 20] False\n"


def test_step_names_sort_like_steps() -> None:
    assert step_name(12) == "000000000012" and sorted(map(step_name, (9, 100, 20))) == [
        "000000000009",
        "000000000020",
        "000000000100",
    ]


def test_receipts_and_host_are_plain_json_on_disk(two: Store) -> None:
    folder = two.folder.folder_of(20)
    receipt = json.loads((folder / "receipt" / "metadata").read_text())
    assert (receipt["step"], receipt["metrics"]) == (20, {"loss": "nan", "acc": "inf"})
    assert json.loads((folder / "host" / "metadata").read_text())["step"] == 20
