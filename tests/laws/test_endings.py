"""However a process ends, the run's status is true, and the run can be resumed (cases 24 and 30)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.laws.processes import PATIENCE_S, Lab

SCRIPT = Path(__file__).parent / "scripts" / "ending.py"
# How it ends → (exit code, status, part of the reason)
ENDINGS = {
    "error": (1, "FAILED", "ZeroDivisionError: on purpose"),
    "exit3": (3, "FAILED", "exit code 3"),
    "os-exit": (9, "KILLED", ""),
    "sigint": (-signal.SIGINT, "KILLED", "interrupted"),
    "sigterm": (-signal.SIGTERM, "KILLED", ""),
    "sigterm-compile": (-signal.SIGTERM, "KILLED", ""),
    "sigterm-validation": (-signal.SIGTERM, "KILLED", ""),
    "sigterm-workers": (-signal.SIGTERM, "KILLED", ""),
    "folder-gone": (6, "FAILED", "checkpoint"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("endings"))


def start(lab: Lab, how: str, key: str, **extra: str) -> subprocess.Popen[str]:
    env = {**os.environ, "XPTRAIN_HOME": str(lab.home), **extra}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), how, key],
        env=env,
        cwd=lab.home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
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
        process.send_signal(signal.SIGINT if how == "sigint" else signal.SIGTERM)
    if how == "sigterm-workers":
        # The worker keeps the pipes open: only the trainer itself is waited for.
        process.wait(PATIENCE_S)
        errors = ""
    else:
        errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == code, errors
    lab.wait_for_status(how, status)
    assert reason in lab.tags(how).get("xptrain.reason", "")
    if code == 6:
        assert "Traceback" not in errors
        assert "remedy" in errors


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
