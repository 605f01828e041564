"""Run folders appear whole, and runs are found by what a person types."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from conftest_tracking import make_run

from xptrain.errors import RunNotFoundError, TrackerError, UsageError
from xptrain.tracking import artifacts, finding, folder
from xptrain.tracking.folder import Delivered


def test_home_is_absolute_and_honours_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XPTRAIN_HOME", "elsewhere")
    assert finding.home() == tmp_path / "elsewhere"
    monkeypatch.delenv("XPTRAIN_HOME")
    assert finding.home() == tmp_path / ".xptrain"


def test_identity_round_trips_and_files_are_where_rooms_md_says(home: Path) -> None:
    run = make_run(home)
    assert run.path == home / "runs" / run.key and run.home == home
    assert run.info.argv == ("--fast",) and run.info.key == run.key
    assert folder.RunInfo.read(run.run_json) == run.info
    assert {p.name for p in run.path.iterdir()} == {"run.json", "artifacts"}
    assert run.delivered == Delivered()
    run.acknowledge(Delivered(5, "abc", "RUNNING", True))
    assert run.delivered == Delivered(5, "abc", "RUNNING", True)
    assert run.wait_run_id(0) == "abc" and run.wait_delivered(5, 0) and not run.wait_delivered(6, 0)


def test_a_key_is_taken_once(home: Path) -> None:
    run = make_run(home)
    with pytest.raises(UsageError, match="exists"):
        folder.create(run.info, home)
    assert [p.name for p in (home / "runs").iterdir()] == [run.key], "nothing half-made is left"


def test_runs_are_found_by_key_run_id_prefix_and_last(home: Path) -> None:
    first = make_run(home, key="aaaa1111", created_ms=2000)
    last = make_run(home, key="aabb2222", created_ms=3000)
    oldest = make_run(home, key="cccc3333", created_ms=1000)
    first.acknowledge(Delivered(run_id="f00d" * 8))
    assert finding.all_runs(home) == [oldest, first, last]
    for name, found in {
        "aaaa1111": first,
        "AAAA": first,
        "f00d": first,
        "f00d" * 8: first,
        "aab": last,
        "@last": last,
        " c ": oldest,
    }.items():
        assert finding.find(name, home) == found


def test_ambiguous_and_unknown_names_list_runs(home: Path) -> None:
    for number in range(7):
        make_run(home, key=f"aa00000{number}", created_ms=number, experiment=f"exp{number}")
    with pytest.raises(RunNotFoundError, match=r"(?s)7 runs match 'aa'.*exp6.*exp2.*2 more"):
        finding.find("aa", home)
    with pytest.raises(RunNotFoundError, match=r"(?s)no run is called 'zz'.*aa000006"):
        finding.find("zz", home)
    with pytest.raises(RunNotFoundError):
        finding.find("", home)


def test_a_home_without_runs_says_where_it_looked(tmp_path: Path) -> None:
    assert finding.all_runs(tmp_path / "none") == []
    with pytest.raises(RunNotFoundError, match="there are no runs in"):
        finding.find("@last", tmp_path / "none")


def test_one_damaged_identity_does_not_hide_the_other_runs(home: Path) -> None:
    good, bad = make_run(home), make_run(home)
    bad.run_json.write_text("{")
    with pytest.warns(UserWarning, match=bad.key):
        assert finding.all_runs(home) == [good]
    with pytest.raises(TrackerError, match="identity of a run"):
        bad.info


def test_a_damaged_acknowledgement_means_send_all_again(home: Path) -> None:
    run = make_run(home)
    run.delivered_json.write_text("")
    with pytest.warns(UserWarning, match="sent again"):
        assert run.delivered == Delivered()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_home_is_said_clearly(home: Path) -> None:
    make_run(home)
    (home / "runs").chmod(0)
    try:
        with pytest.raises(TrackerError, match="cannot be listed"):
            finding.all_runs(home)
    finally:
        (home / "runs").chmod(0o755)


def test_a_home_that_is_a_file_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(TrackerError, match="cannot be listed"):
        finding.all_runs(tmp_path / "home")
    info = replace(make_run(tmp_path / "good").info, key="12345678")
    with pytest.raises(TrackerError, match="cannot be made"):
        folder.create(info, tmp_path / "home")


def test_artifacts_are_copied_before_the_call_returns(home: Path, tmp_path: Path) -> None:
    run = make_run(home)
    source = tmp_path / "plot.txt"
    source.write_text("one")
    first = artifacts.keep_file(run, source, "plots")
    source.write_text("two")
    second = artifacts.keep_file(run, source, "plots")
    assert [(run.path / kept["file"]).read_text() for kept in (first, second)] == ["one", "two"]
    project = artifacts.keep_file(run, tmp_path)  # it holds the home, which is left out
    assert [p.name for p in (run.path / project["file"]).iterdir()] == ["plot.txt"]
    with pytest.raises(UsageError, match="own artifacts"):
        artifacts.keep_file(run, run.path)
    kept = artifacts.keep_bytes(run, b"{}", "config.json")
    assert kept["path"] == "" and (run.path / kept["file"]).read_bytes() == b"{}"
    with pytest.raises(UsageError, match="no such artifact"):
        artifacts.keep_file(run, tmp_path / "none")
    with pytest.raises(UsageError, match="within"):
        artifacts.keep_bytes(run, b"", "a", "../up")
    with pytest.raises(UsageError, match="plain file name"):
        artifacts.keep_bytes(run, b"", "a/b")


def test_waiting_for_delivery_does_not_keep_the_disk_busy(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks, now = make_run(home), [0], [0.0]
    run.acknowledge(Delivered(5, "abc"))

    def sleep(seconds: float) -> None:
        looks[0] += 1
        now[0] += seconds

    monkeypatch.setattr(folder.time, "sleep", sleep)
    monkeypatch.setattr(folder.time, "monotonic", lambda: now[0])
    assert not run.wait_delivered(6, 15.0)
    assert looks[0] < 50 and now[0] == pytest.approx(15.0)
