"""The order of the data is a function of (seed, fit, epoch, batch) and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xptrain.data.arrays import ArraySource
from xptrain.data.order import permutation
from xptrain.data.passes import Passes


def source(n: int, size: int, shuffle: bool | str, steps: int | None = None, seed: int = 0) -> ArraySource:
    data = np.arange(n)
    return ArraySource(lambda indices: data[indices], n, size, shuffle, seed, Passes(-(-n // size), steps))


def batches(of: ArraySource, fit: int, epoch: int, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in of.epoch(fit, epoch, start)]


def flat(epoch: list[list[int]]) -> list[int]:
    return [index for batch in epoch for index in batch]


def test_the_order_is_fixed_for_ever() -> None:
    # Changing this changes every recorded run.
    assert permutation(8, 0, 0, 0).tolist() == [6, 4, 3, 7, 5, 2, 1, 0]


@given(
    n=st.integers(1, 60),
    size=st.integers(1, 20),
    shuffle=st.sampled_from([True, False, "batch"]),
    steps=st.one_of(st.none(), st.integers(1, 12)),
    epoch=st.integers(0, 4),
    data=st.data(),
)
def test_any_start_yields_the_tail(
    n: int, size: int, shuffle: bool | str, steps: int | None, epoch: int, data: st.DataObject
) -> None:
    made = source(n, size, shuffle, steps)
    whole = batches(made, 0, epoch)
    assert len(whole) == made.batches_in(epoch) <= made.num_batches
    start = data.draw(st.integers(0, len(whole)))
    np.random.seed(data.draw(st.integers(0, 99)))
    assert batches(source(n, size, shuffle, steps), 0, epoch, start) == whole[start:]


@given(n=st.integers(1, 60), size=st.integers(1, 20), shuffle=st.sampled_from([True, False, "batch"]))
def test_one_pass_sees_each_sample_once(n: int, size: int, shuffle: bool | str) -> None:
    seen = flat(batches(source(n, size, shuffle), 0, 3))
    assert sorted(seen) == list(range(n))


def test_case_15_the_order_of_epoch_2_is_the_same_after_a_resume() -> None:
    straight = source(8, 2, True)
    orders = [flat(batches(straight, 0, epoch)) for epoch in range(3)]
    assert flat(batches(source(8, 2, True), 0, 2)) == orders[2]
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("names", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_seed_fit_and_epoch_each_change_the_order(names: tuple[int, int, int]) -> None:
    assert permutation(50, *names).tolist() != permutation(50, 0, 0, 0).tolist()


def test_epochs_shorter_than_a_pass_go_on_where_the_last_one_stopped() -> None:
    made = source(10, 2, True, steps=3)
    two = flat(batches(made, 0, 0)) + flat(batches(made, 0, 1))
    assert sorted(two[:10]) == list(range(10))
