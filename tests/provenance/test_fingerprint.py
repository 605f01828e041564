"""Data fingerprints: what changes them, what does not, layouts, limits."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from xptrain.provenance import data
from xptrain.provenance.data import fingerprint, sample_rows
from xptrain.state.digest import digest_array

X = np.arange(24, dtype="float32").reshape(4, 3, 2)


def digest(value: Any) -> str:
    return fingerprint({"x": value}).digest


def test_an_array_has_the_digest_of_the_state_room() -> None:
    assert fingerprint({"x": X}).leaves["x"]["digest"] == digest_array(X)


LAYOUTS = {
    "fortran": np.asfortranarray(X),
    "strided": np.repeat(X, 2, axis=0)[::2],
    "transposed": np.ascontiguousarray(X.transpose(2, 0, 1)).transpose(1, 2, 0),
    "reversed": np.ascontiguousarray(X[::-1])[::-1],
    "unaligned": np.frombuffer(b"0" + X.tobytes(), np.uint8)[1:].view("float32").reshape(X.shape),
    "read-only": np.frombuffer(X.tobytes(), "float32").reshape(X.shape),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("chunk", [8, 24, 64 << 20])
def test_memory_layout_does_not_matter(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_CHUNK", chunk)
    assert digest(LAYOUTS[name]) == digest(X)


def test_jax_arrays_are_as_good_as_numpy_ones() -> None:
    import jax.numpy as jnp

    assert digest(jnp.asarray(X)) == digest(X)
    assert digest(jnp.ones(3, jnp.bfloat16)) != digest(jnp.ones(3, jnp.float16))


CHANGES = {
    "value": np.where(X == 23, 24, X),
    "shape": X.reshape(4, 6),
    "dtype": X.astype("float64"),
    "order": X[::-1],
    "nesting": [X],
    "key": {"a": X},
    "byte order": X.astype(">f4"),
    "None": None,
    "empty": [],
    "text": "X",
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_shows(name: str) -> None:
    assert digest(CHANGES[name]) != digest(X)


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, X.nbytes - 1), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_shows(index: int, bit: int) -> None:
    flipped = np.frombuffer(X.tobytes(), np.uint8).copy()
    flipped[index] ^= 1 << bit
    assert digest(flipped.view("float32").reshape(X.shape)) != digest(X)


def test_the_order_of_dict_keys_does_not_matter_but_that_of_lists_does() -> None:
    assert digest({"a": X, "b": 1}) == digest({"b": 1, "a": X})
    assert digest([X, X[::-1]]) != digest([X[::-1], X])


def test_names_do_not_collide() -> None:
    assert digest({"a/b": X}) != digest({"a": {"b": X}})
    assert digest({1: X}) != digest({"1": X})
    assert list(fingerprint({"x": {"a": [X, None]}}).leaves) == ["x/a[0]", "x/a[1]"]


def test_frames_and_series() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["u", None], "c": pd.Categorical(["p", "q"])})
    same = pd.DataFrame({"a": [1, 2], "b": ["u", None], "c": pd.Categorical(["p", "q"])}, index=[7, 8])
    assert digest(frame) == digest(same)
    assert digest(frame[["b", "a", "c"]]) != digest(frame)
    assert digest(frame.assign(b=["u", "v"])) != digest(frame)
    assert digest(frame.assign(c=pd.Categorical(["q", "q"], ["p", "q"]))) != digest(frame)
    assert digest(frame["a"]) == digest(frame["a"].to_numpy())
    twice = frame.set_axis(["a", "a", "a"], axis=1)
    assert len(fingerprint({"x": twice}).leaves) == 4
    assert digest(pd.Series([1, None], dtype="Int64")) != digest(pd.Series([1, 2], dtype="Int64"))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_matrices(form: str) -> None:
    matrix = scipy.sparse.random(20, 10, 0.2, format=form, random_state=0)
    other = matrix.copy()
    other.data[0] += 1
    assert digest(matrix) == digest(matrix.copy()) != digest(other)


def test_text_arrays_and_their_limits() -> None:
    words = np.array(["ab", "c"], dtype=object)
    assert digest(words) == digest(words.copy())
    assert digest(words) != digest(np.array(["a", "bc"], dtype=object))
    assert digest(words) != digest(words.reshape(2, 1))
    odd = fingerprint({"x": np.array([object()], dtype=object)})
    assert odd.opaque == ("x",) and "not covered" in odd.note


def test_what_could_be_used_up_is_not_touched() -> None:
    touched = []

    def batches() -> Any:
        touched.append(1)
        yield X

    found = fingerprint({"x": batches(), "y": X})
    assert found.opaque == ("x",) and not touched
    assert "not covered by the digest: x" in found.note
    assert found.leaves["x"]["text"] == "builtins.generator"


def test_above_the_limit_a_sample_is_read_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BLOCK", 400)
    rows = np.arange(10_000, dtype="int32").reshape(1000, 10)
    found = fingerprint({"x": rows}, limit_bytes=8_000)
    assert found.sampled and "20.00% of 40000 bytes" in found.note
    assert found.digest == fingerprint({"x": rows.copy()}, limit_bytes=8_000).digest
    assert found.digest == fingerprint({"x": np.asfortranarray(rows)}, limit_bytes=8_000).digest
    assert found.digest != fingerprint({"x": rows}).digest
    for row in (0, 999):
        changed = rows.copy()
        changed[row, 3] = -1
        assert fingerprint({"x": changed}, limit_bytes=8_000).digest != found.digest
    assert not fingerprint({"x": rows}, limit_bytes=40_000).sampled


@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 5000), width=st.integers(1, 1 << 22), fraction=st.floats(0.0001, 0.9999))
def test_sampled_rows_are_ascending_apart_and_have_both_ends(rows: int, width: int, fraction: float) -> None:
    ranges = sample_rows(rows, rows * width, fraction)
    flat = [row for pair in ranges for row in pair]
    assert flat == sorted(flat) and all(start < stop for start, stop in ranges)
    assert ranges[0][0] == 0 and ranges[-1][1] == rows


def test_large_arrays_are_not_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_CHUNK", 1 << 20)
    large = np.zeros((4096, 2048), "float32")  # 32 MiB
    np.save(tmp_path / "x.npy", large)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tracemalloc.start()
    found = {digest(large), digest(large[:, ::-1]), digest(mapped), digest(np.asfortranarray(large).T.T)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 1
    # The Fortran-ordered copy was made here, in the test; nothing like it a second time.
    assert peak < large.nbytes * 1.2


def test_profile_is_for_people() -> None:
    found = fingerprint(
        {"x": np.zeros((1437, 64), "float32"), "y": np.zeros(1437, "int64"), "sample_weight": None}
    )
    assert found.profile == "1437 samples; x float32 (1437, 64), y int64 (1437,), sample_weight value"
    assert found.as_json()["bytes"] == 1437 * 64 * 4 + 1437 * 8
    assert fingerprint({}).profile == "no data"
