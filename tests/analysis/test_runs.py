"""Lists, histories and comparisons as tables."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import xptrain
from tests.recorded_runs import MadeRun, make_run


@pytest.fixture
def two(isolated_home: Path) -> tuple[MadeRun, MadeRun]:
    first = make_run(isolated_home, "aaaa0001", setup={"seed": 0, "config": {"lr": 0.1, "net": {"width": 8}}})
    first.attempt().epoch(0, steps=4, loss=1.0, accuracy=0.5).status("FINISHED")
    first.tell(("params", {"values": {"lr": "0.1", "batch_size": "32", "seed": "0"}}))
    first.manifest(None, data={"digest": "d1", "profile": "4 samples"})
    second = make_run(isolated_home, "bbbb0002", created_ms=2_000)
    second.attempt().epoch(0, steps=4, loss=math.nan).checkpoint(4, epoch=1, done=True)
    second.manifest(None, data={"digest": "d2", "profile": "4 samples"})
    return first, second


def test_runs_has_a_row_a_run_newest_first(two: tuple[MadeRun, MadeRun], isolated_home: Path) -> None:
    make_run(isolated_home, "cccc0003", experiment="other", created_ms=3_000)
    table = xptrain.runs()
    assert list(table["key"]) == ["cccc0003", "bbbb0002", "aaaa0001"]
    assert list(xptrain.runs("digits")["status"]) == ["KILLED", "FINISHED"]
    assert list(xptrain.runs("digits")["checkpoints"]) == [1, 0]
    row = table.set_index("key").loc["aaaa0001"]
    assert (row["attempts"], row["step"], row["epochs"], row["train/loss"]) == (1, 4, 1, 1.0)
    assert row["created"] == pd.Timestamp(1_000, unit="ms", tz="UTC")


def test_no_runs_is_an_empty_table_with_the_same_columns(tmp_path: Path) -> None:
    table = xptrain.runs(home=tmp_path / "nowhere")
    assert table.empty
    assert {"key", "status", "created"} <= set(table.columns)
    assert xptrain.runs("unknown").empty


def test_history_has_every_point_once(two: tuple[MadeRun, MadeRun]) -> None:
    columns = {"batch/loss": ["nan", 2.0], "batch/extra": [None, 7]}
    two[0].tell(("metrics", {"steps": [1, 2], "at": [0, 3], "values": columns}))
    table = xptrain.history("aaaa")
    assert list(table.columns) == ["metric", "step", "value", "time"]
    assert list(table["metric"]) == [
        "batch/extra",
        "batch/loss",
        "batch/loss",
        "train/accuracy",
        "train/loss",
    ]
    assert table["step"].dtype == "int64"
    assert table["value"].dtype == "float64"
    assert table["time"].iloc[0] == pd.Timestamp(1_003, unit="ms", tz="UTC")
    wide = table.pivot(index="step", columns="metric", values="value")
    assert wide.loc[2, "batch/extra"] == 7
    assert math.isnan(wide.loc[1, "batch/loss"])


def test_history_of_a_run_object_and_of_an_empty_run(
    two: tuple[MadeRun, MadeRun], isolated_home: Path
) -> None:
    assert len(xptrain.history(SimpleNamespace(key="aaaa0001"))) == 2
    make_run(isolated_home, "dddd0004")
    assert xptrain.history("dddd0004").empty


def test_compare_shows_what_differs(two: tuple[MadeRun, MadeRun]) -> None:
    table = xptrain.compare("aaaa", "bbbb")
    assert list(table.columns) == ["aaaa0001", "bbbb0002"]
    assert list(table.loc[("config", "net.width")]) == [8, None]
    assert list(table.loc[("data", "digest")]) == ["d1", "d2"]
    assert list(table.loc[("run", "status")]) == ["FINISHED", "KILLED"]
    assert ("config", "lr") not in table.index
    assert ("data", "profile") not in table.index
    assert table.loc[("state", "digest"), "bbbb0002"]
    everything = xptrain.compare("aaaa", "bbbb", all_rows=True)
    assert list(everything.loc[("config", "lr")]) == [0.1, 0.1]
    # Params that repeat the config are not shown twice.
    assert ("params", "batch_size") in everything.index
    assert ("params", "lr") not in everything.index


def test_a_run_is_equal_to_itself_even_where_it_has_nan(two: tuple[MadeRun, MadeRun]) -> None:
    assert xptrain.compare("bbbb", "bbbb").empty
    assert xptrain.compare("bbbb", "bbbb").index.names == ["section", "name"]


def test_compare_needs_runs_that_exist(two: tuple[MadeRun, MadeRun]) -> None:
    with pytest.raises(xptrain.UsageError, match="needs runs"):
        xptrain.compare()
    with pytest.raises(xptrain.RunNotFoundError, match="no run is called 'zzzz'"):
        xptrain.compare("aaaa", "zzzz")


def test_a_damaged_neighbour_is_left_out(two: tuple[MadeRun, MadeRun]) -> None:
    two[0].folder.run_json.write_text("{")
    with pytest.warns(UserWarning, match="left out"):
        assert list(xptrain.runs()["key"]) == ["bbbb0002"]


def test_looking_back_loads_no_tracker_and_no_backend(two: tuple[MadeRun, MadeRun]) -> None:
    code = (
        "import sys, xptrain; xptrain.runs(); xptrain.history('aaaa'); xptrain.compare('aaaa', 'bbbb');"
        "print(*{'mlflow', 'orbax', 'jax', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
