"""What `list`, `show`, `compare`, `env` and `sync` print."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.recorded_runs import MadeRun, make_run
from xptrain.provenance.diff.difference import CATEGORIES
from xptrain.tracking.folder import RunFolder


def test_list_as_json(trained: Shell) -> None:
    runs = {run["key"]: run for run in trained.json("list")}
    assert set(runs) == {"dead0002", "done0001"}
    assert (runs["done0001"]["status"], runs["dead0002"]["status"]) == ("FINISHED", "KILLED")
    assert runs["done0001"]["metrics"].keys() == {"train/loss", "val/loss"}
    assert runs["done0001"]["run_id"]
    assert trained.json("list", "--experiment", "none") == []


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(trained: Shell, columns: int) -> None:
    for command in (
        ["list"],
        ["show", "dead"],
        ["compare", "dead", "done"],
        ["explain", "dead", "done"],
        ["--help"],
    ):
        done = trained.xptrain(*command, env={"COLUMNS": str(columns)})
        assert done.returncode == 0, done.stderr
        assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= columns
        assert "…" not in done.stdout, done.stdout


def test_show_tells_everything(trained: Shell) -> None:
    text = trained.xptrain("show", "dead").stdout
    for part in ("tiny  dead0002  KILLED", "Attempts", "Checkpoints", "Where", "Resume", "exact"):
        assert part in text
    assert "xptrain resume dead0002" in text
    assert "from step 8, after 2 epochs" in text
    shown = trained.json("show", "dead")
    digest = shown["checkpoint_list"][-1]["digest"]
    assert digest[:12] in text
    assert shown["checkpoint_list"][-1]["leaves"]["model/0.dense/kernel"]
    assert shown["config"] == {"rate": 0.01}
    assert Path(shown["artifacts"], "config.json").is_file()
    # MLflow's id and a prefix of it are names of the run, too.
    assert trained.json("show", shown["run_id"][:10])["key"] == "dead0002"


def test_show_of_a_run_that_has_done_nothing(shell: Shell) -> None:
    make_run(shell.home)
    done = shell.xptrain("show", "@last")
    assert done.returncode == 0, done.stderr
    assert "none yet" in done.stdout
    assert "not known before the first fit" in done.stdout
    shell.json("show", "@last")


def test_compare_shows_only_differences_unless_asked(trained: Shell) -> None:
    found = trained.json("compare", "done", "dead")
    rows = {(row["section"], row["name"]): row["values"] for row in found["rows"]}
    assert rows[("run", "status")] == {"done0001": "FINISHED", "dead0002": "KILLED"}
    assert ("config", "rate") not in rows
    everything = trained.json("compare", "done", "dead", "--all")
    assert len(everything["rows"]) > len(found["rows"])
    assert "arguments" in trained.xptrain("compare", "done", "dead").stdout


def test_explain_names_the_cause_first(copy: Shell) -> None:
    equal = copy.xptrain("explain", "done", "dead", "--exit-code")
    assert equal.returncode == 0, equal.stderr
    assert "Equal as far as both go: up to step 8" in equal.stdout
    shutil.copytree(copy.home / "runs" / "done0001", copy.home / "runs" / "else0003")
    for path in (copy.home / "runs" / "else0003" / "run.json",):
        path.write_text(path.read_text().replace("done0001", "else0003"))
    journal = copy.home / "runs" / "else0003" / "journal.jsonl"
    journal.unlink()
    MadeRun(RunFolder(journal.parent)).attempt().epoch(0, steps=4, loss=0.5).status("FINISHED").delivered()
    manifest = journal.parent / "manifest" / "attempt-1.json"
    record = json.loads(manifest.read_text())
    record["seed"] = 7
    manifest.write_text(json.dumps(record))
    parted = copy.xptrain("explain", "done", "else", "--exit-code")
    assert parted.returncode == 8, parted.stderr
    assert "Likely cause: the seed" in parted.stdout
    assert "train/loss at epoch 0" in parted.stdout
    found = copy.json("explain", "done", "else")
    assert (found["equal"], found["causes"][0]["kind"]) == (False, "seed")
    assert found["causes"][0]["differences"][0]["text"] == "seed 1 -> 7"


def test_explain_needs_two_runs_that_exist(trained: Shell) -> None:
    twice = trained.xptrain("explain", "done", "done0001")
    assert (twice.returncode, "done0001 twice" in twice.stderr) == (2, True)
    assert trained.xptrain("explain", "done", "zzzz").returncode == 3


def test_nan_is_valid_json(shell: Shell) -> None:
    run = make_run(shell.home).attempt().epoch(0, steps=3, loss=float("nan")).status("FINISHED").delivered()
    done = shell.xptrain("list", "--json")
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert found[0]["metrics"] == {"train/loss": "nan"}
    assert run.key in done.stdout


def test_env_says_what_is_here_and_what_changed(trained: Shell) -> None:
    now = trained.json("env")["now"]
    assert now["devices"]["platform"] == "cpu"
    assert "jaxlib" in now["packages"]["bit_movers"]
    assert isinstance(now["hazards"], list)
    assert "nothing that moves bits changed" in trained.xptrain("env", "done").stdout


def test_env_finds_a_change(copy: Shell) -> None:
    path = copy.home / "runs" / "done0001" / "manifest" / "attempt-1.json"
    record = json.loads(path.read_text())
    record["packages"]["bit_movers"]["jaxlib"] = "0.9.2"
    path.write_text(json.dumps(record))
    done = copy.xptrain("env", "done")
    assert "jaxlib" in done.stdout
    assert "--allow packages" in done.stdout


def test_commands_that_look_at_a_run_settle_it(shell: Shell) -> None:
    run = make_run(shell.home).attempt().epoch(0, steps=3, loss=0.5)
    done = shell.xptrain("show", run.key)
    assert done.returncode == 0, done.stderr
    assert f"run {run.key} is now KILLED in MLflow" in done.stderr
    assert shell.mlflow_status(run.key) == "KILLED"
    # Once is enough.
    again = shell.xptrain("list")
    assert again.stderr == ""


def test_sync_delivers_what_is_left(copy: Shell) -> None:
    (copy.home / "runs" / "done0001" / "delivered.json").unlink()
    sent = copy.json("sync")
    assert [(run["key"], run["status"]) for run in sent] == [("done0001", "FINISHED")]
    assert sent[0]["records"] > 0
    assert "the tracking store has everything of 2 runs" in copy.xptrain("sync").stdout


def test_a_run_that_was_not_trained_is_not_offered_to_go_on(shell: Shell) -> None:
    make_run(shell.home).attempt().status("FINISHED").delivered()
    shown = " ".join(shell.xptrain("show", "@last").stdout.split())
    assert "finished without training: there is nothing to go on with; train with run.fit(model, …)" in shown
    assert "further" not in shown
    done = shell.xptrain("resume", "@last")
    assert done.returncode == 0, done.stderr
    assert "nothing was trained under it" in done.stdout
    assert "further" not in done.stdout


def test_a_missing_home_is_said(shell: Shell) -> None:
    for command in ("list", "sync"):
        done = shell.xptrain(command, env={"XPTRAIN_HOME": str(shell.folder / "none")})
        assert done.returncode == 0, done.stderr
        assert f"no runs in {shell.folder / 'none'}: there is no such folder" in done.stdout
    assert "XPTRAIN_HOME names it" in shell.xptrain("list").stdout
    shell.home.mkdir()
    assert shell.xptrain("list").stdout.strip() == f"no runs in {shell.home}"


@pytest.mark.parametrize(
    "command",
    ["", "resume", "fork", "list", "show", "compare", "explain", "env", "verify", "doctor", "ui", "sync"],
)
def test_help_explains_every_option_without_placeholders(shell: Shell, command: str) -> None:
    text = shell.xptrain(*filter(None, [command]), "--help").stdout
    for placeholder in ("<bool>", "<str>", "<int", "<list", "{RUN", "[["):
        assert placeholder not in text
    if "--allow" in text:
        words = " ".join(text.replace("│", " ").split())
        for name in CATEGORIES:
            assert re.search(rf"\b{name}( \(|,)", words), name
