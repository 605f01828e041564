"""Runs that are trained again for a proof, in real processes: what is found, and what is left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import PATIENCE_S, Shell
from xptrain.analysis.parting import receipts
from xptrain.analysis.reading import Reading, read
from xptrain.tracking import recorder
from xptrain.tracking.folder import RunFolder

TRAIN = str(Path(__file__).parent / "scripts" / "train.py")
OWN_LOOP = str(Path(__file__).parent / "scripts" / "own_loop.py")
HIDDEN = str(Path(__file__).parent / "scripts" / "hidden.py")


def start(shell: Shell, *arguments: str, **more: Any) -> Any:
    return shell.script(TRAIN, *arguments, **more)


def reading(shell: Shell, key: str) -> Reading:
    return read(RunFolder(shell.home / "runs" / key))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Two finished runs: `straight`, and `moved`, where one bit of one weight was changed after step 13."""
    shell = Shell(tmp_path_factory.mktemp("proof"))
    with ThreadPoolExecutor() as both:
        jobs = [
            both.submit(start, shell, "--key", "straight"),
            both.submit(
                start, shell, "--key", "moved", env={"PLANT": "weight"}, cwd=tmp_path_factory.mktemp("cwd")
            ),
        ]
    for job in jobs:
        assert job.result().returncode == 0, job.result().stderr
    # On a busy machine they deliver, and write to the run's folder, when the scripts are over.
    deadline = time.monotonic() + PATIENCE_S
    while any(recorder.lives(RunFolder(shell.home / "runs" / key)) for key in ("straight", "moved")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return shell


def test_verify_trains_a_whole_run_again_and_leaves_everything_alone(lab: Shell) -> None:
    before = files(lab.home / "runs" / "straight"), (lab.folder / "log-0.csv").read_bytes()
    found = lab.json("verify", "straight", "--all")
    assert found["equal"] is True
    assert found["steps"] == [4, 5, 8, 10, 12, 15]
    assert found["host_steps"] == [12, 15]
    assert found["values"] == 3 * (5 + 2)
    assert (files(lab.home / "runs" / "straight"), (lab.folder / "log-0.csv").read_bytes()) == before
    assert not list(lab.home.glob("replay-*"))
    assert len(list((lab.home / "runs").iterdir())) == 2


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A loop of one's own that was stopped after step 7, and resumed."""
    shell = Shell(tmp_path_factory.mktemp("own"))
    # After its first checkpoint: before that a loop has not said what its steps are.
    assert shell.script(OWN_LOOP, env={"STOP_AT": "7"}).returncode == 143
    assert shell.script(OWN_LOOP).returncode == 0
    return shell


def test_verify_comes_by_the_step_at_which_a_loop_of_ones_own_was_stopped(own: Shell) -> None:
    found = own.json("verify", "own", "--all")
    assert (found["equal"], found["steps"], found["missing"]) == (True, [5, 7, 10, 12], [])


def test_nothing_stays_of_a_verify_that_was_killed(own: Shell) -> None:
    command = [sys.executable, "-m", "xptrain.cli.main", "verify", "own", "--all", "--yes"]
    env = {**os.environ, "XPTRAIN_HOME": str(own.home), "PAUSE_S": "300"}
    with subprocess.Popen(command, env=env, cwd=own.folder, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"starting at step 0" not in process.stderr.readline():
            assert process.poll() is None
        (child,) = psutil.Process(process.pid).children()
        process.kill()
    child.wait(PATIENCE_S)
    assert not child.is_running()
    assert len(list(own.home.glob("replay-*"))) == 1
    assert own.json("verify", "own")["equal"] is True
    assert not list(own.home.glob("replay-*"))


def test_verify_finds_a_fault_that_only_the_replay_commits(lab: Shell) -> None:
    done = lab.xptrain("verify", "straight", env={"PLANT": "weight"})
    assert done.returncode == 8, done.stderr
    assert "state after step 15 differs: model/" in " ".join(done.stdout.split())


def test_verify_refuses_what_is_not_the_recorded_run(lab: Shell) -> None:
    script = RunFolder(lab.home / "runs" / "straight").path / "manifest" / "attempt-1.json"
    before = script.read_text()
    try:
        manifest = json.loads(before)
        manifest["code"]["argv"] += ["--rate", "0.02"]
        script.write_text(json.dumps(manifest))
        done = lab.xptrain("verify", "straight")
    finally:
        script.write_text(before)
    assert done.returncode == 5, done.stdout
    assert "--allow" in done.stderr
    done = lab.xptrain("verify", "straight", "--epoch", "9")
    assert (done.returncode, "an epoch from 1 to 3" in done.stderr) == (2, True)


def test_explain_replay_says_that_a_run_does_not_repeat_itself(lab: Shell) -> None:
    # The fault was planted by an environment variable that is gone.
    found = lab.json("explain", "straight", "moved", "--replay", "--yes")
    assert (found["last_equal_step"], found["first_different_state"]["step"]) == (12, 15)
    assert (found["replayed"]["state"], found["replayed"]["unlike_record"]) == (None, ["moved"])
    # The replays do not say where the records part: their range stays.
    assert found["headline"] == "the runs part after step 12 and by step 15"


def test_a_fork_goes_on_exactly_and_takes_from_the_config_what_it_sets(lab: Shell) -> None:
    with ThreadPoolExecutor() as both:
        jobs = [
            both.submit(lab.xptrain, "fork", "straight", "--step", "12", "--key", "same"),
            both.submit(
                lab.xptrain, "fork", "straight", "--step", "12", "--key", "slow", "--set", "rate=0.001"
            ),
        ]
    same, slow = (job.result() for job in jobs)
    assert (same.returncode, slow.returncode) == (0, 0), slow.stderr
    parent, child, other = (reading(lab, key) for key in ("straight", "same", "slow"))
    # A fork that changes nothing is the run that it comes from.
    assert receipts(child)[15][-1].digest == receipts(parent)[15][-1].digest
    assert "taken from the new config, not from the checkpoint: adam/learning_rate" in slow.stderr
    assert receipts(other)[12][-1].digest == receipts(parent)[12][-1].digest
    assert receipts(other)[15][-1].digest != receipts(parent)[15][-1].digest
    assert other.info.setup["config"] == {"rate": 0.001, "width": 3}
    assert other.tags["xptrain.parent"] == "straight at step 12"
    assert other.attempts[0].from_step == 12
    # Only its own points: those of the run that it comes from are there.
    assert {step for step, _ in [other.last["train/loss"]]} == {2}
    # The records say: equal at step 12, not at step 15. Trained again, they part at 13.
    found = lab.json("explain", "straight", "slow", "--replay")
    assert (found["last_equal_step"], found["first_different_state"]["step"]) == (12, 15)
    assert (found["causes"][0]["kind"], found["replayed"]["state"]["step"]) == ("config", 13)
    assert found["headline"] == "the runs part at step 13 (trained again, equal up to step 12)"
    # Its own script still says 0.01; a fork is verified, and resumed, with its own config.
    whole = lab.xptrain("verify", "slow", "--all")
    assert whole.returncode == 0, whole.stdout + whole.stderr


def test_a_script_that_is_replayed_ends_with_what_replays_it() -> None:
    code = "from xptrain.analysis.proof.replaying import _wait; _wait(['sleep', '300'])"
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    with subprocess.Popen([sys.executable, "-c", code], env=env) as process:
        until = time.monotonic() + 60
        while not (children := psutil.Process(process.pid).children()) and time.monotonic() < until:
            time.sleep(0.05)
        while children[0].name() != "sleep":
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 143
    assert not children[0].is_running()


def test_forks_that_cannot_be(lab: Shell) -> None:
    for arguments, code, text in (
        (("--step", "8"), 6, "one of the steps 12, 15"),
        (("--step", "12", "--set", "rte=1"), 2, "rate, width"),
        (("--step", "12", "--set", "rate=fast"), 2, "a value like 0.01"),
        (("--step", "12", "--set", "api_key=abc"), 2, "a secret cannot be set here"),
        (("--step", "12", "--key", "moved"), 2, "exists"),
        (("--step", "12", "--key", "../../oops"), 2, "the key cannot be used"),
        # Its own script does not take this, and ends before it opens a run.
        (("--step", "12", "--key", "never", "--", "--nonsense"), 2, "unrecognized arguments"),
    ):
        done = lab.xptrain("fork", "straight", *arguments)
        assert done.returncode == code, done.stderr
        assert text in done.stderr
        assert ("a fork of run" in done.stderr) == ("--nonsense" in arguments)
    # What was prepared for that goes with the next one.
    assert (lab.home / "forks" / "never" / "run.json").is_file()
    assert (
        lab.xptrain("fork", "straight", "--step", "12", "--key", "never", "--", "--nonsense").returncode == 2
    )
    assert lab.xptrain("fork", "straight", "--step", "12", "--key", "moved").returncode == 2
    assert not list((lab.home / "forks").iterdir())
    assert not [path for path in (lab.home / "runs").iterdir() if path.name not in RUNS]


RUNS = ("straight", "moved", "same", "slow")


def test_doctor_knows_before_the_run_and_records_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with ThreadPoolExecutor() as both:
        jobs = [
            both.submit(shell.xptrain, "doctor", "--json", TRAIN, "--epochs", "9"),
            both.submit(shell.xptrain, "doctor", "--json", "--steps", "4", HIDDEN),
        ]
    good, bad = (job.result() for job in jobs)
    assert good.returncode == 0, good.stderr
    found = json.loads(good.stdout)
    assert (found["exact"], found["cut"], found["steps"], found["repeated"]) == (True, 3, 6, None)
    assert bad.returncode == 8, bad.stderr
    found = json.loads(bad.stdout)
    # The grade cannot know: only trying shows it.
    assert (found["grade"], found["resumes_exactly"], found["cut"]) == ("exact", False, 2)
    assert found["resumed"]["step"] == 3
    assert not list(tmp_path.iterdir())


UNSEEDED = """
import numpy as np, xptrain
from tests.examples import Y, small
with xptrain.run("other") as run:
    run.fit(small(), np.random.default_rng().normal(size=(40, 4)), Y, batch_size=8, epochs=2, verbose=0)
"""


def test_doctor_says_what_it_cannot_examine(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "empty.py").write_text("print('nothing')")
    (tmp_path / "broken.py").write_text("import sys\nprint('lost it')\nsys.exit(3)")
    (tmp_path / "other.py").write_text(UNSEEDED)
    for script, code, text in (
        ("empty.py", 2, "it opened no run"),
        ("broken.py", 3, "lost it"),
        ("none.py", 2, "no such script"),
        ("other.py", 5, "this run will not resume"),
    ):
        done = shell.xptrain("doctor", script)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
