"""L7: one point per (metric, step); the first value wins, a differing recomputation is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xptrain.tracking.journal import Journal, Record, read
from xptrain.tracking.points import Point, PointIndex, Verdict, points
from xptrain.tracking.recording import PointWriter

NAN = float("nan")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def journaled(path: Path, *told: tuple[str, int, float]) -> list[int]:
    opened = Journal(path)
    ends = [opened.append("metrics", step=step, values={metric: value}) for metric, step, value in told]
    opened.close()
    return ends


def in_journal(path: Path) -> list[tuple[str, int, float]]:
    return [p[:3] for record, _ in read(path) if record.kind == "metrics" for p in points(record)]


def test_both_forms_of_a_metrics_record_unfold() -> None:
    one = Record("metrics", 100, {"step": 3, "values": {"a": 0.5, "b": "nan"}})
    assert [p[:2] for p in points(one)] == [("a", 3), ("b", 3)]
    many = Record(
        "metrics", 100, {"steps": [1, 2], "at": [0, 7], "values": {"a": [1.0, "-inf"], "b": [None, 2.0]}}
    )
    assert list(points(many)) == [
        Point("a", 1, 1.0, 100),
        Point("a", 2, -math.inf, 107),
        Point("b", 2, 2.0, 107),
    ]


def test_case29_recomputed_points_are_not_told_again(path: Path) -> None:
    # Epochs 0-2 are logged, the checkpoint is the one of epoch 0, epochs 1-3 are logged after the resume.
    ends = journaled(path, ("loss", 0, 3.0), ("loss", 1, 2.0), ("loss", 2, 1.0))
    index = PointIndex.from_journal(path, ends[0])
    assert [index.admit("loss", step, value).kind for step, value in ((1, 2.0), (2, 1.0), (3, 0.5))] == [
        "same",
        "same",
        "new",
    ]


def test_a_differing_recomputation_is_a_divergence_and_the_first_value_stays(path: Path) -> None:
    ends = journaled(path, ("loss", 0, 3.0), ("loss", 1, 2.0))
    index = PointIndex.from_journal(path, ends[0])
    assert index.admit("loss", 1, 2.5) == Verdict("diverged", 2.0, False)
    assert index.admit("loss", 1, 2.5) == Verdict("diverged", 2.0, True)


def test_points_from_before_the_checkpoint_are_known_too(path: Path) -> None:
    ends = journaled(path, ("size", 0, 10.0), ("loss", 5, 1.0))
    index = PointIndex.from_journal(path, ends[1])
    assert index.admit("size", 0, 10.0) == Verdict("same", 10.0, False)
    assert index.admit("loss", 4, 1.0).kind == "new"


def test_values_that_measure_time_are_skipped_when_present(path: Path) -> None:
    ends = journaled(path, ("loss", 0, 1.0), ("seconds", 1, 0.25))
    index = PointIndex.from_journal(path, ends[0])
    assert index.admit("seconds", 1, 0.75, volatile=True).kind == "same"
    assert index.admit("seconds", 2, 0.75, volatile=True).kind == "new"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(NAN, NAN, "same"), (NAN, 1.0, "diverged"), (0.0, -0.0, "diverged"), (math.inf, math.inf, "same")],
)
def test_values_are_compared_by_their_bits(path: Path, first: float, second: float, kind: str) -> None:
    journaled(path, ("loss", 1, first))
    assert PointIndex.from_journal(path).admit("loss", 1, second).kind == kind


def test_duplicates_of_one_attempt_are_caught_at_any_earlier_step(path: Path) -> None:
    writer = PointWriter(Journal(path), PointIndex(path))
    for step in (0, 1, 2, 5):
        writer.log(step, {"a": step})
    writer.log(5, {"a": 5})  # same step, same value
    writer.log(1, {"a": 1})  # an earlier one
    writer.log(3, {"a": 3})  # an earlier step that is new
    writer.log(3, {"a": 33})  # and again with another value
    writer.close()
    assert in_journal(path) == [("a", n, n) for n in (0, 1, 2, 5, 3)]
    (diverged,) = [r.fields for r, _ in read(path) if r.kind == "divergence"]
    assert diverged == {"metric": "a", "step": 3, "first": 3.0, "second": 33.0, "again": True}
    assert writer.divergences == 0, "logging a step twice is a slip, not a different result"


def test_memory_is_bounded_while_steps_grow(path: Path) -> None:
    index = PointIndex(path)
    for step in range(50_000):
        index.admit("loss", step, 1.0)
    assert len(index._top) == 1 and not index._all and not index._ahead
    ends = journaled(path, *(("loss", step, 1.0) for step in range(100)))
    index = PointIndex.from_journal(path, ends[9])
    assert len(index._ahead["loss"]) == 90
    for step in range(10, 200):
        index.admit("loss", step, 1.0)
    assert not index._ahead and not index._all and not index._closely


LOGGED = st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.sampled_from([0.0, 1.0, NAN]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.lists(LOGGED, max_size=12), st.floats(0, 1)), min_size=1, max_size=4))
def test_any_logging_over_any_attempts_gives_each_point_once(
    path: Path, attempts: list[tuple[list[tuple[str, int, float]], float]]
) -> None:
    path.unlink(missing_ok=True)
    first: dict[tuple[str, int], str] = {}
    for logged, where in attempts:
        opened = Journal(path)
        boundaries = [0, *(end for _, end in read(path))]
        start = boundaries[int(where * (len(boundaries) - 1))]
        writer = PointWriter(opened, PointIndex.from_journal(path, start))
        for metric, step, value in logged:
            writer.log(step, {metric: value})
            first.setdefault((metric, step), repr(value))
        writer.close()
    found = in_journal(path)
    assert len({(metric, step) for metric, step, _ in found}) == len(found)
    assert {(metric, step): repr(value) for metric, step, value in found} == first
