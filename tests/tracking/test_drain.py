"""Delivery can be cut anywhere and repeated any number of times with the same result."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest_tracking import begin, make_run

from xptrain.errors import TrackerError
from xptrain.tracking import artifacts, durable, processes
from xptrain.tracking.attempts import Attempt, is_live, run_state
from xptrain.tracking.drain import Drain, deliver, reconcile
from xptrain.tracking.folder import Delivered, RunFolder
from xptrain.tracking.journal import Journal
from xptrain.tracking.tracker import Dataset, MemoryTracker, NullTracker


def tell_everything(run: RunFolder) -> Journal:
    journal = begin(run)
    journal.append("params", values={"lr": "0.001", "seed": "0"})
    journal.append("tags", values={"xptrain.grade": "exact"})
    for step in range(2500):
        journal.append("metrics", step=step, values={"loss": step / 7})
    journal.append("artifact", **artifacts.keep_bytes(run, b"{}", "config.json"))
    journal.append("dataset", name="digits", digest="d1", source="", profile="", context="train")
    journal.append("metrics", 50, steps=[1, 2], at=[0, 5], values={"val": ["nan", 2.0], "acc": [None, 1.0]})
    journal.append("status", 9_000, status="FINISHED", reason=None)
    return journal


def test_everything_arrives_in_order_once(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    end = tell_everything(run).end
    done = deliver(run, lambda info: tracker)
    assert (done.offset, done.status, done.run_id) == (end, "FINISHED", f"memory-{run.key}")
    assert run.delivered == Delivered(end, done.run_id, "FINISHED", False, attempt=1)
    assert tracker.history("loss") == [(step, step / 7) for step in range(2500)]
    assert tracker.history("acc") == [(2, 1.0)] and [s for s, _ in tracker.history("val")] == [1, 2]
    assert tracker.params == {"lr": "0.001", "seed": "0"} and tracker.tags["xptrain.attempt"] == "1"
    assert list(tracker.artifacts) == ["config.json"]
    assert tracker.datasets == [Dataset("digits", "d1", context="train")]
    assert tracker.statuses == [("RUNNING", None), ("FINISHED", 9_000)]
    assert deliver(run, lambda info: tracker).records == 0


class Failing:
    """A tracker that fails at its n-th call, before or after the call took effect."""

    def __init__(self, inner: MemoryTracker, at: int, after: bool) -> None:
        self.inner, self.left, self.after = inner, at, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.inner, name)

        def counted(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise TrackerError("gone")
            result = call(*arguments)
            if self.left == 0:
                raise TrackerError("gone after it worked")
            return result

        return counted if name != "close" else call


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_fails_at_any_call_gets_the_same_in_the_end(home: Path, after: bool) -> None:
    run, whole = make_run(home), MemoryTracker()
    tell_everything(run)
    deliver(run, lambda info: whole)
    for at in range(1, 100):
        run.delivered_json.unlink()
        tracker = MemoryTracker()
        failing = Failing(tracker, at, after)
        drain = Drain(run, lambda info, failing=failing: failing)  # type: ignore[misc]
        try:
            drain.deliver()
        except TrackerError:
            drain.deliver()
            # By text, since nan is not equal to itself; the status may be told twice.
            assert repr(vars(tracker)) == repr({**vars(whole), "statuses": tracker.statuses})
            assert tracker.status == "FINISHED"
        else:
            assert at > 10
            return
    raise AssertionError("it never got through")


def test_a_long_journal_is_acknowledged_in_parts(home: Path) -> None:
    run = make_run(home)
    end = tell_everything(run).end
    seen: list[int] = []

    class Looks(MemoryTracker):
        def log_points(self, points: Any) -> None:
            seen.append(run.delivered.offset)
            assert len(points) <= 1000
            super().log_points(points)

    deliver(run, lambda info: Looks())
    assert len(seen) == 4 and seen == sorted(set(seen)) and seen[-1] < end


def test_the_journal_is_on_the_disk_before_the_store_has_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, order = make_run(home), []
    tell_everything(run)
    from xptrain.tracking import drain as module

    monkeypatch.setattr(module, "fsync", lambda fd: order.append("fsync"))

    class Notes(MemoryTracker):
        def set_status(self, status: str, end_ms: int | None) -> None:
            order.append("sent")

    deliver(run, lambda info: Notes())
    assert order[0] == "fsync" and order.count("sent") == 2


def test_a_torn_tail_waits_for_its_rest(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    end = journal.append("metrics", step=1, values={"loss": 1.0})
    with run.journal.open("ab") as file:
        file.write(b'{"kind":"metrics","ms"')
    assert deliver(run, lambda info: tracker).offset == end
    journal = Journal(run.journal)
    journal.append("metrics", step=2, values={"loss": 2.0})
    deliver(run, lambda info: tracker)
    assert tracker.history("loss") == [(1, 1.0), (2, 2.0)]


def test_damage_in_the_middle_is_told_in_the_store(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    at = journal.append("metrics", step=1, values={"loss": 1.0})
    journal.append("metrics", step=2, values={"loss": 2.0})
    with run.journal.open("r+b") as file:
        file.seek(at - 20)
        file.write(b"#")
    deliver(run, lambda info: tracker)
    assert tracker.history("loss") == [(2, 2.0)] and "skipped" in tracker.tags["xptrain.journal_damaged"]


def test_another_store_gets_everything_from_the_beginning(home: Path) -> None:
    run = make_run(home)
    tell_everything(run)
    deliver(run, lambda info: MemoryTracker())

    class Other(MemoryTracker):
        def open(self, info: Any, known_id: str | None = None) -> str:
            super().open(info)
            return "another"

    Journal(run.journal).append("tags", values={"more": "1"})
    other = Other()
    deliver(run, lambda info: other)
    assert len(other.points) == 2503 and other.tags["more"] == "1" and run.delivered.run_id == "another"


def test_case28_a_changed_param_becomes_a_tag_and_no_other_is_lost(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    journal.append("params", values={"epochs": "3", "lr": "0.001", "loss": "<f at 0x1>"})
    journal = begin(run, attempt=2, resumed_from=10)
    journal.append("params", values={"epochs": "5", "lr": "1e-3", "loss": "<f at 0x2>", "new": "1"})
    deliver(run, lambda info: tracker)
    assert tracker.params == {"epochs": "3", "lr": "0.001", "loss": "<f at 0x1>", "new": "1"}
    changed = {k.removeprefix("xptrain.changed."): v for k, v in tracker.tags.items() if "changed" in k}
    assert changed == {"epochs": "5", "lr": "1e-3", "loss": "<f at 0x2>"}
    assert tracker.tags["xptrain.attempt"] == "2" and tracker.tags["xptrain.attempt.2.resumed_from"] == "10"


def test_the_first_divergence_is_told_and_the_grade_stays_lowered(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    for step in (3, 4):
        journal.append("divergence", metric="loss", step=step, first=1.0, second=2.0, again=False)
    journal.append("divergence", metric="mine", step=1, first=1.0, second=2.0, again=True)
    deliver(run, lambda info: tracker)
    journal.append("tags", values={"xptrain.grade": "exact"})
    deliver(run, lambda info: tracker)
    assert tracker.tags["xptrain.divergence"] == "loss at step 3: 1.0, then 2.0"
    assert tracker.tags["xptrain.grade"] == "approximate"
    assert tracker.tags["xptrain.logged_twice"].startswith("mine at step 1")


def test_a_missing_artifact_is_told_and_stops_nothing(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    kept = artifacts.keep_bytes(run, b"", "plot.png")
    (run.path / kept["file"]).unlink()
    journal.append("artifact", **kept)
    journal.append("a-kind-of-next-year", x=1)
    journal.append("tags", values={"behind": "it"})
    deliver(run, lambda info: tracker)
    assert tracker.tags["behind"] == "it" and tracker.tags["xptrain.missing.plot.png"] == kept["file"]


def test_one_process_delivers_at_a_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xptrain.tracking import drain as module

    run = make_run(home)
    tell_everything(run)
    monkeypatch.setattr(module, "_LOCK_S", 0.2)
    with (
        durable.exclusive(run.deliver_lock, 1),
        pytest.raises(TrackerError, match=r"another process has held .*deliver\.lock"),
    ):
        deliver(run, lambda info: NullTracker())
    assert deliver(run, lambda info: NullTracker()).records > 0


FORKS = """
import os, sys, time
from pathlib import Path
from xptrain.tracking.durable import exclusive
with exclusive(Path(sys.argv[1]), 1):
    if os.fork() == 0:
        os.close(0)
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path, child: Any) -> None:
    lock = tmp_path / "lock"
    holder = child(FORKS, lock)
    assert holder.stdout.readline() == "held\n"
    (worker,) = psutil.Process(holder.pid).children()
    with pytest.raises(TrackerError), durable.exclusive(lock, 0.1):
        pass
    holder.kill()
    assert worker.is_running()
    with durable.exclusive(lock, 5):
        pass
    worker.kill()


