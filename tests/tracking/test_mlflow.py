"""What stands in MLflow, with a real SQLite store and a real server."""

from __future__ import annotations

import math
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest_tracking import begin, make_run, pairs_in, points_in, row_of
from mlflow import MlflowClient

from xptrain.errors import TrackerError
from xptrain.tracking import artifacts, names
from xptrain.tracking.drain import deliver, reconcile
from xptrain.tracking.journal import Journal
from xptrain.tracking.mlflow_tracker import MlflowTracker
from xptrain.tracking.points import Point, PointIndex
from xptrain.tracking.recording import PointWriter
from xptrain.tracking.stores import open_tracker


def opened(home: Path, uri: str | None = None, **info: Any) -> tuple[MlflowTracker, str]:
    run = make_run(home, uri, **info)
    tracker = open_tracker(run.info)
    return tracker, tracker.open(run.info)  # type: ignore[return-value]


def test_a_run_is_described_and_found_again_by_its_key(stored_home: Path) -> None:
    run = make_run(stored_home, name="first try", created_ms=1234)
    run_id = open_tracker(run.info).open(run.info)
    assert open_tracker(run.info).open(run.info) == run_id
    assert open_tracker(run.info).open(run.info, run_id) == run_id
    found = MlflowClient(run.info.tracking_uri).get_run(run_id)
    assert (found.info.run_name, found.info.start_time, found.info.status) == ("first try", 1234, "RUNNING")
    assert found.info.artifact_uri == f"{(stored_home / 'artifacts').as_uri()}/{run_id}/artifacts"
    told = {
        "xptrain.key": run.key,
        "mlflow.user": "ada",
        "mlflow.source.name": "train.py",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": "why it was run",
        "xptrain.checkpoint_dir": run.info.checkpoint_dir,
    }
    assert told.items() <= found.data.tags.items()


def test_a_run_whose_experiment_was_renamed_is_not_created_twice(stored_home: Path) -> None:
    run = make_run(stored_home)
    run_id = open_tracker(run.info).open(run.info)
    client = MlflowClient(run.info.tracking_uri)
    client.rename_experiment(client.get_run(run_id).info.experiment_id, "renamed")
    assert open_tracker(run.info).open(run.info, run_id) == run_id


def test_values_arrive_as_they_are_from_numpy_and_not_finite(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri)
    writer = PointWriter(Journal(run.journal), PointIndex(run.journal))
    writer.log(
        np.int64(7), {"f32": np.float32(0.1), "nan": np.nan, "up": np.inf, "down": -np.inf, "acc@1": 1}
    )
    writer.close()
    run_id = str(deliver(run, open_tracker).run_id)
    found = {metric: values for (metric, step), values in points_in(db, run_id).items() if step == 7}
    assert found["f32"] == [float(np.float32(0.1))] and math.isnan(found["nan"][0])
    assert found["up"] == [sys.float_info.max] and found["down"] == [-sys.float_info.max]
    assert found[names.allowed("acc@1")] == [1.0] and len(found) == 5


def test_case34_a_metric_stands_at_the_step_it_was_logged_with(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri)
    writer = PointWriter(Journal(run.journal), PointIndex(run.journal))
    for epoch in range(3):
        writer.log(epoch, {"train/loss": 1.0 - epoch, "val/loss": 2.0 - epoch})
    writer.close()
    run_id = str(deliver(run, open_tracker).run_id)
    assert points_in(db, run_id) == {
        (f"{kind}/loss", epoch): [first - epoch]
        for kind, first in (("train", 1.0), ("val", 2.0))
        for epoch in range(3)
    }


