"""Names, values and requests are made to fit MLflow without two becoming one."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xptrain.tracking import names


@pytest.mark.parametrize(
    "name", ["loss", "val/accuracy", "batch/loss 2", "a.b-c:d", "größe", ".hidden", "a..b"]
)
def test_allowed_names_stay(name: str) -> None:
    assert names.allowed(name) == name


def test_names_that_would_collide_stay_apart() -> None:
    made = [
        names.allowed(n) for n in ("acc@1", "acc%1", "acc_1", "/acc_1", "acc_1/", "./acc_1", "acc//1", "")
    ]
    assert len(set(made)) == len(made)
    assert made[0].startswith("acc_1-")


@given(st.text(max_size=300) | st.text(alphabet="./ ~a", max_size=12))
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name, _validate_param, _validate_tag_name

    made = names.allowed(name)
    _validate_metric_name(made)
    _validate_tag_name(made)
    _validate_param(made, "")
    assert len(made) <= names.LONGEST_NAME and names.allowed(made) == made


def test_values_fit_and_a_changed_tail_shows() -> None:
    long = "x" * 6001
    assert names.param_value("x" * 6000) == "x" * 6000
    assert names.param_value(long).startswith("blake2b:") and "6001 characters" in names.param_value(long)
    assert names.param_value(long) != names.param_value(long[:-1] + "y")
    assert len(names.tag_value("y" * 9000)) == 8000 and "cut: 9000 characters" in names.tag_value("y" * 9000)
    assert names.tag_value("y" * 8000) == "y" * 8000
    assert names.finite(math.inf) == sys.float_info.max == -names.finite(-math.inf)
    assert math.isnan(names.finite(math.nan)) and names.finite(0.5) == 0.5


@given(st.lists(st.integers(1, 1_000_000), max_size=50), st.integers(1, 10))
def test_chunks_keep_everything_in_order_within_the_limits(sizes: list[int], most: int) -> None:
    items = list(range(len(sizes)))
    made = list(names.chunks(items, most, sizes))
    assert [item for chunk in made for item in chunk] == items
    for chunk in made:
        assert 0 < len(chunk) <= most
        assert len(chunk) == 1 or sum(sizes[item] for item in chunk) <= names.MOST_BYTES
