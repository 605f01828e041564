"""`xptrain resume` on runs that were really killed."""

from __future__ import annotations

import os

import pytest

import xptrain
from tests.cli.conftest import Shell
from xptrain.checkpoint.lock import RunLock
from xptrain.session import settings


def test_it_goes_on_from_the_checkpoint_and_says_so(copy: Shell) -> None:
    before = copy.json("show", "dead")
    assert (before["status"], before["epochs"]) == ("KILLED", 2)
    done = copy.xptrain("resume", "dead")
    assert done.returncode == 0, done.stderr
    assert "goes on from  step 8, after 2 epochs" in done.stderr
    assert "attempt 2: going on from step 8 (epoch 3 of 3)" in done.stderr
    after = copy.json("show", "dead")
    attempts = [(a["from_step"], a["to_step"], a["status"]) for a in after["attempt_list"]]
    assert attempts[1:] == [(8, 12, "FINISHED")]
    copy.wait_for("dead0002", "FINISHED")
    straight = copy.json("show", "done0001")
    digests = [run["checkpoint_list"][-1]["digest"] for run in (straight, after)]
    assert digests[0] == digests[1]


def test_a_finished_run_is_not_started(trained: Shell) -> None:
    done = trained.xptrain("resume", "done0001")
    assert done.returncode == 0
    assert "run done0001 is finished: 12 steps, 3 epochs. Nothing was started." in done.stdout
    assert len(trained.json("show", "done0001")["attempt_list"]) == 1


def test_a_changed_config_is_refused(copy: Shell) -> None:
    refused = copy.xptrain("resume", "dead", "--", "--rate", "0.5")
    assert refused.returncode == 5, refused.stderr
    assert "--allow config" in refused.stderr
    assert "changed since this run was started: config.rate: 0.01 -> 0.5" in refused.stderr
    assert copy.json("show", "dead")["step"] == 10


def test_a_live_run_is_left_alone(copy: Shell) -> None:
    lock = RunLock(copy.home / "runs" / "dead0002" / "checkpoints")
    lock.acquire()
    try:
        done = copy.xptrain("resume", "dead")
        assert done.returncode == 4
        assert "run dead0002 is being trained now" in done.stderr
        assert copy.json("show", "dead")["status"] == "RUNNING"
    finally:
        lock.release()


def test_what_is_allowed_reaches_every_run_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPTRAIN_ALLOW", "epochs,data")
    settings.allowed_by_command.cache_clear()
    try:
        assert settings.allowed_by_command() == {"epochs", "data"}
        # Children of the script do not inherit it.
        assert "XPTRAIN_ALLOW" not in os.environ
        assert xptrain.run("digits", allow="code").settings.allow == {"code", "epochs", "data"}
    finally:
        settings.allowed_by_command.cache_clear()
