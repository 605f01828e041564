from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xptrain.checkpoint.lock import LockRecord, RunLock
from xptrain.checkpoint.machine import Machine, process_started
from xptrain.errors import CheckpointWriteError, FencedError, RunLiveError

ELSEWHERE = Machine("elsewhere", "boot", "space")

HOLD = """
import os, sys, time
from xptrain.checkpoint.lock import RunLock
from xptrain.errors import RunLiveError
lock = RunLock(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    print(lock.acquire(), os.getpid(), flush=True)
except RunLiveError as error:
    print("refused", error.found, flush=True)
    sys.exit(4)
if sys.argv[2] == "fork" and (child := os.fork()):
    print(child, flush=True)
    time.sleep(600)
elif sys.argv[2] == "fork":
    time.sleep(600)
sys.stdin.readline()
lock.release()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def launch(how: str = "hold") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path), how]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout and process.stdout.readline() == "ready\n"
        return process

    yield launch
    for process in running:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return process.stdout.readline().split(maxsplit=1)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def peek(directory: Path) -> LockRecord:
    record = RunLock(directory).peek()
    assert record is not None
    return record


def test_attempts_are_numbered_from_one(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        lock = RunLock(tmp_path / "deep" / "checkpoints")
        assert lock.acquire() == expected
        lock.check()
        lock.release()


def test_attempts_known_from_elsewhere_are_counted(tmp_path: Path) -> None:
    assert RunLock(tmp_path).acquire(above=7) == 8


def test_peek_tells_who_has_the_run(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert lock.peek() is None
    lock.acquire()
    record = peek(tmp_path)
    assert (record.attempt, record.pid, record.live, record.released) == (1, os.getpid(), True, False)
    assert record.machine.host == socket.gethostname()
    lock.release()
    assert (peek(tmp_path).attempt, peek(tmp_path).live, peek(tmp_path).released) == (1, False, True)


def test_case_30_a_second_resumer_of_a_live_run_is_refused(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start()
    say(holder)
    assert hear(holder)[0] == "1"
    with pytest.raises(RunLiveError) as caught:
        RunLock(tmp_path).acquire()
    assert socket.gethostname() in str(caught.value) and str(holder.pid) in str(caught.value)
    assert caught.value.remedy and f"kill {holder.pid}" in caught.value.remedy
    say(holder)
    assert holder.wait(60) == 0
    assert RunLock(tmp_path).acquire() == 2


def test_a_killed_holder_gives_way_at_once_even_as_a_zombie(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start()
    say(holder)
    hear(holder)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has reaped it
    assert process_started(holder.pid) is None
    assert RunLock(tmp_path).acquire() == 2


def test_a_forked_child_that_outlives_its_killed_parent_does_not_keep_the_lock(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    holder = start("fork")
    say(holder)
    assert hear(holder)[0] == "1"
    child = int(hear(holder)[0])
    try:
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        assert process_started(child) is not None
        assert RunLock(tmp_path).acquire() == 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_of_many_processes_exactly_one_gets_the_run(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for attempt in ("1", "2"):
        racers = [start() for _ in range(4)]
        for racer in racers:
            say(racer)
        answers = [hear(racer) for racer in racers]
        assert sorted(answer[0] for answer in answers) == [attempt, "refused", "refused", "refused"]
        winner = racers[[answer[0] for answer in answers].index(attempt)]
        assert all(f"process {winner.pid}" in answer[1] for answer in answers if answer[0] == "refused")
        winner.kill()
        winner.wait()


def test_the_same_process_cannot_take_a_run_twice(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    first.acquire()
    with pytest.raises(RunLiveError, match="this process"):
        RunLock(tmp_path).acquire()
    first.check()


def test_a_process_id_that_was_given_to_another_process_is_not_the_holder(tmp_path: Path) -> None:
    RunLock(tmp_path).acquire()
    path = tmp_path / "lock" / "000001.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "pid_started": fields["pid_started"] - 1}))
    assert RunLock(tmp_path).acquire() == 2


@pytest.mark.parametrize("other", ["host", "boot", "space"])
def test_a_holder_elsewhere_is_live_for_60_s_after_its_heartbeat(tmp_path: Path, other: str) -> None:
    here = Machine.here()
    there = Machine(**{**vars(here), other: "another"})
    clock = Clock()
    RunLock(tmp_path, clock=clock, machine=there, heartbeat_seconds=3600).acquire()
    clock.now += 59
    with pytest.raises(RunLiveError, match=r"60 s after its last heartbeat"):
        RunLock(tmp_path, clock=clock).acquire()
    clock.now += 2
    assert RunLock(tmp_path, clock=clock).acquire() == 2


def test_no_clock_of_a_host_makes_a_live_holder_look_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = RunLock(tmp_path, machine=ELSEWHERE, heartbeat_seconds=3600)
    # The holder's host is an hour behind, then the reader's an hour ahead; the file system has its own clock.
    real = time.time
    for off, live in ((-3600, True), (3600, False)):
        monkeypatch.setattr(time, "time", lambda off=off: real() + off)
        if holder.record is None:
            holder.acquire()
            monkeypatch.setattr(time, "time", real)
        # Without asking, this host's clock is all there is.
        assert peek(tmp_path).live is live
        assert (found := RunLock(tmp_path).peek(ask=True)) and found.live
        with pytest.raises(RunLiveError):
            RunLock(tmp_path).acquire()
    assert sorted(path.name for path in (tmp_path / "lock").iterdir()) == ["000001.json"]


def test_an_old_attempt_is_fenced_off_and_cannot_hurt_the_new_one(tmp_path: Path) -> None:
    clock = Clock()
    old = RunLock(tmp_path, clock=clock, machine=ELSEWHERE, heartbeat_seconds=3600)
    old.acquire()
    old.check()
    clock.now += 61
    new = RunLock(tmp_path, clock=clock)
    assert new.acquire() == 2
    with pytest.raises(FencedError) as caught:
        old.check()
    assert "attempt 2" in str(caught.value) and str(os.getpid()) in str(caught.value)
    old.release()
    new.check()
    assert peek(tmp_path).attempt == 2 and peek(tmp_path).live


def test_a_lock_that_was_never_taken_or_was_released_is_fenced(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    (tmp_path / "lock").mkdir()
    with pytest.raises(FencedError):
        lock.check()
    lock.acquire()
    lock.release()
    with pytest.raises(FencedError):
        lock.check()


def test_the_heartbeat_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    lock = RunLock(tmp_path, clock=clock, heartbeat_seconds=0.01)
    lock.acquire()
    clock.now += 1000
    patience = time.monotonic() + 60
    while peek(tmp_path).heartbeat < clock.now - 1:
        assert time.monotonic() < patience, "no heartbeat came"
        time.sleep(0.01)
    lock.release()


def test_a_forked_child_cannot_release_its_parents_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    assert lock.record
    held, lock.record = lock.record, LockRecord(**{**vars(lock.record), "pid": os.getpid() + 1})
    lock.release()
    lock.record = held
    lock.check()


@pytest.mark.parametrize("text", ["", '{"attempt": 1', "[]", '{"attempt": 1}'])
def test_an_unreadable_record_counts_as_live_while_its_heartbeat_is_fresh(tmp_path: Path, text: str) -> None:
    clock = Clock()
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "000004.json").write_text(text)
    with pytest.raises(RunLiveError):
        RunLock(tmp_path, clock=clock).acquire()
    clock.now += 61
    assert RunLock(tmp_path, clock=clock).acquire() == 5


def test_without_hard_links_the_first_to_create_the_file_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    lock = RunLock(tmp_path)
    assert lock.acquire() == 1
    lock.check()
    with pytest.raises(RunLiveError):
        RunLock(tmp_path).acquire()


def test_a_lost_race_is_seen_although_both_read_the_same_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = RunLock(tmp_path)
    early = RunLock(tmp_path)
    read_last = late._read_last

    def read_then_lose(now: float) -> LockRecord | None:
        last = read_last(now)
        if early.record is None:
            early.acquire()
        return last

    monkeypatch.setattr(late, "_read_last", read_then_lose)
    with pytest.raises(RunLiveError):
        late.acquire()
    early.check()


def test_case_24_an_unusable_folder_is_a_write_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointWriteError) as caught:
        RunLock(tmp_path / "file" / "checkpoints").acquire()
    assert caught.value.remedy and "checkpoint_dir" in caught.value.remedy


def test_case_24_a_folder_that_is_taken_away_is_noticed_by_the_check(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "checkpoints")
    lock.acquire()
    (tmp_path / "checkpoints").rename(tmp_path / "away")
    with pytest.raises(CheckpointWriteError, match="cannot be used"):
        lock.check()


def test_no_draft_is_left_behind(tmp_path: Path) -> None:
    RunLock(tmp_path).acquire()
    assert [path.name for path in (tmp_path / "lock").iterdir()] == ["000001.json"]
