from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xptrain.checkpoint.leaves import describe_sharding, from_stored, to_host, to_stored
from xptrain.checkpoint.receipts import Receipt, make_receipt, plain, seal, unseal
from xptrain.errors import CheckpointError, CheckpointWriteError
from xptrain.state.digest import digest_array, digest_json, digest_mapping
from xptrain.state.snapshot import Cursor


def test_a_receipt_states_each_leaf(kit: Any) -> None:
    leaves = {"b": jnp.ones((2, 3), jnp.bfloat16), "a": np.arange(3), "k": jax.random.key(7)}
    receipt = make_receipt(kit.snapshot(12, leaves, metrics={"loss": np.float32(0.5)}), 3, 99)
    assert [(leaf.path, leaf.shape, leaf.dtype, leaf.sharding) for leaf in receipt.leaves] == [
        ("a", (3,), "int64", "host"),
        ("b", (2, 3), "bfloat16", "single"),
        ("k", (), "key<threefry2x32>", "single"),
    ]
    assert [leaf.digest for leaf in receipt.leaves] == [
        digest_array(leaves["a"]),
        digest_array(leaves["b"]),
        digest_array(jax.random.key_data(leaves["k"])),
    ]
    assert receipt.digest == digest_mapping({leaf.path: leaf.digest for leaf in receipt.leaves})
    assert receipt.host_digest == digest_json(kit.snapshot(12).host)
    assert (receipt.step, receipt.attempt, receipt.created_ms, receipt.metrics) == (12, 3, 99, {"loss": 0.5})


@given(st.dictionaries(st.text(max_size=5), st.floats()))
def test_every_float_survives_strict_json(metrics: dict[str, float]) -> None:
    receipt = Receipt(1, 2, 3, Cursor(0, 1, 2, True), metrics, True, (), "h", "d")
    text = json.dumps(receipt.to_json(), allow_nan=False)
    back = Receipt.from_json(json.loads(text))
    assert back.to_json() == receipt.to_json()
    for name, value in metrics.items():
        same_nan = math.isnan(value) and math.isnan(back.metrics[name])
        assert same_nan or (back.metrics[name] == value and math.copysign(1, back.metrics[name] or value))


def test_a_receipt_round_trips_with_its_leaves(kit: Any) -> None:
    receipt = make_receipt(kit.snapshot(5, pinned=True), 1, 0)
    assert Receipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt


def test_a_newer_format_is_not_called_damaged() -> None:
    with pytest.raises(CheckpointError, match="format") as caught:
        Receipt.from_json({"format": 2})
    assert type(caught.value) is CheckpointError


@pytest.mark.parametrize(
    "record", [{"format": 1}, {"format": 1, "cursor": 3}, {"format": 1, "cursor": {"x": 1}}]
)
def test_what_is_no_receipt_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no receipt"):
        Receipt.from_json(record)


def test_a_seal_notices_every_changed_byte() -> None:
    text = json.dumps(seal({"a": [1, 2.5, "x"], "b": {"c": None}})).encode()
    assert unseal(text) == {"a": [1, 2.5, "x"], "b": {"c": None}}
    for place in range(len(text)):
        flipped = bytearray(text)
        flipped[place] ^= 1
        try:
            record = unseal(bytes(flipped))
        except ValueError:
            continue
        assert record == unseal(text), f"byte {place} changed the record and nobody noticed"


@pytest.mark.parametrize(
    "host",
    [{"a": {1: 2}}, {"a": object()}, {"a": b"x"}, {"a": "\ud800"}, {"a": [{("t",): 1}]}, {1: 2, "b": 3}],
)
def test_host_state_that_json_would_change_is_refused(host: dict[Any, Any]) -> None:
    with pytest.raises(CheckpointWriteError, match="host state"):
        plain(host)


def test_the_order_of_keys_is_part_of_the_host_state() -> None:
    host = {"z": {"y": 1, "b": [{"q": 1, "c": 2}]}, "a": 0}
    assert json.dumps(plain(host)) == json.dumps(host)


def test_case_27_bit_generator_states_are_plain() -> None:
    for name in ("PCG64", "MT19937", "Philox"):
        state = getattr(np.random, name)(3).state
        as_lists = json.loads(json.dumps(state, default=lambda value: value.tolist()))
        assert plain({"rng": as_lists, "empty": {}}) == {"rng": as_lists, "empty": {}}


@pytest.mark.parametrize(
    "leaf", [np.array(["text"]), np.array([object()]), "text", np.zeros(2, "i4,f4"), None]
)
def test_leaves_that_are_no_numbers_are_refused_with_their_key(leaf: Any) -> None:
    with pytest.raises(CheckpointWriteError, match="model/x"):
        to_host("model/x", leaf)


@pytest.mark.parametrize("key", ["a/", "/", 3])
def test_keys_that_would_collide_are_refused(key: Any) -> None:
    with pytest.raises(CheckpointWriteError, match="key"):
        to_host(key, np.zeros(1))


DTYPES = [
    *("bool", "int8", "uint16", "int64", "uint64", "float16", "float64", "complex64", "complex128"),
    *("bfloat16", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e3m2fn", "float8_e4m3"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_every_dtype_and_shape_comes_back_from_its_stored_form(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 2, shape)).astype(dtype)
    host, name, logical = to_host("x", array)
    back = from_stored(to_stored(host), name, logical)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_foreign_byte_order_and_strides_are_made_native() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    host, name, _ = to_host("x", array)
    assert name == "float32" and host.dtype.isnative and (host == array).all()


def test_a_stored_array_of_another_kind_is_not_taken() -> None:
    for stored, dtype, shape in [
        (np.zeros(3), "float32", (3,)),
        (np.zeros(3, "float32"), "float32", (4,)),
        (np.zeros(3, "uint8"), "uint4", (3,)),
        (np.zeros(3, "uint32"), "key<threefry2x32>", ()),
        (np.zeros((1, 2), "uint32"), "key<threefry2x32>", ()),
    ]:
        with pytest.raises(ValueError):
            from_stored(stored, dtype, shape)


def test_shardings_are_described_as_json() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    spec = jax.sharding.PartitionSpec(None, ("data", "model"))
    array = jax.device_put(jnp.zeros((2, 2)), jax.sharding.NamedSharding(mesh, spec))
    assert describe_sharding(array) == {"mesh": {"data": 1, "model": 1}, "spec": [None, ["data", "model"]]}
    assert describe_sharding(jnp.zeros(1)) == "single"
    assert describe_sharding(np.zeros(1, ml_dtypes.bfloat16)) == "host"


def test_only_the_store_imports_orbax_and_jax() -> None:
    names = ["leaves", "receipts", "ledger", "policies", "lock", "machine"]
    names += ["files", "folder", "problems", "verify", "recovery", "saver"]
    lines = "; ".join(f"import xptrain.checkpoint.{name}" for name in names)
    code = f"import sys; {lines}; print([n for n in ('jax', 'orbax', 'keras') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