# Status (case 30) ---------------------------------------------------------------------------------


def dead_attempt(run: RunFolder, attempt: int = 1) -> Journal:
    journal = Journal(run.journal)
    journal.append("attempt", 100, attempt=attempt, pid=2**22 + 1, pid_started=1.0, host=processes.hostname())
    journal.append("metrics", 200, steps=[1, 2], at=[0, 50], values={"loss": [1.0, 2.0]})
    return journal


def test_case30_a_dead_attempt_without_status_is_killed_at_its_last_record(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    dead_attempt(run)
    assert reconcile(run, lambda info: tracker).status == "KILLED"
    assert (
        tracker.statuses[-1] == ("KILLED", 250) and "without a final status" in tracker.tags["xptrain.reason"]
    )
    assert run.delivered.status == "KILLED"
    reconcile(run, lambda info: tracker)
    assert len(tracker.statuses) == 2, "told once"


def test_case30_a_status_that_was_journaled_stands(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    dead_attempt(run).append("status", 300, status="FAILED", reason="ValueError: bad")
    assert reconcile(run, lambda info: tracker).status == "FAILED"
    assert tracker.statuses[-1] == ("FAILED", 300) and tracker.tags["xptrain.reason"] == "ValueError: bad"


def test_case30_a_live_attempt_is_left_alone(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    begin(run)
    assert reconcile(run, lambda info: tracker).status == "RUNNING"


def test_case30_an_attempt_that_began_meanwhile_is_not_marked_killed(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    dead_attempt(run)

    def resumed_meanwhile(attempt: Attempt) -> bool:
        assert attempt.attempt == 1
        begin(run, attempt=2, resumed_from=1)
        return False

    assert reconcile(run, lambda info: tracker, resumed_meanwhile).status == "RUNNING"
    assert ("KILLED", 250) not in tracker.statuses


def test_case30_running_again_after_it_was_marked_killed(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    dead_attempt(run)
    reconcile(run, lambda info: tracker)
    begin(run, attempt=2, resumed_from=1)
    assert deliver(run, lambda info: tracker).status == "RUNNING"
    assert tracker.statuses[-1] == ("RUNNING", None)


def test_the_state_of_a_run_is_read_from_its_journal(home: Path) -> None:
    run = make_run(home)
    assert run_state(run).attempt is None
    journal = dead_attempt(run)
    state = run_state(run)
    assert state.attempt is not None and state.status == "RUNNING" and state.last_ms == 250
    assert not is_live(state.attempt)
    journal.append("status", 300, status="FAILED", reason="why")
    assert (run_state(run).status, run_state(run).reason, run_state(run).last_ms) == ("FAILED", "why", 300)


def test_a_process_is_known_by_its_start_time_too() -> None:
    pid, started = processes.own()
    assert processes.alive(pid, started) and not processes.alive(pid, started - 60)
    child = os.fork()
    if child == 0:
        os._exit(0)
    born = psutil.Process(child).create_time()
    while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not processes.alive(child, born), "a zombie is dead"
    os.waitpid(child, 0)
    elsewhere = Attempt(1, pid, started - 60, "another-host", None, 0)
    assert is_live(elsewhere), "of another host we cannot know"
