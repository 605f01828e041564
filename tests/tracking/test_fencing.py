"""A process that lost the run writes no more, and what it still wrote does not count (laws L7, L10)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest_tracking import begin, make_run, wait_for

from xptrain.errors import FencedError, TrackerError
from xptrain.tracking import journal as journals
from xptrain.tracking import processes
from xptrain.tracking.attempts import run_state
from xptrain.tracking.drain import deliver, reconcile
from xptrain.tracking.folder import Delivered, RunFolder
from xptrain.tracking.journal import Journal, pick, read, scan
from xptrain.tracking.points import PointIndex, points
from xptrain.tracking.recording import PointWriter
from xptrain.tracking.tracker import MemoryTracker


def writer_of(path: Path, attempt: int, start: int = 0) -> PointWriter:
    return PointWriter(Journal(path), PointIndex.from_journal(path, start), attempt=attempt)


def told(path: Path) -> list[tuple[str, int, float]]:
    return [p[:3] for record, _ in read(path) if record.kind == "metrics" for p in points(record)]


def attempts_in(path: Path) -> list[int]:
    return [record.fields["attempt"] for record, _ in scan(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def taken_over(home: Path) -> RunFolder:
    """A run whose first attempt goes on after the second began: late points, tags and status."""
    run = make_run(home)
    first = begin(run)
    first.append("metrics", 10, step=1, values={"loss": 1.0}, attempt=1)
    second = begin(run, attempt=2, resumed_from=1)
    first.append("metrics", 20, step=2, values={"loss": 2.0}, attempt=1)
    second.append("metrics", 21, step=2, values={"loss": 2.0}, attempt=2)
    first.append("metrics", 30, steps=[3, 4], at=[0, 1], values={"loss": [33.0, 44.0]}, attempt=1)
    first.append("tags", 31, values={"stage": "late"}, attempt=1)
    first.append("params", 31, values={"late": "1"}, attempt=1)
    first.append("divergence", 31, metric="loss", step=3, first=1.0, second=2.0, again=False, attempt=1)
    first.append("status", 32, status="FAILED", reason="fenced off", attempt=1)
    second.append("metrics", 33, step=3, values={"loss": 3.0}, attempt=2)
    second.append("status", 40, status="FINISHED", reason=None, attempt=2)
    first.append("metrics", 99, step=5, values={"loss": 5.0}, attempt=1)
    return run


def test_every_record_names_its_attempt(path: Path) -> None:
    old = writer_of(path, 1)
    old.log(1, {"loss": 1.0})
    old.close()
    writer = writer_of(path, 2)
    writer.append("attempt", attempt=2, pid=1, pid_started=1.0, host="h", resumed_from=None)
    writer.log(1, {"loss": 1.5})
    for step in (2, 3):
        writer.log(step, {"loss": 1.0})
    writer.append("tags", values={"a": "b"})
    writer.append("status", status="FINISHED", reason=None)
    writer.close()
    assert attempts_in(path) == [1] + [2] * (len(attempts_in(path)) - 1)
    assert {record.kind for record, _ in scan(path)} == {
        "attempt",
        "metrics",
        "divergence",
        "tags",
        "status",
    }


def test_a_writer_that_is_told_so_writes_nothing_more_and_says_it_once(path: Path) -> None:
    writer = writer_of(path, 1)
    writer.log(1, {"loss": 1.0})
    writer.flush()
    writer.fenced.set()
    with pytest.raises(FencedError, match="later attempt"):
        writer.log(2, {"loss": 2.0})
    writer.log(3, {"loss": 3.0})
    writer.log_device(4, {"loss": 4.0})
    writer.append("status", status="FAILED", reason="fenced")
    for _ in range(2):
        with pytest.raises(FencedError):
            writer.flush()
        with pytest.raises(FencedError):  # law L13: the checkpoint of a fenced attempt is not committed
            writer.sync()
    writer.close()
    writer.close()
    assert told(path) == [("loss", 1, 1.0)] and len(attempts_in(path)) == 1


def test_what_is_queued_when_the_run_is_lost_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    writer = PointWriter(journal, PointIndex(path), attempt=1)
    monkeypatch.setattr(journal, "_write", lambda line: (_ for _ in ()).throw(OSError(28, "disk full")))
    writer.log(1, {"loss": 1.0})
    with pytest.raises(TrackerError, match="cannot be written"):
        writer.flush()
    monkeypatch.undo()  # the disk has room again, but the run is another's
    writer.fenced.set()
    writer.close()
    assert path.read_bytes() == b""


def test_a_writer_finds_its_successor_in_the_journal(path: Path) -> None:
    old = writer_of(path, 1)
    old.append("attempt", attempt=1)
    for step in range(3):
        old.log(step, {"loss": step})
    old.flush()
    new = writer_of(path, 2)
    new.append("attempt", attempt=2)
    new.flush()
    old.log(3, {"loss": 3.0})
    with pytest.raises(FencedError):
        old.flush()
    with pytest.raises(FencedError):
        old.append("status", status="FAILED", reason="fenced")
    old.close()
    new.log(3, {"loss": 3.5})
    new.append("status", status="FINISHED", reason=None)
    new.close()
    assert attempts_in(path) == sorted(attempts_in(path))
    assert told(path) == [("loss", 0, 0.0), ("loss", 1, 1.0), ("loss", 2, 2.0), ("loss", 3, 3.5)]


STOPPED = """
import sys, time
from pathlib import Path
from xptrain.errors import FencedError
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import PointIndex
from xptrain.tracking.recording import PointWriter
path = Path(sys.argv[1])
writer = PointWriter(Journal(path), PointIndex(path), attempt=1)
writer.append("attempt", attempt=1)
print(writer.flush(), flush=True)
step = 0
try:
    while True:
        writer.log(step, {"loss": step})
        step += 1
        time.sleep(0.001)
