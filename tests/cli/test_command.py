"""What `xptrain resume` starts: the recorded command in its folder and environment, in its own place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import XPTRAIN, Shell
from tests.recorded_runs import MadeRun, make_run

ECHO = """
import json, os, signal, sys
seen = {"argv": sys.argv, "cwd": os.getcwd(), "pid": os.getpid(), "env": dict(os.environ)}
print(json.dumps(seen))
if "--signal" in sys.argv:
    os.kill(os.getpid(), int(sys.argv[-1]))
sys.exit(7)
"""


@pytest.fixture
def script(shell: Shell) -> Path:
    path = shell.folder / "echo.py"
    path.write_text(ECHO)
    return path


@pytest.fixture
def dead(shell: Shell, script: Path) -> Callable[..., MadeRun]:
    """Make a run that was killed after step 40."""

    def make(*arguments: str, key: str = "aaaa0001", sections: Any = None, **info: Any) -> MadeRun:
        run = make_run(shell.home, key, **info).attempt().checkpoint(40, epoch=4)
        return run.manifest(script, *arguments, **(sections or {}))

    return make


def test_folder_arguments_environment_and_exit_code(
    shell: Shell, script: Path, dead: Callable[..., MadeRun]
) -> None:
    dead("--epochs", "9", sections={"environment": {"XLA_FLAGS": "--xla_a=1", "PYTHONPATH": "/some/where"}})
    inner = shell.folder / "inner"
    inner.mkdir()
    done = shell.xptrain("resume", "aaaa", "--allow", "data,epochs", "--", "--x", "1", cwd=inner)
    assert done.returncode == 7
    seen = json.loads(done.stdout)
    assert seen["argv"] == [str(script), "--epochs", "9", "--x", "1"]
    assert seen["cwd"] == str(shell.folder)
    env = seen["env"]
    assert (env["XPTRAIN_RESUME"], env["XPTRAIN_ALLOW"]) == ("aaaa0001", "data,epochs")
    assert (env["XPTRAIN_HOME"], env["XLA_FLAGS"]) == (str(shell.home), "--xla_a=1")
    assert env["PYTHONPATH"] == "/some/where"
    # It was not set when the run was recorded.
    assert "KERAS_BACKEND" not in env
    assert "goes on from  step 40, after 4 epochs" in done.stderr
    assert "echo.py --epochs 9 --x 1" in done.stderr


def test_a_signal_ends_the_command_and_this_process(shell: Shell, dead: Callable[..., MadeRun]) -> None:
    dead("--signal", str(int(signal.SIGTERM)))
    assert shell.xptrain("resume", "aaaa").returncode == -signal.SIGTERM


def test_a_module_is_started_as_a_module(shell: Shell, dead: Callable[..., MadeRun]) -> None:
    dead(sections={"code": {"module": "echo"}, "environment": {"PYTHONPATH": str(shell.folder)}})
    done = shell.xptrain("resume", "aaaa")
    assert done.returncode == 7
    assert " -m echo" in done.stderr


def test_a_run_without_checkpoint_begins_again_and_says_so(
    shell: Shell, script: Path, dead: Callable[..., MadeRun]
) -> None:
    make_run(shell.home, "bbbb0002").attempt().manifest(script)
    assert "goes on from  step 0: there is no checkpoint yet" in shell.xptrain("resume", "bbbb").stderr


def test_a_run_that_died_before_its_manifest(shell: Shell, script: Path) -> None:
    make_run(shell.home, script=str(script), argv=("--early",))
    done = shell.xptrain("resume", "@last")
    assert done.returncode == 7
    assert json.loads(done.stdout)["argv"][1:] == ["--early"]


def test_redacted_arguments_are_asked_for(shell: Shell, dead: Callable[..., MadeRun]) -> None:
    dead("--token", "<redacted>", "--password=<redacted>", "--epochs", "2")
    done = shell.xptrain("resume", "aaaa")
    assert done.returncode == 2
    assert "resume aaaa0001 -- --token … --password …" in done.stderr
    done = shell.xptrain("resume", "aaaa", "--", "--token", "s3", "--password=p4")
    assert json.loads(done.stdout)["argv"][1:] == ["--epochs", "2", "--token", "s3", "--password=p4"]


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ({"script": None, "argv": [""]}, "xptrain.run('digits', resume=\"aaaa0001\")"),
        ({"script": "/gone/train.py", "argv": ["train.py"]}, "the script of run aaaa0001 is missing"),
        ({"interpreter": "/gone/python"}, "the interpreter of run aaaa0001 is missing"),
        ({"cwd": "/gone/folder"}, "the working directory of run aaaa0001 is missing"),
    ],
)
def test_what_cannot_be_started_is_said(
    shell: Shell, dead: Callable[..., MadeRun], code: dict[str, Any], complaint: str
) -> None:
    dead(sections={"code": code})
    done = shell.xptrain("resume", "aaaa")
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("info", "code", "strange"),
    [
        ({"user": "mallory"}, {}, "user mallory"),
        ({"host": "elsewhere"}, {}, "host elsewhere"),
        ({}, {"root": "/other/project", "cwd": "/tmp"}, "repository /other/project"),
    ],
)
def test_a_command_of_somebody_else_is_not_started_unasked(
    shell: Shell, dead: Callable[..., MadeRun], info: Any, code: Any, strange: str
) -> None:
    dead(sections={"code": code}, **info)
    done = shell.xptrain("resume", "aaaa")
    assert (done.returncode, done.stdout) == (2, "")
    assert strange in done.stderr
    assert "echo.py" in done.stderr
    assert shell.xptrain("resume", "aaaa", "--yes").returncode == 7


def test_a_missing_checkpoint_folder(shell: Shell, dead: Callable[..., MadeRun]) -> None:
    shutil.rmtree(dead().folder.checkpoints)
    done = shell.xptrain("resume", "aaaa")
    assert done.returncode == 6
    assert "the checkpoint folder of run aaaa0001 is gone" in done.stderr


@pytest.fixture
def bound() -> tuple[str, ...]:
    """What begins a command that permissions bind; root passes them all."""
    if os.geteuid() != 0:
        return ()
    if not (setpriv := shutil.which("setpriv")):
        pytest.skip("root passes all permissions, and there is no setpriv to change that")
    return (setpriv, "--bounding-set", "-dac_override,-dac_read_search")


def test_a_read_only_checkpoint_folder(
    shell: Shell, dead: Callable[..., MadeRun], bound: tuple[str, ...]
) -> None:
    folder = dead().folder.checkpoints
    folder.chmod(0o555)
    try:
        done = shell.start(*bound, *XPTRAIN, "resume", "aaaa")
    finally:
        folder.chmod(0o755)
    assert done.returncode == 6, done.stderr
    assert "cannot be used" in done.stderr


SLEEPS = """
import pathlib, time
pathlib.Path("began").touch()
time.sleep(300)
"""


def test_ctrl_c_ends_a_replay_in_one_line(shell: Shell, script: Path, dead: Callable[..., MadeRun]) -> None:
    dead()
    script.write_text(SLEEPS)
    command = subprocess.Popen(
        [*XPTRAIN, "verify", "aaaa", "--all"],
        cwd=shell.folder,
        env={**os.environ, "XPTRAIN_HOME": str(shell.home)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (shell.folder / "began").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        # As a terminal does it: the whole group hears it, the script too.
        os.killpg(command.pid, signal.SIGINT)
        said = command.communicate(timeout=60)[1]
    finally:
        command.kill()
    assert command.returncode == 130, said
    assert said.splitlines()[-1] == "xptrain: interrupted"
    assert "Traceback" not in said
    # Nothing is left of it, neither folder nor process.
    assert not list(shell.home.glob("replay-*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(command.pid, 0)
