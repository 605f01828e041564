"""However a process ends, the run's status is true, and the run can be resumed (cases 24 and 30)."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests import launching
from tests.laws.processes import PATIENCE_S, Lab, final_state
from xptrain.checkpoint.folder import Folder

SCRIPT = Path(__file__).parent / "scripts" / "ending.py"
# How it ends → (exit code, status, part of the reason)
ENDINGS = {
    "error": (1, "FAILED", "ZeroDivisionError: on purpose"),
    "exit3": (3, "FAILED", "exit code 3"),
    "os-exit": (9, "KILLED", ""),
    "sigint": (-signal.SIGINT, "KILLED", "interrupted"),
    "sigint-twice": (-signal.SIGINT, "KILLED", "interrupted"),
    "sigterm": (143, "KILLED", "SIGTERM: stopped after step 10, saved"),
    "sigterm-group": (143, "KILLED", "SIGTERM: stopped after step 10, saved"),
    "sigterm-gone": (143, "KILLED", "SIGTERM: stopped after step 10, not saved: "),
    "sigterm-stuck": (143, "KILLED", "SIGTERM: still compiling or busy after 2 s"),
    "sigterm-compile": (143, "KILLED", "SIGTERM: still compiling or busy after 2 s"),
    "sigterm-validation": (143, "KILLED", "SIGTERM: stopped after step 5, saved"),
    "sigterm-workers": (143, "KILLED", "SIGTERM: stopped after step 10, saved"),
    "sigterm-thread": (143, "KILLED", "SIGTERM: stopped after step 7, saved"),
    "sigusr1": (128 + signal.SIGUSR1, "KILLED", "SIGUSR1: stopped after step 7, saved"),
    "worker-told": (0, "FINISHED", ""),
    "own-handler": (0, "FINISHED", ""),
    "folder-gone": (6, "FAILED", "checkpoint"),
    "unfinished": (0, "FAILED", "without finish()"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("endings"))


# Python's own ways to end, in processes that it began, too: the others are forks, see `tests.launching`.
REAL = ("error", "sigint", "sigint-twice", "sigterm", "unfinished")


def start(lab: Lab, how: str, key: str, **extra: str) -> launching.Process:
    env = {**os.environ, "XPTRAIN_HOME": str(lab.home), **extra}
    command = [sys.executable, str(SCRIPT), how, key]
    return launching.start(command, env=env, cwd=lab.home, new_session=True, real=how in REAL)


def wait_for(path: Path, process: launching.Process) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ENDINGS)
def test_status_is_true_cases_24_30(lab: Lab, how: str) -> None:
    code, status, reason = ENDINGS[how]
    process = start(lab, how, how)
    if how.startswith("sig"):
        wait_for(lab.home / f"{how}.ready", process)
        sent = {"sigint": signal.SIGINT, "sigusr1": signal.SIGUSR1}.get(how.partition("-")[0], signal.SIGTERM)
        process.send_signal(sent)
        began = time.monotonic()
        if how == "sigint-twice":
            wait_for(lab.home / f"{how}.told", process)
            # Sooner it would be the same signal.
            time.sleep(1.2)
            process.send_signal(sent)
        if how == "sigterm-group":
            # A moment later: two signals that wait at the same time are one for the system, too.
            time.sleep(0.02)
            process.send_signal(sent)
    if how == "sigterm-workers":
        # The worker keeps the pipes open: only the trainer itself is waited for.
        process.wait(PATIENCE_S)
        errors = ""
    else:
        errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == code, errors
    if how == "sigterm-compile":
        assert time.monotonic() - began < 3.5
    if how == "own-handler":
        assert errors.count("your own handler of SIGTERM stays") == 1
    if reason.endswith(", saved") and errors:
        assert f"saved; `xptrain resume {how}` goes on" in errors
    if how == "sigint-twice":
        assert Folder(lab.folder(how).info.checkpoint_dir).steps() == [5]
    if how == "unfinished":
        # What was being saved when the script ended is saved.
        assert Folder(lab.folder(how).info.checkpoint_dir).steps() == [5, 10]
        assert "Traceback" not in errors
    lab.wait_for_status(how, status)
    assert reason in lab.tags(how).get("xptrain.reason", "")
    if how in ("sigterm-gone", "folder-gone"):
        assert "Traceback" not in errors
        assert "remedy" in errors


@pytest.mark.timeout(600)
def test_told_to_stop_again_and_again_ends_with_the_same_bits(lab: Lab) -> None:
    # What stops the attempt → (exit code, the step after which it stops)
    stops = [
        ({"phase": "batch", "nth": 3, "signal": "SIGTERM"}, 143, 3),
        # After the last batch of an epoch: its validation is left to the next attempt.
        ({"phase": "batch", "nth": 7, "signal": "SIGUSR1"}, 128 + signal.SIGUSR1, 10),
        # In validation: the epoch is ended first.
        ({"phase": "validation", "nth": 2, "signal": "SIGTERM"}, 143, 10),
        ({"phase": "batch", "nth": 5, "signal": "SIGINT"}, -signal.SIGINT, 15),
    ]
    straight = lab.train("straight", "--epochs", "3")
    assert straight.returncode == 0, straight.stderr
    for number, (die, code, step) in enumerate(stops):
        process = lab.train("told", "--epochs", "3", die=die, resume=number > 0)
        assert process.returncode == code, process.stderr
        assert max(Folder(lab.folder("told").info.checkpoint_dir).steps()) == step
        lab.wait_for_status("told", "KILLED")
    last = lab.train("told", "--epochs", "3", resume=True)
    assert last.returncode == 0, last.stderr
    steps = lab.steps("told")
    assert [step for attempt in sorted(steps) for step in steps[attempt]] == list(range(1, 31))
    assert final_state(lab.folder("told")) == final_state(lab.folder("straight"))
    assert lab.result("told") == lab.result("straight")
    lab.wait_for_status("told", "FINISHED")
    lab.wait_for_status("straight", "FINISHED")
    assert lab.points("told") == lab.points("straight")


@pytest.mark.timeout(600)
def test_a_killed_run_is_running_again_while_it_is_resumed_case_30(lab: Lab) -> None:
    key = "again"
    process = start(lab, "sigterm-validation", key)
    wait_for(lab.home / f"{key}.ready", process)
    second = start(lab, "none", key, XPTRAIN_RESUME=key)
    refused = second.communicate(timeout=PATIENCE_S)[1]
    assert second.returncode == 4, refused
    assert "Traceback" not in refused
    process.kill()
    process.communicate()
    lab.wait_for_status(key, "KILLED")
    assert ends(lab, key) > 0
    (lab.home / f"{key}.ready").unlink()
    resumed = start(lab, "sigterm-validation", key, XPTRAIN_RESUME=key)
    wait_for(lab.home / f"{key}.ready", resumed)
    lab.wait_for_status(key, "RUNNING")
    assert not ends(lab, key)
    resumed.kill()
    resumed.communicate()
    last = start(lab, "none", key, XPTRAIN_RESUME=key)
    errors = last.communicate(timeout=PATIENCE_S)[1]
    assert last.returncode == 0, errors
    lab.wait_for_status(key, "FINISHED")
    assert ends(lab, key) > 0


def ends(lab: Lab, key: str) -> int:
    rows = lab.query(
        "select r.end_time from runs r join tags t on t.run_uuid = r.run_uuid "
        "where t.key = 'xptrain.key' and t.value = ?",
        key,
    )
    return int(rows[0][0] or 0)