except FencedError as error:
    print(error, flush=True)
writer.append("status", status="FAILED", reason="fenced")
writer.close()
"""


def test_a_suspended_process_that_wakes_up_after_another_took_over_writes_nothing(
    path: Path, child: Any
) -> None:
    old = child(STOPPED, path)
    old.stdout.readline()
    wait_for(lambda: told(path))
    os.kill(old.pid, signal.SIGSTOP)
    new = writer_of(path, 2)
    new.append("attempt", attempt=2)
    new.flush()
    os.kill(old.pid, signal.SIGCONT)
    output, _ = old.communicate(timeout=60)
    assert "later attempt has this run" in output and old.returncode == 0
    new.append("status", status="FINISHED", reason=None)
    new.close()
    found = attempts_in(path)
    assert found == sorted(found), "a record of attempt 1 stands behind that of attempt 2"


# What was written all the same ----------------------------------------------------------------------


def test_the_late_words_of_a_lost_attempt_are_not_told(taken_over: RunFolder) -> None:
    tracker = MemoryTracker()
    end = taken_over.journal.stat().st_size
    assert deliver(taken_over, lambda info: tracker).offset == end
    assert tracker.history("loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert tracker.statuses == [("RUNNING", None), ("RUNNING", None), ("FINISHED", 40)]
    assert "stage" not in tracker.tags and not tracker.params and "xptrain.divergence" not in tracker.tags
    assert "after attempt 2" in tracker.tags["xptrain.attempt.1.fenced"], "never silently"


def test_nor_when_each_record_is_delivered_by_another_process(taken_over: RunFolder, home: Path) -> None:
    tracker = MemoryTracker()
    whole = taken_over.journal.read_bytes()
    taken_over.journal.write_bytes(b"")
    for line in whole.splitlines(keepends=True):
        with taken_over.journal.open("ab") as file:
            file.write(line)
        deliver(taken_over, lambda info: tracker)
    assert tracker.history("loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert tracker.statuses == [("RUNNING", None), ("RUNNING", None), ("FINISHED", 40)]
    assert taken_over.delivered.offset == len(whole) and taken_over.delivered.attempt == 2


def test_the_state_of_the_run_is_that_of_its_newest_attempt(taken_over: RunFolder) -> None:
    state = run_state(taken_over)
    assert state.attempt is not None and state.attempt.attempt == 2
    assert (state.status, state.reason, state.last_ms) == ("FINISHED", None, 40)
    late = Journal(taken_over.journal)
    late.append("attempt", attempt=1, pid=1, pid_started=1.0, host="h")
    late.append("status", status="FAILED", attempt=1)
    assert run_state(taken_over) == state
    assert [r.fields["status"] for r in pick(taken_over.journal, ("status",))] == ["FINISHED"]


def test_a_lost_attempts_last_word_does_not_hide_that_its_successor_died(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    journal = begin(run)
    dead = {"pid": 2**22 + 1, "pid_started": 1.0, "host": processes.hostname()}
    journal.append("attempt", 50, attempt=2, resumed_from=1, **dead)
    journal.append("metrics", 60, step=1, values={"loss": 1.0}, attempt=2)
    journal.append("status", 70, status="FAILED", reason="fenced", attempt=1)
    assert reconcile(run, lambda info: tracker).status == "KILLED"
    assert tracker.statuses[-1] == ("KILLED", 60)


def test_the_index_of_a_third_attempt_knows_only_what_counts(taken_over: RunFolder) -> None:
    index = PointIndex.from_journal(taken_over.journal, 0)
    assert index.admit("loss", 3, 3.0).kind == "same", "not compared with the 33.0 of the lost attempt"
    assert index.admit("loss", 4, 4.0).kind == "new", "the 44.0 is in no store"
    index = PointIndex.from_journal(taken_over.journal, taken_over.journal.stat().st_size)
    assert index.admit("loss", 2, 2.0).kind == "same" and index.admit("loss", 5, 5.0).kind == "new"


def test_points_written_while_the_successor_was_reading_are_not_told_twice(path: Path) -> None:
    old = writer_of(path, 1)
    old.log(1, {"loss": 1.0})
    old.flush()
    new = writer_of(path, 2)  # has read the journal; its own record is not there yet
    old.log(2, {"loss": 2.0})
    old.log(3, {"loss": 3.0})
    old.flush()
    new.append("attempt", attempt=2)
    for step, value in ((2, 2.0), (3, 3.5), (4, 4.0)):
        new.log(step, {"loss": value})
    new.close()
    assert told(path) == [("loss", 1, 1.0), ("loss", 2, 2.0), ("loss", 3, 3.0), ("loss", 4, 4.0)]
    assert new.first_divergence is not None and new.first_divergence[:4] == ("loss", 3, 3.0, 3.5)
    assert not new.first_divergence.again


def test_a_journal_from_before_attempts_were_named_counts_as_a_whole(home: Path) -> None:
    run, tracker = make_run(home), MemoryTracker()
    begin(run).append("metrics", step=1, values={"loss": 1.0})
    begin(run, attempt=2).append("metrics", step=2, values={"loss": 2.0})
    run.delivered_json.write_text('{"offset": 0, "run_id": null, "status": null, "diverged": false}')
    assert run.delivered == Delivered()
    deliver(run, lambda info: tracker)
    assert tracker.history("loss") == [(1, 1.0), (2, 2.0)]


# Two processes at one file --------------------------------------------------------------------------

APPENDS = """
import sys
from pathlib import Path
from xptrain.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]))
attempt = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for n in range(2000):
    end = journal.append("tags", n, attempt=attempt, values={"x": "y" * (n * 7 % 5000)})
    with open(sys.argv[1], "rb") as file:
        file.seek(end - 1)
        assert file.read(1) == b"\\n"
