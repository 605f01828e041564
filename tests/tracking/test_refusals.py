"""A record that the store will never take stops nothing; a store that is down loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest_tracking import begin, make_run, pairs_in, points_in, row_of

from xptrain.errors import TrackerError, UsageError
from xptrain.tracking import artifacts, names
from xptrain.tracking.aside import TRIES
from xptrain.tracking.drain import Drain, deliver
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import Point, PointIndex
from xptrain.tracking.recording import PointWriter
from xptrain.tracking.refusals import Failed, Refused, explained
from xptrain.tracking.stores import open_tracker
from xptrain.tracking.tracker import MemoryTracker

BAD = "bad\udc80na\x00me"
SHOWN = "bad\\udc80na\\x00me"


# In MLflow ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2**63, -(2**63) - 1, 10**30])
def test_a_step_that_no_store_can_hold_is_refused_where_it_is_logged(tmp_path: Path, step: int) -> None:
    path = tmp_path / "journal.jsonl"
    writer = PointWriter(Journal(path), PointIndex(path))
    with pytest.raises(UsageError, match=r"(?s)64 bits.*2\*\*63"):
        writer.log(step, {"a": 1.0})
    with pytest.raises(UsageError, match="64 bits"):
        writer.log_device(step, {"a": 1.0})
    writer.log(2**63 - 1, {"a": 1.0})
    writer.log(-(2**63), {"a": 1.0})
    writer.close()


def test_a_step_that_stands_in_a_journal_all_the_same_stops_nothing(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri)
    journal = begin(run)
    for step in (1, 2**63, 2):
        journal.append("metrics", step=step, values={"loss": 1.0})
    journal.append("status", status="FINISHED", reason=None)
    done = deliver(run, open_tracker)
    run_id = str(done.run_id)
    assert (done.status, done.offset) == ("FINISHED", run.journal.stat().st_size)
    assert points_in(db, run_id) == {("loss", 1): [1.0], ("loss", 2): [1.0]}
    assert str(2**63) in pairs_in(db, run_id, "tags")["xptrain.refused"]
    assert row_of(db, run_id, "status") == "FINISHED"


def test_text_that_cannot_be_encoded_is_shown_escaped_wherever_it_stands(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri, experiment=BAD, name=BAD, description=BAD, script=BAD, user=BAD)
    journal = begin(run)
    journal.append("params", values={"p": BAD, f"n{BAD}": "1", "long": BAD * 1000})
    journal.append("tags", values={"t": BAD, f"n{BAD}": "1"})
    journal.append("metrics", step=1, values={BAD: 1.0, "\ud800": 2.0})
    dataset = {"name": BAD, "digest": BAD, "source": BAD, "profile": BAD, "context": BAD}
    journal.append("dataset", **dataset)
    journal.append("artifact", **artifacts.keep_bytes(run, b"x", BAD + ".txt", "ü #"))
    journal.append("status", status="FAILED", reason=BAD)
    done = deliver(run, open_tracker)
    run_id = str(done.run_id)
    assert (done.status, done.offset) == ("FAILED", run.journal.stat().st_size)
    params, tags = pairs_in(db, run_id, "params"), pairs_in(db, run_id, "tags")
    assert params["p"] == tags["t"] == tags["xptrain.reason"] == tags["mlflow.note.content"] == SHOWN
    assert params[names.allowed(f"n{BAD}")] == tags[names.allowed(f"n{BAD}")] == "1"
    assert len(points_in(db, run_id)) == 2 and "xptrain.refused" not in tags
    journal.append("params", values={"p": BAD})
    deliver(run, open_tracker)
    assert "xptrain.changed.p" not in pairs_in(db, run_id, "tags")


def test_a_users_tag_does_not_take_the_runs_key_away(stored_home: Path) -> None:
    run = make_run(stored_home)
    journal = begin(run)
    journal.append("tags", values={"xptrain.key": "stolen", "stage": "baseline"})
    run_id = str(deliver(run, open_tracker).run_id)
    tags = pairs_in(stored_home / "mlflow.db", run_id, "tags")
    assert tags["xptrain.key"] == run.key and tags["user.xptrain.key"] == "stolen"
    run.delivered_json.unlink()
    assert deliver(run, open_tracker).run_id == run_id
    given = {"xptrain.grade": "exact", "stage": "a", "my.xptrain.x": "b"}
    assert names.user_tags(given) == {"user.xptrain.grade": "exact", "stage": "a", "my.xptrain.x": "b"}


def test_an_artifact_that_mlflow_refuses_does_not_stop_the_status(stored_home: Path) -> None:
    run = make_run(stored_home)
    journal = begin(run)
    kept = artifacts.keep_bytes(run, b"x", "a.txt")
    journal.append("artifact", file=kept["file"], path="../outside")
    journal.append("status", status="FINISHED", reason=None)
    done = deliver(run, open_tracker)
    assert (done.status, done.postponed) == ("FINISHED", 0)
    assert "outside" in pairs_in(stored_home / "mlflow.db", str(done.run_id), "tags")["xptrain.refused"]


# With any tracker -----------------------------------------------------------------------------------


class Picky(MemoryTracker):
    """A tracker that fails at some points, params, tags or statuses."""

    def __init__(self, fails: Callable[[str, Any], Exception | None]) -> None:
        super().__init__()
        self.fails, self.calls = fails, 0

    def _check(self, kind: str, items: Sequence[Any]) -> None:
        self.calls += 1
        for item in items:
            if (error := self.fails(kind, item)) is not None:
                raise error

    def log_points(self, points: Sequence[Point]) -> None:
        self._check("point", points)
        super().log_points(points)

    def log_params(self, params: Any) -> Any:
        self._check("param", list(params))
        return super().log_params(params)

    def set_tags(self, tags: Any) -> None:
        self._check("tag", list(tags))
        super().set_tags(tags)

    def set_status(self, status: str, end_ms: int | None) -> None:
        self._check("status", [status])
        super().set_status(status, end_ms)


def told_run(home: Path, points: int = 2000) -> RunFolder:
    run = make_run(home)
    journal = begin(run)
    journal.append("params", values={"a": "1", "bad": "2", "c": "3"})
    journal.append("tags", values={"a": "1", "bad": "2", "c": "3"})
    for step in range(points):
        journal.append("metrics", step=step, values={"loss": float(step)})
    journal.append("status", status="FINISHED", reason=None)
    return run


def tries_until(drain: Drain, most: int = 50) -> int:
    for n in range(1, most + 1):
        try:
            drain.deliver()
        except TrackerError:
            continue
        return n
    raise AssertionError(f"not delivered in {most} tries")


@pytest.mark.parametrize("error", [Failed("odd"), ValueError("odd"), KeyError("odd")])
def test_what_fails_again_and_again_is_left_out_alone_and_told(home: Path, error: Exception) -> None:
    run = told_run(home)
    bad = {"bad", 1234}
    tracker = Picky(lambda kind, item: error if getattr(item, "step", item) in bad else None)
    # Three records are at fault; each is sent so often before it is left out.
    assert tries_until(Drain(run, lambda info: tracker)) == 3 * (TRIES - 1) + 1
    assert [step for step, _ in tracker.history("loss")] == [n for n in range(2000) if n != 1234]
    assert tracker.params == {"a": "1", "c": "3"} and {"a", "c"} <= tracker.tags.keys()
    assert tracker.status == "FINISHED" and "1234" in tracker.tags["xptrain.refused"]
    assert run.delivered.offset == run.journal.stat().st_size and run.delivered.tries == 0


def test_tries_are_counted_over_processes(home: Path) -> None:
    run = told_run(home, points=3)
    tracker = Picky(lambda kind, item: Failed("odd") if item == "bad" and kind == "param" else None)
    for n in range(1, TRIES):
        with pytest.raises(Failed):
            deliver(run, lambda info: tracker)
        assert run.delivered.tries == n
    assert deliver(run, lambda info: tracker).status == "FINISHED"


def test_what_is_refused_outright_is_left_out_at_once(home: Path) -> None:
    run = told_run(home)
    refused = Refused("never", found="because")
    tracker = Picky(lambda kind, item: refused if kind == "point" and item.step % 100 == 7 else None)
    assert deliver(run, lambda info: tracker).status == "FINISHED"
    assert len(tracker.points) == 1980
    assert "step=1007," in tracker.tags["xptrain.refused"], "the last batch's first"
    assert "and 9 more" in tracker.tags["xptrain.refused"]


@pytest.mark.parametrize(
    "error", [TrackerError("does not answer"), ConnectionError("reset"), OSError(28, "full")]
)
def test_an_outage_never_costs_a_point(home: Path, error: Exception) -> None:
    run = told_run(home)
    down = [True]
    tracker = Picky(lambda kind, item: error if down[0] and getattr(item, "step", 0) == 3 else None)
    drain = Drain(run, lambda info: tracker)
    for _ in range(4 * TRIES):
        with pytest.raises(TrackerError):
            drain.deliver()
    down[0] = False
    drain.deliver()
    assert len(tracker.points) == 2000 and "xptrain.refused" not in tracker.tags


@pytest.mark.parametrize("kinds", [("point",), ("point", "tag")])
def test_a_store_that_fails_at_everything_of_a_kind_is_at_fault_itself(
    home: Path, kinds: tuple[str, ...]
) -> None:
    run = told_run(home)
    down = [True]
    tracker = Picky(lambda kind, item: Failed("500") if down[0] and kind in kinds else None)
    drain = Drain(run, lambda info: tracker)
    for _ in range(4 * TRIES):
        with pytest.raises(Failed):
            drain.deliver()
    down[0] = False
    drain.deliver()
    assert len(tracker.points) == 2000 and "xptrain.refused" not in tracker.tags
    assert tracker.status == "FINISHED"


def test_without_proof_that_the_store_takes_something_nothing_is_left_out(home: Path) -> None:
    run = told_run(home, points=1)
    down = [True]

    def fails(kind: str, item: Any) -> Exception | None:
        return Failed("500") if down[0] and (kind == "point" or item == "xptrain.refused") else None

    tracker = Picky(fails)
    drain = Drain(run, lambda info: tracker)
    for _ in range(4 * TRIES):
        with pytest.raises(Failed):
            drain.deliver()
    down[0] = False
    drain.deliver()
    assert len(tracker.points) == 1 and "xptrain.refused" not in tracker.tags


def test_a_malformed_record_is_left_out(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    journal.append("metrics", steps=[1, 2], at=[0], values={"a": [1.0, 2.0]})
    journal.append("metrics", step=1, values={"a": "no number"})
    journal.append("metrics", step=2)
    journal.append("status", reason="no status")
    journal.append("attempt", attempt=1)
    journal.append("artifact", path="")
    journal.append("tags", values=[])
    journal.append("metrics", step=3, values={"a": 3.0})
    journal.append("status", status="FINISHED")
    assert deliver(run, lambda info: tracker).status == "FINISHED"
    assert tracker.history("a") == [(3, 3.0)] and "KeyError" in tracker.tags["xptrain.refused"]


# Which fault is which -------------------------------------------------------------------------------

SQL = "\n[SQL: INSERT INTO tags VALUES (?)]\n[parameters: ('{}',)]"


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        (
            "(builtins.OverflowError) Python int too large to convert to SQLite INTEGER",
            "INTERNAL_ERROR",
            Refused,
        ),
        ("'utf-8' codec can't encode character '\\udc80' in position 3", "INTERNAL_ERROR", Refused),
        ("(psycopg2.errors.NumericValueOutOfRange) bigint value out of range", "INTERNAL_ERROR", Refused),
        ("A string literal cannot contain NUL (0x00) characters.", "", Refused),
        ("Invalid value", "INVALID_PARAMETER_VALUE", Refused),
        ("The run must be in the 'active' state", "INVALID_PARAMETER_VALUE", TrackerError),
        (
            "(sqlite3.OperationalError) database is locked" + SQL.format("too large to convert"),
            "",
            TrackerError,
        ),
        ("step 1403 and 401 points failed", "INTERNAL_ERROR", Failed),
        ("API request failed with error code 403 != 200", "", TrackerError),
        ("API request failed with error code 503 != 200", "", TrackerError),
        ("too many 502 error responses", "", TrackerError),
        ("(psycopg2.OperationalError) server closed the connection", "INTERNAL_ERROR", TrackerError),
        ("something else", "INTERNAL_ERROR", Failed),
        ("(IntegrityError) odd" + SQL.format("database is locked"), "INTERNAL_ERROR", Failed),
    ],
)
def test_faults_of_the_data_and_of_the_store_are_told_apart(
    message: str, code: str, kind: type[TrackerError]
) -> None:
    assert type(explained("sqlite:///x", message, code)) is kind


def test_no_password_of_an_address_is_told() -> None:
    error = explained("http://h", "API request to http://alice:hunter2@h/api/2.0 failed: Connection refused")
    assert "hunter2" not in f"{error}{error.found}" and "<redacted>@h" in str(error.found)