def test_case28_changed_params_are_tags_and_no_param_is_lost(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri)
    long = "x" * 9000
    journal = begin(run)
    many = {f"p{n}": "y" * 5000 for n in range(250)}  # over the caps of a call in number and size
    journal.append(
        "params", values={"epochs": "3", "lr": "0.001", "f": "<f at 0x1>", "long": long, "none": "", **many}
    )
    journal.append(
        "params", values={"epochs": "5", "lr": "1e-3", "f": "<f at 0x2>", "long": long, "new": "1"}
    )
    run_id = str(deliver(run, open_tracker).run_id)
    params, tags = pairs_in(db, run_id, "params"), pairs_in(db, run_id, "tags")
    assert {k: params[k] for k in ("epochs", "lr", "f", "new", "none")} == {
        "epochs": "3",
        "lr": "0.001",
        "f": "<f at 0x1>",
        "new": "1",
        "none": "",
    }
    assert "xptrain.refused" not in tags, "known params are not sent again"
    assert len(params) == 256 and params["long"] == names.param_value(long)
    changed = {k: v for k, v in tags.items() if k.startswith("xptrain.changed.")}
    assert changed == {
        "xptrain.changed.epochs": "5",
        "xptrain.changed.lr": "1e-3",
        "xptrain.changed.f": "<f at 0x2>",
    }
    file = MlflowClient(run.info.tracking_uri).download_artifacts(run_id, "params/long.txt", str(home))
    assert Path(file).read_text() == long


def test_what_mlflow_refuses_does_not_take_its_neighbours_along(stored_home: Path) -> None:
    tracker, run_id = opened(stored_home)
    points = [Point("loss", step, 1.0, 5) for step in range(50)]
    points[20] = Point("loss", 20, 1.0, -5)  # MLflow takes no negative timestamp
    tracker.log_points(points)
    found = points_in(stored_home / "mlflow.db", run_id)
    assert sorted(step for _, step in found) == [step for step in range(50) if step != 20]
    assert "xptrain.refused" in pairs_in(stored_home / "mlflow.db", run_id, "tags")


def test_a_store_that_refuses_everything_is_an_error_and_nothing_counts_as_sent(stored_home: Path) -> None:
    tracker, run_id = opened(stored_home)
    with pytest.raises(TrackerError, match="refuses a record"):
        tracker.log_points([Point("loss", step, 1.0, -5) for step in range(50)])
    MlflowClient(f"sqlite:///{stored_home}/mlflow.db").delete_run(run_id)
    with pytest.raises(TrackerError, match=r"(?s)this run deleted.*restore"):
        tracker.log_points([Point("loss", step, 1.0, 5) for step in range(50)])


def test_a_long_tag_is_cut_visibly(where: tuple[str | None, Path], home: Path) -> None:
    uri, db = where
    tracker, run_id = opened(home, uri)
    tracker.set_tags({"note": "z" * 20_000, **{f"t{n}": "é" * 7999 for n in range(120)}})
    tags = pairs_in(db, run_id, "tags")
    assert len(tags["note"]) == 8000 and tags["note"].endswith("]") and "20000 characters" in tags["note"]
    assert tags["t119"] == "é" * 7999


def test_case30_status_and_true_end_time_and_running_again_without_one(
    where: tuple[str | None, Path], home: Path
) -> None:
    uri, db = where
    run = make_run(home, uri)
    begin(run).append("status", 123_456, status="FAILED", reason="ValueError: no")
    run_id = str(deliver(run, open_tracker).run_id)
    client = MlflowClient(run.info.tracking_uri)
    assert (client.get_run(run_id).info.status, client.get_run(run_id).info.end_time) == ("FAILED", 123_456)
    assert pairs_in(db, run_id, "tags")["xptrain.reason"] == "ValueError: no"
    begin(run, attempt=2, resumed_from=5)
    deliver(run, open_tracker)
    info = client.get_run(run_id).info
    assert (info.status, info.end_time) == ("RUNNING", None)
    assert row_of(db, run_id, "end_time") == (None if uri is None else 0)


def test_case30_killed_with_the_time_of_the_last_record(where: tuple[str | None, Path], home: Path) -> None:
    uri, _ = where
    run = make_run(home, uri)
    journal = Journal(run.journal)
    journal.append(
        "attempt", 1000, attempt=1, pid=2**22 + 1, pid_started=1.0, host=__import__("socket").gethostname()
    )
    journal.append("metrics", 2000, step=1, values={"loss": 1.0})
    run_id = str(reconcile(run, open_tracker).run_id)
    info = MlflowClient(run.info.tracking_uri).get_run(run_id).info
    assert (info.status, info.end_time) == ("KILLED", 2000)


