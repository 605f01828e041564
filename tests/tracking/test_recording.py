"""L8: logging waits for nobody; L13: sync means on disk; errors surface at the next call."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xptrain.errors import TrackerError, UsageError
from xptrain.tracking.journal import Journal, read
from xptrain.tracking.points import PointIndex, points
from xptrain.tracking.recording import PointWriter


class OnDevice:
    """Stands in for a device scalar: it cannot be read but by the given fetch function."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        raise AssertionError("read outside fetch")

    __array__ = __float__


class Fetch:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, scalars: list[Any]) -> list[float]:
        self.gate.wait()
        self.sizes.append(len(scalars))
        self.threads.add(threading.get_ident())
        if any(s.value is None for s in scalars):
            raise RuntimeError("Array has been deleted")
        return [s.value for s in scalars]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def writer_of(path: Path, fetch: Fetch | None = None, **options: Any) -> PointWriter:
    return PointWriter(Journal(path), PointIndex(path), fetch or Fetch(), **options)


def told(path: Path) -> list[tuple[str, int, float]]:
    return [p[:3] for r, _ in read(path) if r.kind == "metrics" for p in points(r)]


def test_device_scalars_are_fetched_in_batches_on_another_thread(path: Path) -> None:
    fetch = Fetch()
    writer = writer_of(path, fetch)
    for step in range(2000):
        writer.log_device(step, {"batch/loss": OnDevice(step / 7), "batch/acc": OnDevice(0.5)})
    writer.close()
    assert told(path) == [p for n in range(2000) for p in (("batch/loss", n, n / 7), ("batch/acc", n, 0.5))]
    assert sum(fetch.sizes) == 4000 and len(fetch.sizes) < 200
    assert threading.get_ident() not in fetch.threads
    assert sum(1 for _ in read(path)) < 200, "many steps go into one record"


def test_logging_does_not_wait_for_the_device(path: Path) -> None:
    fetch = Fetch()
    fetch.gate.clear()
    writer = writer_of(path, fetch)
    for step in range(1000):
        writer.log_device(step, {"loss": OnDevice(step)})
    assert told(path) == []
    fetch.gate.set()
    writer.flush()
    assert len(told(path)) == 1000


def test_the_order_of_all_calls_is_kept_and_times_are_those_of_the_calls(path: Path) -> None:
    ticks = iter(range(100, 200))
    writer = writer_of(path, clock=lambda: next(ticks))
    writer.append("attempt", attempt=1)
    writer.log_device(1, {"loss": OnDevice(1.0)})
    writer.log(1, {"val": 2.0})
    writer.append("tags", values={"a": "b"})
    writer.log_device(2, {"loss": OnDevice(3.0)})
    writer.log_device(3, {"loss": OnDevice(4.0)})
    writer.append("status", status="FINISHED")
    writer.close()
    found = [r for r, _ in read(path)]
    assert [(r.kind, r.ms) for r in found] == [
        ("attempt", 100),
        ("metrics", 101),
        ("metrics", 102),
        ("tags", 103),
        ("metrics", 104),
        ("status", 106),
    ]
    assert [p.ms for p in points(found[4])] == [104, 105]


def test_sync_returns_the_position_behind_everything_logged(path: Path) -> None:
    writer = writer_of(path)
    writer.log(1, {"a": 1})
    assert writer.sync() == path.stat().st_size > 0


def test_a_numpy_step_becomes_an_int_and_odd_arguments_are_refused(path: Path) -> None:
    writer = writer_of(path)
    writer.log(np.int64(3), {"a": np.float32(0.5), "b": np.ones((1,)), "c": True})
    for bad in ({"a": "0.5"}, {"a": np.ones(2)}, {"a": None}, {"a": 1j}, {1: 2.0}):
        with pytest.raises(UsageError):
            writer.log(4, bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="integer"):
        writer.log(0.5, {"a": 1})  # type: ignore[arg-type]
    writer.close()
    assert told(path) == [("a", 3, 0.5), ("b", 3, 1.0), ("c", 3, 1.0)]
    with pytest.raises(UsageError, match="finished"):
        writer.log(5, {"a": 1})


