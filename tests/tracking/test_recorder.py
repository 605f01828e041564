"""L9, L10: the recorder outlives its trainer, tells what is left, and sets the true status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest_tracking import Server, begin, make_run, pairs_in, points_in, row_of, wait_for

from xptrain.errors import TrackerError
from xptrain.tracking import artifacts, postponed, processes, recorder
from xptrain.tracking.drain import deliver
from xptrain.tracking.folder import RunFolder, RunInfo
from xptrain.tracking.journal import Journal
from xptrain.tracking.recorder import Recorder
from xptrain.tracking.refusals import FilesFailed
from xptrain.tracking.stores import open_tracker
from xptrain.tracking.tracker import MemoryTracker

TRAINER = """
import os, sys, time
from pathlib import Path
from conftest_tracking import begin
from xptrain.tracking import recorder
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import PointIndex
from xptrain.tracking.recording import PointWriter
run, task = RunFolder(Path(sys.argv[1])), sys.argv[2]
begin(run)
writer = PointWriter(Journal(run.journal), PointIndex.from_journal(run.journal))
assert recorder.ensure(run) and not recorder.ensure(run)
if task == "worker" and os.fork() == 0:
    time.sleep(120)
    os._exit(0)
step = 0
while True:
    writer.log(step, {"loss": step / 7})
    step += 1
    if task == "finish" and step == 300:
        writer.append("status", status="FINISHED", reason=None)
        writer.close()
        break
    time.sleep(0.002)
    if step % 100 == 0:
        print(step, writer.flush(), flush=True)
        recorder.ensure(run)
if sys.stdin.readline() == "":
    sys.exit(0)