def test_artifacts_and_data_sets(where: tuple[str | None, Path], home: Path, tmp_path: Path) -> None:
    uri, _ = where
    run = make_run(home, uri)
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("a")
    journal = begin(run)
    journal.append("artifact", **artifacts.keep_bytes(run, b"{}", "config.json"))
    journal.append("artifact", **artifacts.keep_file(run, folder, "code"))
    for _ in range(2):
        journal.append(
            "dataset", name="digits", digest="0" * 64, source="", profile='{"n": 5}', context="train"
        )
    run_id = str(deliver(run, open_tracker).run_id)
    client = MlflowClient(run.info.tracking_uri)
    assert [a.path for a in client.list_artifacts(run_id)] == ["code", "config.json"]
    assert [a.path for a in client.list_artifacts(run_id, "code/source/deep")] == ["code/source/deep/a.txt"]
    (used,) = client.get_run(run_id).inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest, used.tags[0].value) == ("digits", "0" * 36, "train")


def test_an_artifact_store_that_fails_holds_nothing_else_back(stored_home: Path) -> None:
    run = make_run(stored_home)
    run_id = open_tracker(run.info).open(run.info)
    # Even root cannot make a folder where there is a file.
    wall = stored_home / "artifacts" / run_id
    wall.parent.mkdir(exist_ok=True)
    wall.write_text("in the way")
    journal = begin(run)
    for text in (b"older", b"newer"):
        journal.append("artifact", **artifacts.keep_bytes(run, text, "notes.txt"))
    journal.append("params", values={"long": "x" * 9000, "lr": "0.1"})
    journal.append("metrics", step=1, values={"loss": 0.5})
    journal.append("status", status="FINISHED", reason=None)
    told = deliver(run, open_tracker)
    assert (told.status, told.postponed, told.offset) == ("FINISHED", 3, run.journal.stat().st_size)
    database = stored_home / "mlflow.db"
    assert points_in(database, run_id) == {("loss", 1): [0.5]}
    assert pairs_in(database, run_id, "params")["lr"] == "0.1"
    waiting = pairs_in(database, run_id, "tags")["xptrain.files_waiting"]
    assert "the artifact store" in waiting
    assert str(wall.parent) in waiting
    assert deliver(run, open_tracker).postponed == 3
    wall.unlink()
    told = deliver(run, open_tracker)
    assert (told.postponed, told.records) == (0, 3)
    assert run.delivered.postponed == ()
    assert pairs_in(database, run_id, "tags")["xptrain.files_waiting"] == "none"
    assert (wall / "artifacts" / "notes.txt").read_text() == "newer"
    assert (wall / "artifacts" / "params" / "long.txt").read_text() == "x" * 9000
    assert points_in(database, run_id) == {("loss", 1): [0.5]}


OPENS = """
import os, sys
from pathlib import Path
from conftest_tracking import begin, make_run
from xptrain.tracking.drain import deliver
from xptrain.tracking.stores import open_tracker
import xptrain.tracking.mlflow_tracker
go, start = os.pipe()
children = []
for _ in range(12):  # forked after the slow import, so that all begin at one moment
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(go, 1)
        run = make_run(Path(sys.argv[1]))
        begin(run).append("metrics", step=1, values={"loss": 1.0})
        deliver(run, open_tracker)
        os._exit(0)
    children.append(child)
os.close(start)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_12_processes_open_a_fresh_store_at_once(home: Path, child: Any) -> None:
    output, _ = child(OPENS, home).communicate(timeout=200)
    assert output.endswith(f"{[0] * 12}\n"), output
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        assert connection.execute("SELECT count(*) FROM experiments WHERE name = 'exp'").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (12,)
        assert connection.execute("SELECT count(*), sum(value) FROM metrics").fetchone() == (12, 12.0)


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from xptrain.tracking.drain import Drain
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.stores import open_tracker
import xptrain.tracking.mlflow_tracker
run = RunFolder(Path(sys.argv[1]))
class Dies(Drain):
    def _acknowledge(self, offset):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)  # sent, not acknowledged
        super()._acknowledge(offset)
for left in map(int, sys.argv[2:]):
    if os.fork() == 0:
        Dies(run, open_tracker).deliver()
        os._exit(0)
    print(os.wait()[1], run.delivered.offset, flush=True)
"""


