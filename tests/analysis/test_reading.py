"""What a run's folder says: attempts, progress, last values, and the true status."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tests.recorded_runs import make_run
from xptrain.analysis.reading import read
from xptrain.analysis.status import is_running, true_status
from xptrain.checkpoint.lock import RunLock
from xptrain.tracking.folder import Delivered


def test_a_run_that_died_without_a_word_is_killed(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt().epoch(0, steps=9, loss=1.0).epoch(1, steps=18, loss=0.5)
    reading = read(run.folder)
    assert (reading.status, reading.live, reading.step, reading.epochs) == ("KILLED", False, 18, 2)
    assert reading.last == {"train/loss": (1, 0.5)}
    assert reading.attempts[0].trained == 18
    assert reading.unsettled


def test_a_run_whose_process_lives_is_running(isolated_home: Path) -> None:
    me = psutil.Process()
    run = make_run(isolated_home).attempt(pid=me.pid, started=me.create_time())
    assert (read(run.folder).status, read(run.folder).unsettled) == ("RUNNING", False)
    run.status("FINISHED")
    # The process lives on, but the run does not.
    assert read(run.folder).status == "FINISHED"


def test_who_holds_the_lock_trains_the_run(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt().status("FAILED", "ValueError: no")
    assert (read(run.folder).status, read(run.folder).reason) == ("FAILED", "ValueError: no")
    lock = RunLock(run.folder.checkpoints)
    lock.acquire()
    try:
        assert (read(run.folder).status, read(run.folder).reason) == ("RUNNING", None)
    finally:
        lock.release()
    assert read(run.folder).status == "FAILED"


def test_each_attempt_has_its_steps_and_its_end(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt(1)
    columns = {"batch/loss": [3.0, 2.0, 1.5], "batch/late": [None, None, 1.0]}
    run.tell(("metrics", {"steps": [1, 2, 3], "at": [0, 5, 9], "values": columns}))
    run.attempt(2).tell(("tags", {"values": {"xptrain.attempt.2.from_step": "2"}}))
    run.epoch(0, steps=6, loss=1.0).status("FINISHED")
    first, second = read(run.folder).attempts
    assert (first.status, first.from_step, first.to_step, first.trained) == ("KILLED", 0, 3, 3)
    assert (second.status, second.from_step, second.to_step, second.trained) == ("FINISHED", 2, 6, 4)
    assert first.ended_ms == 1_009
    assert read(run.folder).last == {"train/loss": (0, 1.0)}


def test_an_attempt_that_was_refused_trained_nothing(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt(1).epoch(0, steps=5, loss=1.0).attempt(2).status("FAILED")
    assert [facts.trained for facts in read(run.folder).attempts] == [5, 0]
    assert read(run.folder).step == 5


def test_a_divergence_lowers_the_grade(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt().tell(("tags", {"values": {"xptrain.grade": "exact"}}))
    assert read(run.folder).grade == "exact"
    fields = {"metric": "train/loss", "step": 3, "first": 1.0, "second": 2.0}
    run.tell(("divergence", {**fields, "again": True}))
    assert read(run.folder).grade == "exact"
    run.tell(("divergence", fields))
    assert read(run.folder).grade == "approximate: 1 points came out differently"
    assert read(run.folder).divergences == ["train/loss at step 3: 1.0, then 2.0"]


def test_what_the_store_lacks(isolated_home: Path) -> None:
    run = make_run(isolated_home).attempt().status("FINISHED")
    size = run.folder.journal.stat().st_size
    assert read(run.folder).undelivered == size
    run.folder.acknowledge(Delivered(size, "ab" * 16, "FINISHED"))
    reading = read(run.folder)
    assert (reading.undelivered, reading.unsettled, reading.run_id) == (0, False, "ab" * 16)


def test_a_run_without_any_file_but_its_identity(isolated_home: Path) -> None:
    reading = read(make_run(isolated_home).folder)
    assert (reading.status, reading.attempts, reading.grade, reading.receipts) == ("KILLED", [], "", [])
    assert reading.manifest() == {}


@pytest.mark.parametrize(
    ("told", "live", "true"), [("RUNNING", True, "RUNNING"), ("FAILED", False, "FAILED")]
)
def test_true_status(told: str, live: bool, true: str) -> None:
    assert true_status(told, live) == true


def test_a_run_on_another_host_lives_while_its_heart_beats(isolated_home: Path) -> None:
    from dataclasses import replace

    from xptrain.tracking.attempts import Attempt

    attempt = Attempt(1, os.getpid(), 1.0, "elsewhere", None, 0)
    lock = RunLock(isolated_home / "checkpoints")
    lock.acquire()
    held = lock.peek()
    lock.release()
    assert held is not None
    assert is_running(attempt, "RUNNING", held)
    assert not is_running(attempt, "RUNNING", replace(held, live=False))
    assert is_running(attempt, "RUNNING", None)