def test_a_scalar_that_cannot_be_read_surfaces_at_the_next_call_and_takes_no_other_along(path: Path) -> None:
    writer = writer_of(path)
    writer.log_device(1, {"loss": OnDevice(1.0)})
    writer.log_device(2, {"loss": OnDevice(None)})  # type: ignore[arg-type]
    writer.log_device(3, {"loss": OnDevice(3.0)})
    with pytest.raises(TrackerError, match="step 2"):
        writer.flush()
    with pytest.raises(TrackerError, match="step 2"):  # law L13: no checkpoint without its points
        writer.sync()
    writer.append("status", status="FAILED")
    with pytest.raises(TrackerError):
        writer.close()
    assert told(path) == [("loss", 1, 1.0), ("loss", 3, 3.0)]
    assert [r.kind for r, _ in read(path)][-1] == "status"


def test_a_call_that_raises_an_earlier_error_still_queues_its_record(path: Path, monkeypatch) -> None:
    journal = Journal(path)
    writer = PointWriter(journal, PointIndex(path))
    real, failing = journal._write, [True]

    def write(line: bytes) -> None:
        if failing[0]:
            raise OSError(28, "No space left on device")
        real(line)

    monkeypatch.setattr(journal, "_write", write)
    writer.log(1, {"a": 1})
    with pytest.raises(TrackerError, match="cannot be written"):
        writer.flush()
    writer.log(2, {"a": 2})
    with pytest.raises(TrackerError, match="not durable"):
        writer.sync()
    failing[0] = False
    writer.log(3, {"a": 3})
    writer.close()
    assert told(path) == [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)]


def test_the_queue_is_bounded(path: Path) -> None:
    fetch = Fetch()
    fetch.gate.clear()
    writer = writer_of(path, fetch, capacity=8)
    done = threading.Event()

    def work() -> None:
        for step in range(100):
            writer.log_device(step, {"loss": OnDevice(step)})
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not done.wait(0.5)
    assert len(writer._queue) <= 8
    fetch.gate.set()
    thread.join(30)
    writer.close()
    assert [step for _, step, _ in told(path)] == list(range(100))


def test_divergences_are_journaled_and_counted(path: Path) -> None:
    first = writer_of(path)
    first.log(1, {"loss": 0.5, "acc": 0.25})
    start = 0
    first.close()
    writer = PointWriter(Journal(path), PointIndex.from_journal(path, start))
    writer.log(1, {"loss": 0.75, "acc": 0.25})
    writer.flush()
    assert writer.divergences == 1 and writer.first_divergence is not None
    assert writer.first_divergence[:4] == ("loss", 1, 0.5, 0.75)
    writer.close()
    assert told(path) == [("loss", 1, 0.5), ("acc", 1, 0.25)]


def test_200k_points_go_through_whole(path: Path) -> None:
    writer = PointWriter(Journal(path), PointIndex(path))
    for step in range(100_000):
        writer.log_device(step, {"batch/loss": step * 0.1, "batch/acc": 0.5})
    writer.close()
    assert sum(1 for _ in told(path)) == 200_000
    index = PointIndex.from_journal(path, 0)
    assert index.admit("batch/loss", 99_999, 99_999 * 0.1).kind == "same"


def test_the_training_side_imports_neither_mlflow_nor_jax() -> None:
    code = """
import sys
from xptrain.tracking import artifacts, attempts, drain, recorder, recording, stores, tracker
print(sorted({m.split('.')[0] for m in sys.modules} & {'mlflow', 'jax', 'keras', 'orbax', 'numpy', 'pandas'}))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("nth", range(6))
def test_a_write_that_fails_once_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    path = tmp_path / "journal.jsonl"
    writer = PointWriter(Journal(path), PointIndex(path), attempt=1)
    real, calls = os.write, [0]

    def write(fd: int, data: Any) -> int:
        if b'"kind"' in bytes(data):
            calls[0] += 1
            if calls[0] == nth + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for act in (
        lambda: writer.append("attempt", attempt=1),
        *(lambda step=step: writer.log(step, {"batch/loss": 1.0 / step}) for step in (1, 2, 3)),
        lambda: writer.log(0, {"train/loss": 1.0, "val/loss": 2.0}),
        lambda: writer.log(4, {"batch/loss": 0.2}),
        lambda: writer.append("tags", values={"a": "b"}),
        lambda: writer.append("status", status="FAILED", reason="x"),
    ):
        with suppress(TrackerError):
            act()
    with suppress(TrackerError):
        writer.sync()
    writer.sync()
    records = [record for record, _ in read(path)]
    assert [r.kind for r in records if r.kind != "metrics"] == ["attempt", "tags", "status"]
    found = {(p.metric, p.step) for r in records if r.kind == "metrics" for p in points(r)}
    assert found == {*(("batch/loss", step) for step in (1, 2, 3, 4)), ("train/loss", 0), ("val/loss", 0)}
    writer.close()
