from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xptrain.checkpoint.policies import Policy, SaveEvent, best, every, keep
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import UsageError
from xptrain.state.snapshot import Cursor


def saves(rule: every, steps: range, chunk: int = 1, **fields: Any) -> list[int]:
    return [s for s in steps if Policy((rule,)).due(SaveEvent(s, steps_done=chunk, **fields))]


def test_every_epochs_saves_at_the_end_of_an_epoch_only() -> None:
    policy = Policy((every(epochs=2),))
    assert not policy.due(SaveEvent(10, epoch_end=False, epochs_done=2))
    due = [policy.due(SaveEvent(10 * n, epoch_end=True, epochs_done=n)) for n in range(1, 5)]
    assert due == [False, True, False, True]


def test_every_steps_counts_run_steps() -> None:
    assert saves(every(steps=4), range(1, 13)) == [4, 8, 12]


def test_case_13_every_steps_is_not_jumped_over_by_chunks() -> None:
    assert saves(every(steps=4), range(3, 31, 3), chunk=3) == [6, 9, 12, 18, 21, 24, 30]


@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 50))
def test_every_steps_is_due_where_a_multiple_was_reached(n: int, chunk: int, step: int) -> None:
    reached = any(s % n == 0 for s in range(step - chunk + 1, step + 1))
    assert Policy((every(steps=n),)).due(SaveEvent(step, steps_done=chunk)) == reached


def test_every_minutes_looks_at_the_seconds_since_the_last_save() -> None:
    policy = Policy((every(minutes=0.5),))
    assert [policy.due(SaveEvent(1, seconds=s)) for s in (0, 29.9, 30.0, 99.0)] == [False, False, True, True]


def test_rules_add_up() -> None:
    policy = Policy((every(epochs=1), every(steps=7), keep(2)))
    assert policy.due(SaveEvent(7)) and policy.due(SaveEvent(10, epoch_end=True, epochs_done=1))
    assert not policy.due(SaveEvent(8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: every(),
        lambda: every(epochs=1, steps=2),
        lambda: every(epochs=0),
        lambda: every(epochs=1.5),
        lambda: every(steps=True),
        lambda: every(minutes=-1),
        lambda: every(minutes=math.nan),
        lambda: every(minutes=math.inf),
        lambda: keep(0),
        lambda: keep("3"),
        lambda: best("", "min"),
        lambda: best("val_loss", "auto"),
        lambda: best("val_loss", "min", n=0),
        lambda: Policy("every"),
        lambda: Policy((1,)),
        lambda: Policy((keep(1), keep(2))),
    ],
)
def test_bad_arguments_are_usage_errors_that_say_what_was_expected(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.expected and caught.value.found


def test_rules_show_themselves_as_they_were_written() -> None:
    assert repr((every(minutes=5), keep(np.int64(3)), best("acc", "max"))) == (
        "(every(minutes=5), keep(3), best('acc', 'max', n=1))"
    )


def test_one_rule_and_a_list_are_taken_too() -> None:
    assert Policy(keep(2)).rules == (keep(2),)  # type: ignore[arg-type]
    assert Policy([keep(2)]).rules == (keep(2),)  # type: ignore[arg-type]


def test_without_keep_or_best_nothing_is_deleted(kit: Any) -> None:
    assert Policy((every(epochs=1),)).doomed([kit.receipt(s) for s in range(9)]) == []


def test_keep_keeps_the_newest(kit: Any) -> None:
    assert Policy((keep(2),)).doomed([kit.receipt(s) for s in (30, 10, 40, 20)]) == [10, 20]


def test_the_newest_pinned_checkpoint_of_each_fit_stays(kit: Any) -> None:
    receipts = [
        kit.receipt(10, fit=0, pinned=True),
        kit.receipt(20, fit=0, pinned=True),  # the fit was extended
        kit.receipt(30, fit=1),
        kit.receipt(40, fit=1, pinned=True),
        kit.receipt(50, fit=2),
    ]
    assert Policy((keep(1),)).doomed(receipts) == [10, 30]


def test_case_9_a_later_equal_or_worse_score_is_no_new_best(kit: Any) -> None:
    receipts = [kit.receipt(10 * n, loss=score) for n, score in enumerate((5, 1, 2, 2, 1), start=1)]
    assert [r.step for r in best("loss", "min").ranked(receipts)] == [20, 50, 30, 40, 10]
    assert Policy((best("loss", "min"),)).doomed(receipts) == [10, 30, 40]


def test_nan_and_missing_values_are_never_best(kit: Any) -> None:
    receipts = [
        kit.receipt(1, acc=math.nan),
        kit.receipt(2, acc=0.5),
        kit.receipt(3),
        kit.receipt(4, acc=0.1),
    ]
    assert [r.step for r in best("acc", "max", n=4).ranked(receipts)] == [2, 4]


def test_best_never_evicts_the_newest(kit: Any) -> None:
    receipts = [kit.receipt(1, loss=0.1), kit.receipt(2, loss=9.0)]
    assert Policy((best("loss", "min"),)).doomed(receipts) == []


def test_an_unknown_metric_is_named() -> None:
    assert Policy((best("val_lss", "min"),)).unknown_metrics({"loss": 1, "val_loss": 2}) == ["val_lss"]


values = st.one_of(st.just(math.nan), st.floats(allow_nan=False))
histories = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.dictionaries(st.sampled_from(["a", "b"]), values)),
    unique_by=id,
    max_size=12,
).map(
    lambda items: [
        Receipt(step, 1, 0, Cursor(fit, 0, 0), metrics, pinned, (), "", "")
        for step, (fit, pinned, metrics) in enumerate(items)
    ]
)
rules = st.tuples(
    st.lists(st.builds(keep, st.integers(1, 5)), max_size=1),
    st.lists(st.builds(best, st.sampled_from("ab"), st.sampled_from(["min", "max"]), st.integers(1, 3))),
).map(lambda parts: (every(epochs=1), *parts[0], *parts[1]))


@given(histories, rules)
def test_retention_properties(receipts: list[Receipt], chosen: tuple[Any, ...]) -> None:
    policy = Policy(chosen)
    doomed = set(policy.doomed(receipts))
    kept = [r for r in receipts if r.step not in doomed]
    assert doomed <= {r.step for r in receipts}
    # Deleting step by step, as a run does, or at once ends with the same checkpoints.
    assert policy.doomed(kept) == []
    if receipts:
        assert receipts[-1] in kept
    for fit in range(4):
        pinned = [r for r in receipts if r.pinned and r.cursor.fit == fit]
        assert not pinned or pinned[-1] in kept
    for rule in chosen:
        if isinstance(rule, keep):
            assert {r.step for r in receipts[-rule.n :]} <= {r.step for r in kept}
        if isinstance(rule, best):
            assert rule.ranked(receipts)[: rule.n] == rule.ranked(kept)[: rule.n]
            assert not any(math.isnan(r.metrics[rule.metric]) for r in rule.ranked(receipts))