def test_killed_between_send_and_acknowledge_no_point_is_lost_or_doubled(
    stored_home: Path, child: Any
) -> None:
    run = make_run(stored_home)
    begin(run)
    writer = PointWriter(Journal(run.journal), PointIndex.from_journal(run.journal))
    for step in range(1500):
        writer.log(step, {"loss": step / 7, "odd": math.nan if step % 3 else math.inf})
        if step % 400 == 0:
            writer.append("params", values={"lr": "0.1"})
    writer.append("status", status="FINISHED", reason=None)
    writer.close()
    output, _ = child(KILLED_BETWEEN, run.path, 1, 3, 2).communicate(timeout=200)
    assert "Traceback" not in output, output
    kills = [tuple(map(int, line.split())) for line in output.splitlines()]
    assert [signal_ for signal_, _ in kills] == [9] * 3, output
    offsets = [offset for _, offset in kills]
    assert offsets == sorted(offsets) and 0 < offsets[-1] < run.journal.stat().st_size
    run_id = str(deliver(run, open_tracker).run_id)
    found = points_in(stored_home / "mlflow.db", run_id)
    assert {metric for metric, _ in found} == {"loss", "odd"} and len(found) == 3000
    assert all(len(values) == 1 for values in found.values())
    assert all(found["loss", step] == [step / 7] for step in range(1500))
    assert row_of(stored_home / "mlflow.db", run_id, "status") == "FINISHED"


def test_everything_sent_twice_changes_nothing(where: tuple[str | None, Path], home: Path) -> None:
    uri, db = where
    run = make_run(home, uri)
    journal = begin(run)
    for step in range(500):
        journal.append("metrics", step=step, values={"loss": step, "nan": "nan", "inf": "-inf"})
    run_id = str(deliver(run, open_tracker).run_id)
    once = repr(sorted(points_in(db, run_id).items()))
    run.delivered_json.unlink()
    assert deliver(run, open_tracker).run_id == run_id
    assert repr(sorted(points_in(db, run_id).items())) == once


# Stores that cannot be used -----------------------------------------------------------------------


def test_a_locked_database_is_said_with_a_remedy_and_loses_nothing(stored_home: Path) -> None:
    run = make_run(stored_home)
    begin(run).append("metrics", step=1, values={"loss": 1.0})
    holder = sqlite3.connect(stored_home / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(TrackerError, match=r"(?s)locked by another process.*remedy"):
            deliver(run, open_tracker)
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    run_id = str(deliver(run, open_tracker).run_id)
    assert points_in(stored_home / "mlflow.db", run_id) == {("loss", 1): [1.0]}


def test_a_database_that_was_replaced_gets_the_whole_run_again(stored_home: Path, migrated_db: Path) -> None:
    run = make_run(stored_home)
    journal = begin(run)
    journal.append("metrics", step=1, values={"loss": 1.0})
    first = deliver(run, open_tracker).run_id
    shutil.copy(migrated_db, stored_home / "mlflow.db")
    journal.append("metrics", step=2, values={"loss": 2.0})
    second = deliver(run, open_tracker).run_id
    assert second != first
    assert points_in(stored_home / "mlflow.db", str(second)) == {("loss", 1): [1.0], ("loss", 2): [2.0]}


def test_a_file_that_is_no_database_fails_at_once(home: Path) -> None:
    (home / "mlflow.db").write_text("no database, but longer than a header")
    run = make_run(home)
    begin(run)
    with pytest.raises(TrackerError, match="not a SQLite database"):
        deliver(run, open_tracker)


def test_a_dead_server_costs_seconds_and_says_what_to_do(home: Path) -> None:
    run = make_run(home, "http://127.0.0.1:9")
    begin(run)
    begun = time.monotonic()
    with pytest.raises(TrackerError, match=r"(?s)127\.0\.0\.1:9 does not answer.*remedy"):
        deliver(run, open_tracker)
    assert time.monotonic() - begun < 30


def test_a_deleted_run_and_a_deleted_experiment_say_how_to_restore(stored_home: Path) -> None:
    run = make_run(stored_home)
    run_id = open_tracker(run.info).open(run.info)
    client = MlflowClient(run.info.tracking_uri)
    client.delete_run(run_id)
    with pytest.raises(TrackerError, match=r"(?s)run .* was deleted.*restore"):
        open_tracker(run.info).open(run.info)
    client.delete_experiment(client.get_run(run_id).info.experiment_id)
    with pytest.raises(TrackerError, match=r"(?s)experiment 'exp' was deleted.*restore"):
        open_tracker(run.info).open(run.info)
