"""Plain data as JSON and arrays, and back."""

from __future__ import annotations

import datetime
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xptrain.checkpoint.leaves import to_host
from xptrain.state.digest import digest_array, digest_json
from xptrain.state.rng import capture_rng, restore_rng
from xptrain.state.values.codec import Unencodable, decode, encode

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.just("!")), inner, max_size=4),
        st.sets(st.integers(), max_size=4),
    ),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    data = json.loads(json.dumps(encode(value, arrays), allow_nan=False))
    return decode(data, arrays)


def same(a: Any, b: Any) -> bool:
    # repr tells -0.0 from 0.0, True from 1, a tuple from a list; NaN equals itself.
    return repr(a) == repr(b) and type(a) is type(b)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    back = there_and_back(value)
    assert same(value, back) or value == back


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="int16").reshape(2, 3),
        np.zeros((0, 3), "float32"),
        np.float32(1.5),
        np.array(math.nan),
        np.array(["a", "bc"]),
        np.array([1 + 2j]),
        np.array([b"a", b"bcd"]),
        np.array(["2020-01-01", "NaT"], "datetime64[ns]"),
        np.timedelta64(3, "D"),
        np.str_("text"),
        np.array([], "U3"),
        np.arange(3, dtype=">i4"),
        np.array([(1, [2.0, 3.0])], [("a", "<i4"), ("b", "<f8", (2,))]),
        np.zeros(2, [("a", [("b", "<i2"), ("c", "U2")]), ("d", "?")]),
    ],
)
def test_arrays_come_back_with_type_and_shape(array: Any) -> None:
    back = there_and_back(array)
    assert type(back) is type(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    arrays: dict[str, Any] = {}
    encode(array, arrays)
    for stored in arrays.values():
        to_host("host/0", stored)  # raises where a checkpoint could not hold it


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(b=1, a=2),
        defaultdict(list, {"z": [1], "a": []}),
        defaultdict(None, {1: 2}),
        Counter("abca"),
        deque([1, (2, 3)], maxlen=5),
        {"z": 1, "a": {"y": 2, "b": 3}},
        {64, 72, 0},
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC),
        datetime.date(2020, 1, 2),
        datetime.time(1, 2),
        datetime.timedelta(-1, 2, 3),
        Path("a/b"),
    ],
)
def test_a_value_keeps_its_kind_and_its_order(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_goes_on(name: str) -> None:
    generator = np.random.Generator(getattr(np.random, name)(5))
    generator.integers(10, dtype="int32")
    assert there_and_back(generator).random(5).tolist() == generator.random(5).tolist()


def test_typed_keys_come_back() -> None:
    key = jax.random.key(7, impl="rbg")
    back = there_and_back(key)
    assert back.dtype == key.dtype
    assert jax.random.bits(back) == jax.random.bits(key)


def test_jax_arrays_and_comparisons_come_back() -> None:
    back = there_and_back({"w": [jax.numpy.ones(3)], "op": keras.ops.less})
    assert isinstance(back["w"][0], jax.Array)
    assert back["op"] is keras.ops.less


def test_an_array_is_copied_not_borrowed() -> None:
    array = np.ones(3)
    arrays: dict[str, Any] = {}
    encode(array, arrays)
    array[:] = 0
    assert arrays["host/0"].sum() == 3


@pytest.mark.parametrize("value", [object(), lambda: 1, open, {"a": {1: iter([])}}, np.array([object()])])
def test_what_cannot_be_stored_is_named(value: Any) -> None:
    with pytest.raises(Unencodable):
        encode(value, {})


def test_an_unknown_kind_is_refused_not_guessed() -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        decode({"!": "os.system", "v": "true"}, {})


def test_case_27_generators_come_back() -> None:
    random.seed(3)
    np.random.seed(4)
    np.random.standard_normal()  # leaves a cached second value behind
    arrays: dict[str, Any] = {}
    data = json.loads(json.dumps(capture_rng(arrays)))
    expected = (random.random(), np.random.standard_normal(), np.random.rand())
    random.seed(9)
    np.random.seed(9)
    restore_rng(data, arrays)
    assert (random.random(), np.random.standard_normal(), np.random.rand()) == expected


@given(st.dictionaries(st.text(), st.integers()))
def test_digests_do_not_depend_on_the_order_of_keys(values: dict[str, int]) -> None:
    assert digest_json(values) == digest_json(dict(reversed(values.items())))


def test_digests_tell_dtype_shape_and_bytes_apart() -> None:
    base = np.zeros((2, 3), "float32")
    others = [base.astype("int32"), base.reshape(3, 2), -base, np.zeros(6, "float32")]
    assert len({digest_array(array) for array in [base, *others]}) == 5
    assert digest_array(np.asfortranarray(np.arange(6).reshape(2, 3))) == digest_array(
        np.arange(6).reshape(2, 3)
    )