print(journal.sync(), flush=True)
"""


def test_two_processes_that_append_at_once_do_not_tear_each_other(path: Path, child: Any) -> None:
    both = [child(APPENDS, path, attempt) for attempt in (1, 2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    found: dict[int, list[int]] = {1: [], 2: []}
    for record, _ in scan(path, damaged=pytest.fail):
        found[record.fields["attempt"]].append(record.ms)
    assert found == {1: list(range(2000)), 2: list(range(2000))}
    assert max(map(int, outputs)) == path.stat().st_size


def test_a_write_that_the_disk_cut_short_takes_no_record_of_another_along(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = Journal(path), Journal(path)
    mine.append("tags", 1, values={})
    real, calls = os.write, [0]

    def write(fd: int, data: Any) -> int:
        calls[0] += 1
        if calls[0] == 1:
            return real(fd, data[:9])
        if calls[0] == 2:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(journals.os, "write", write)

    def at_end(journal: Journal) -> bool:
        # The other one writes between the two halves.
        if calls[0] == 1:
            monkeypatch.setattr(journals.os, "write", real)
            other.append("tags", 2, values={"of": "another"})
            monkeypatch.setattr(journals.os, "write", write)
        return really(journal)

    really = Journal._is_at_end
    monkeypatch.setattr(Journal, "_is_at_end", at_end)
    with pytest.raises(TrackerError, match="cannot be written"):
        mine.append("tags", 3, values={})
    assert mine.append("tags", 4, values={}) == path.stat().st_size
    mine.close()
    assert [record.ms for record, _ in scan(path, damaged=lambda damage: None)] == [1, 2, 3, 4]