"""


def recorder_of(run: RunFolder) -> dict[str, Any]:
    return dict(json.loads(run.recorder_json.read_bytes()))


def wait_gone(run: RunFolder) -> None:
    told = recorder_of(run)
    wait_for(lambda: not processes.alive(told["pid"], told["pid_started"]), 60)


def test_sigkill_of_the_trainer_with_a_worker_alive_ends_killed(stored_home: Path, child: Any) -> None:
    run = make_run(stored_home)
    trainer = child(TRAINER, run.path, "worker")
    run_id = run.wait_run_id(60)
    assert run_id is not None
    steps = int(trainer.stdout.readline().split()[0])
    (worker,) = (p for p in psutil.Process(trainer.pid).children() if p.pid != recorder_of(run)["pid"])
    delivering = psutil.Process(recorder_of(run)["pid"])
    assert delivering.nice() == 19
    trainer.send_signal(signal.SIGKILL)  # and it stays a zombie: nobody waits for it yet
    nice = set()
    while delivering.is_running() and delivering.status() != psutil.STATUS_ZOMBIE and 0 not in nice:
        with suppress(psutil.NoSuchProcess):
            nice.add(delivering.nice())
        time.sleep(0.01)
    assert 0 in nice or not may_go_back()
    db = stored_home / "mlflow.db"
    wait_for(lambda: row_of(db, run_id, "status") == "KILLED", 30)
    assert worker.is_running()
    wait_gone(run)
    worker.kill()
    trainer.wait()
    found = points_in(db, run_id)
    assert len(found) >= steps and found == {("loss", step): [step / 7] for step in range(len(found))}
    with Journal(run.journal).path.open() as file:
        last = json.loads(file.readlines()[-1])
    assert row_of(db, run_id, "end_time") == last["ms"] + max(last.get("at", [0]))
    assert "without a final status" in pairs_in(db, run_id, "tags")["xptrain.reason"]
    assert run.delivered.status == "KILLED"


def test_sigint_and_sigterm_do_not_stop_the_recorder_and_a_pipe_does_not_wait_for_it(
    stored_home: Path, child: Any
) -> None:
    run = make_run(stored_home)
    trainer = child(TRAINER, run.path, "finish")
    run_id = run.wait_run_id(60)
    assert run_id is not None
    pid = recorder_of(run)["pid"]
    assert os.getsid(pid) == pid != os.getsid(trainer.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    wait_for(lambda: run.delivered.status == "FINISHED", 30)
    wait_gone(run)  # told everything: it ends although the trainer lives
    assert trainer.poll() is None
    trainer.stdin.close()
    trainer.stdin = None
    assert trainer.stdout.read().count("\n") >= 2
    assert row_of(stored_home / "mlflow.db", run_id, "status") == "FINISHED"
    assert len(points_in(stored_home / "mlflow.db", run_id)) == 300


def test_a_killed_recorder_is_started_again_and_no_point_is_lost_or_doubled(
    stored_home: Path, child: Any
) -> None:
    run = make_run(stored_home)
    trainer = child(TRAINER, run.path, "on")
    run_id = run.wait_run_id(60)
    first = recorder_of(run)["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: recorder_of(run)["pid"] != first, 30)
    before = run.delivered.offset
    wait_for(lambda: run.delivered.offset > before, 60)
    trainer.kill()
    wait_for(lambda: run.delivered.status == "KILLED", 60)
    wait_gone(run)
    found = points_in(stored_home / "mlflow.db", str(run_id))
    assert found == {("loss", step): [step / 7] for step in range(len(found))} and len(found) >= 100


def test_case31_the_server_dies_in_the_middle_and_comes_back_while_training_goes_on(
    server: Server, home: Path, child: Any
) -> None:
    run = make_run(home, server.uri)
    trainer = child(TRAINER, run.path, "on")
    run_id = run.wait_run_id(60)
    assert run_id is not None
    wait_for(lambda: points_in(server.db, run_id), 60)
    server.kill()
    try:
        wait_for(lambda: "does not answer" in run.recorder_log.read_text(), 120)
        begun, step = time.monotonic(), int(trainer.stdout.readline().split()[0])
        while int(trainer.stdout.readline().split()[0]) < step + 1000:
            pass
        assert time.monotonic() - begun < 30
    finally:
        server.start()
    before = run.delivered.offset
    wait_for(lambda: run.delivered.offset > before, 90)  # all of it at once only where a core is free
    trainer.kill()
    wait_for(lambda: run.delivered.status == "KILLED", 60)
    found = points_in(server.db, run_id)
    assert found == {("loss", step): [step / 7] for step in range(len(found))} and len(found) >= 1000


# The recorder's loop, in this process -------------------------------------------------------------


class Down:
    """A factory of a store that fails a number of times."""

    def __init__(self, failures: float) -> None:
        self.tries = 0
        self.failures = failures
        self.tracker = MemoryTracker()

    def __call__(self, info: RunInfo) -> MemoryTracker:
        self.tries += 1
        if self.tries <= self.failures:
            raise TrackerError("down")
        return self.tracker


DEAD = (2**22 + 1, 1.0)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "POLL_S", 0.01)
    monkeypatch.setattr(recorder, "LONGEST_PAUSE_S", 0.05)


def dead_run(home: Path) -> RunFolder:
    run = make_run(home)
    who = {"pid": DEAD[0], "pid_started": DEAD[1], "host": processes.hostname()}
    Journal(run.journal).append("attempt", 77, attempt=1, **who)
    return run


def test_after_the_trainers_end_a_store_that_comes_back_gets_everything(home: Path, fast: None) -> None:
    down = Down(failures=15)
    assert Recorder(dead_run(home), processes.Watched(*DEAD), down).run() == 0
    assert down.tracker.statuses == [("RUNNING", None), ("KILLED", 77)]


def test_it_stops_giving_way_once_its_trainer_has_ended(home: Path, fast: None) -> None:
    hurried: list[bool] = []
    done = Recorder(
        dead_run(home), processes.Watched(*DEAD), Down(0), last_words=lambda: hurried.append(True)
    ).run()
    assert done == 0 and hurried


def may_go_back() -> bool:
    command = [sys.executable, "-c", "import os; os.nice(19); os.setpriority(os.PRIO_PROCESS, 0, 0)"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_it_gives_up_on_a_store_that_stays_dead_and_the_next_command_delivers(
    home: Path, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    run, down = dead_run(home), Down(failures=float("inf"))
    assert Recorder(run, processes.Watched(*DEAD), down, give_up_s=0.5).run() == 1
    assert "giving up" in caplog.text
    assert down.tries < 20, "it waits longer and longer"
    tracker = MemoryTracker()
    deliver(run, lambda info: tracker)
    assert tracker.statuses == [("RUNNING", None)]


class NoFiles(MemoryTracker):
    """A tracker whose artifact store fails a number of times."""

    failures = 0.0

    def log_artifact(self, file: Path, path: str) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise FilesFailed("the artifact store is away", found="no answer")
        super().log_artifact(file, path)


def test_files_are_tried_again_after_the_trainers_end(
    home: Path, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postponed, "AGAIN_S", 0.02)
    run, tracker = dead_run(home), NoFiles()
    Journal(run.journal).append("artifact", 78, **artifacts.keep_bytes(run, b"{}", "config.json"))
    tracker.failures = float("inf")
    assert Recorder(run, processes.Watched(*DEAD), lambda info: tracker, give_up_s=0.5).run() == 1
    assert (tracker.status, run.delivered.postponed != (), tracker.artifacts) == ("KILLED", True, {})
    tracker.failures = 4
    assert Recorder(run, processes.Watched(*DEAD), lambda info: tracker).run() == 0
    assert (list(tracker.artifacts), run.delivered.postponed) == (["config.json"], ())
    assert tracker.tags["xptrain.files_waiting"] == "none"
    assert tracker.statuses == [("RUNNING", None), ("KILLED", 78)]


def test_it_leaves_the_status_alone_when_another_attempt_has_begun(home: Path, fast: None) -> None:
    run, down = dead_run(home), Down(0)
    begin(run, attempt=2, resumed_from=1)
    assert Recorder(run, processes.Watched(*DEAD), down).run() == 0
    assert down.tracker.status == "RUNNING"


def test_the_recorder_runs_on_the_cpu_and_finds_the_package(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"XLA_FLAGS": "--x", "MLFLOW_RUN_ID": "r", "CUDA_VISIBLE_DEVICES": "0"}.items():
        monkeypatch.setenv(name, value)
    made = recorder._environment(os.environ, "http://u:p@h")
    assert made["JAX_PLATFORMS"] == "cpu" and made["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"XLA_FLAGS", "MLFLOW_RUN_ID"} & made.keys() and made["MLFLOW_TRACKING_URI"] == "http://u:p@h"
    assert str(Path(recorder.__file__).parents[2]) in made["PYTHONPATH"].split(os.pathsep)


def test_a_module_of_the_users_folder_is_not_taken_for_a_library(
    stored_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mlflow.py").write_text("raise SystemExit('the wrong mlflow')")
    monkeypatch.chdir(tmp_path)
    run = make_run(stored_home)
    begin(run).append("status", status="FINISHED", reason=None)
    process = recorder.spawn(run)
    assert process.wait(60) == 0, run.recorder_log.read_text()
    assert run.delivered.status == "FINISHED"


def test_the_recorder_opens_mlflow_by_its_own_command(stored_home: Path) -> None:
    run = dead_run(stored_home)
    command = [recorder.sys.executable, "-P", "-m", "xptrain.tracking.recorder", str(run.path)]
    subprocess.run([*command, "--watch-pid", str(DEAD[0]), "--pid-started", "1.0"], check=True, timeout=100)
    assert run.delivered.status == "KILLED"
    assert deliver(run, open_tracker).records == 0


def test_an_embedding_program_is_not_taken_for_the_interpreter(
    stored_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "uwsgi"
    other.write_text("#!/bin/sh\nexit 7\n")
    other.chmod(0o755)
    real = Path(sys.executable).resolve()
    for given in (str(other), "", None):
        monkeypatch.setattr(sys, "executable", given)
        assert Path(recorder.interpreter()).resolve() == real
    run = make_run(stored_home)
    begin(run).append("status", status="FINISHED", reason=None)
    assert recorder.spawn(run).wait(60) == 0, run.recorder_log.read_text()
    assert run.delivered.status == "FINISHED"
    for prefix in ("prefix", "exec_prefix", "base_prefix"):
        monkeypatch.setattr(sys, prefix, str(tmp_path))
    with pytest.raises(TrackerError, match="no Python interpreter"):
        recorder.interpreter()


def test_a_recorder_that_cannot_be_started_is_warned_about(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(home)

    def refused(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(recorder.subprocess, "Popen", refused)
    with pytest.raises(TrackerError, match=r"(?s)cannot be started.*temporarily unavailable.*xptrain sync"):
        recorder.spawn(run)
    with pytest.warns(UserWarning, match="cannot be started"):
        assert recorder.ensure(run) is False


def test_the_recorders_log_does_not_grow_for_ever(
    home: Path, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dead_run(home)
    monkeypatch.setattr(recorder, "LONGEST_LOG", 1000)
    with run.recorder_log.open("ab") as log:  # as the recorder's own stderr is opened
        log.write(b"old" * 1000)
        log.flush()
        assert Recorder(run, processes.Watched(*DEAD), Down(3)).run() == 0
        log.write(b"new")
    assert run.recorder_log.read_bytes() == b"new"
    assert run.recorder_log.with_name("recorder.log.1").read_bytes() == b"old" * 1000


def test_an_error_that_nobody_expected_does_not_end_the_recorder(
    home: Path, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    down = Down(0)
    tries: list[int] = []

    def factory(info: RunInfo) -> MemoryTracker:
        tries.append(1)
        if len(tries) < 4:
            raise RuntimeError("a bug")
        return down(info)

    assert Recorder(dead_run(home), processes.Watched(*DEAD), factory).run() == 0
    assert down.tracker.status == "KILLED" and "a bug" in caplog.text and "Traceback" in caplog.text
