"""Every fault of a user ends in one readable block and its exit code, never in a traceback."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import XPTRAIN, Shell
from tests.recorded_runs import make_run

COMMANDS_ON_A_RUN = ("show", "resume", "sync")


@pytest.mark.parametrize("command", COMMANDS_ON_A_RUN)
def test_an_unknown_run(shell: Shell, command: str) -> None:
    make_run(shell.home)
    done = shell.xptrain(command, "zzzz")
    assert done.returncode == 3
    assert done.stderr.startswith("xptrain: no run is called 'zzzz'")
    assert "aaaa0001" in done.stderr


def test_no_runs_at_all(shell: Shell) -> None:
    assert shell.xptrain("show", "@last").returncode == 3
    done = shell.xptrain("list")
    assert done.returncode == 0
    assert "no runs in" in done.stdout


def test_an_ambiguous_name(shell: Shell) -> None:
    make_run(shell.home, "aaaa0001")
    make_run(shell.home, "aaaa0002")
    done = shell.xptrain("show", "aaaa")
    assert done.returncode == 3
    assert "2 runs match 'aaaa'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("nope",),
        ("show",),
        ("show", "@last", "--nope"),
        ("compare", "@last"),
        ("resume", "@last", "--allow", "nonsense"),
        ("ui", "--port", "x"),
        ("list", "--limit", "0"),
    ],
)
def test_wrong_usage(shell: Shell, arguments: tuple[str, ...]) -> None:
    make_run(shell.home)
    done = shell.xptrain(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip()


def test_a_port_that_is_taken(shell: Shell) -> None:
    import socket

    make_run(shell.home)
    sqlite3.connect(shell.home / "mlflow.db").execute("create table t (a)").connection.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = shell.xptrain("ui", "--port", str(server.getsockname()[1]))
    assert done.returncode == 2
    assert "give another --port" in done.stderr


def test_errors_as_json(shell: Shell) -> None:
    done = shell.xptrain("show", "zzzz", "--json")
    error = json.loads(done.stderr)
    assert (done.returncode, done.stdout, error["error"], error["exit_code"]) == (
        3,
        "",
        "RunNotFoundError",
        3,
    )
    assert {"what", "expected", "found", "remedy"} <= set(error)


def test_a_store_that_is_gone(shell: Shell) -> None:
    make_run(shell.home)
    done = shell.xptrain("ui")
    assert done.returncode == 7
    assert "there is no tracking store to show yet" in done.stderr


def test_a_store_that_vanished_after_it_had_the_run(copy: Shell) -> None:
    (copy.home / "mlflow.db").unlink()
    done = copy.xptrain("sync", "done")
    assert done.returncode == 7
    assert "the tracking store of run done0001 is gone" in done.stderr
    assert not (copy.home / "mlflow.db").exists()


@pytest.mark.parametrize("command", [("sync", "aaaa"), ("ui",), ("resume", "aaaa")])
def test_a_store_that_is_no_database(shell: Shell, command: tuple[str, ...]) -> None:
    script = shell.folder / "train.py"
    script.write_text("")
    make_run(shell.home).attempt().manifest(script)
    (shell.home / "mlflow.db").write_text("something else, long enough for a header")
    done = shell.xptrain(*command)
    assert done.returncode == 7
    assert "is not a SQLite database" in done.stderr


def test_a_store_that_is_locked(copy: Shell) -> None:
    (copy.home / "runs" / "done0001" / "delivered.json").unlink()
    database = sqlite3.connect(copy.home / "mlflow.db", isolation_level=None)
    database.execute("begin exclusive")
    began = time.monotonic()
    try:
        done = copy.xptrain("sync", "done")
    finally:
        database.close()
    assert done.returncode == 7, done.stderr
    assert "locked" in done.stderr
    assert time.monotonic() - began < 90


def test_an_unusable_server_does_not_hide_the_list(shell: Shell) -> None:
    make_run(shell.home, tracking_uri="http://127.0.0.1:9").attempt()
    done = shell.xptrain("list")
    assert done.returncode == 0
    assert "aaaa0001" in done.stdout
    assert "is not wholly in its tracking store" in done.stderr
    assert shell.xptrain("sync").returncode == 7


def test_an_unreadable_identity(shell: Shell) -> None:
    make_run(shell.home).folder.run_json.write_text("{")
    done = shell.xptrain("list")
    assert done.returncode == 0
    assert re.match(r"xptrain: left out: .*run\.json cannot be read", done.stderr)


def test_a_reader_that_goes_away(shell: Shell) -> None:
    make_run(shell.home).attempt().status("FINISHED").delivered()
    pipe = subprocess.Popen(
        [*XPTRAIN, "show", "@last"], cwd=shell.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    said = pipe.stderr.read().decode()
    pipe.wait()
    assert "Traceback" not in said


def test_help_is_fast_and_loads_nothing_heavy(shell: Shell) -> None:
    code = (
        "import sys\nsys.argv = ['xptrain', '--help']\nfrom xptrain.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'jax', 'keras', 'mlflow', 'orbax', 'pandas', 'numpy', 'psutil'} & set(sys.modules)\n"
        "print('heavy:', *heavy)"
    )
    done = shell.start(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy:\n")
    assert "128+n  killed by signal n" in done.stdout


def test_an_experiment_is_pointed_to_its_runs(shell: Shell) -> None:
    make_run(shell.home, "aaaa0001", name="baseline")
    make_run(shell.home, "bbbb0002")
    make_run(shell.home, "cccc0003", experiment="other")
    done = shell.xptrain("show", "digits")
    assert done.returncode == 3
    assert "'digits' is the experiment of 2 runs, and no key" in done.stderr
    assert "bbbb0002" in done.stderr
    assert "cccc0003" not in done.stderr
    assert "'baseline' is the name of 1 run, and no key" in shell.xptrain("show", "baseline").stderr


@pytest.mark.parametrize(("word", "command"), [("diff", "'compare'"), ("ls", "'list'"), ("shwo", "'show'")])
def test_words_of_other_tools_are_pointed_to_commands(shell: Shell, word: str, command: str) -> None:
    done = shell.xptrain(word, "aaaa")
    assert done.returncode == 2
    assert command in done.stderr


LATE = """
import xptrain
with xptrain.run("late", seed=0):
    import keras
"""


@pytest.mark.parametrize("backend", ["", "torch", "tensorflow"])
def test_a_backend_that_is_not_installed(shell: Shell, backend: str) -> None:
    missing = backend or "tensorflow"
    if importlib.util.find_spec(missing) is not None:
        pytest.skip(f"{missing} is installed")
    (shell.folder / "late.py").write_text(LATE)
    env = {"KERAS_BACKEND": backend, "KERAS_HOME": str(shell.folder)}
    done = shell.start(sys.executable, "late.py", env=env)
    assert done.returncode == 2, done.stderr
    assert "Keras cannot be imported: its backend is not installed" in done.stderr
    assert "expected: KERAS_BACKEND=jax" in done.stderr
    assert "late.py, line 3" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_doctor_says_that_the_backend_is_not_set(shell: Shell) -> None:
    (shell.folder / "early.py").write_text("import keras\n")
    done = shell.xptrain("doctor", "early.py", env={"KERAS_BACKEND": "", "KERAS_HOME": str(shell.folder)})
    assert done.returncode == 2, done.stderr
    assert "remedy:   set it where you start the script: export KERAS_BACKEND=jax" in done.stderr
