"""The journal keeps every record, in order, whatever kills the process or fills the disk."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xptrain.errors import TrackerError
from xptrain.tracking import journal
from xptrain.tracking.journal import Damage, Journal, Record, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def records(path: Path, start: int = 0) -> list[Record]:
    return [record for record, _ in read(path, start)]


def filled(path: Path, count: int = 3) -> list[int]:
    opened = Journal(path)
    ends = [opened.append("metrics", 1000 + n, step=n, values={"loss": n / 3}) for n in range(count)]
    opened.close()
    return ends


def test_what_is_appended_is_read_back_with_numpy_and_non_finite_values(path: Path) -> None:
    opened = Journal(path)
    values = {"a": np.float32(0.1), "n": float("nan"), "i": np.float64("inf"), "j": -np.inf, "t": True}
    end = opened.append("metrics", 5, step=np.int64(7), values=values)
    (record,) = records(path)
    assert record.kind == "metrics" and record.ms == 5 and record.fields["step"] == 7
    assert record.fields["values"] == {
        "a": float(np.float32(0.1)),
        "n": "nan",
        "i": "inf",
        "j": "-inf",
        "t": True,
    }
    assert end == path.stat().st_size == opened.end


def test_positions_let_a_reader_go_on(path: Path) -> None:
    ends = filled(path)
    assert [end for _, end in read(path)] == ends
    assert [r.fields["step"] for r in records(path, ends[0])] == [1, 2]
    assert [r.fields["step"] for r, _ in read(path, 0, stop=ends[1])] == [0, 1]


def test_reading_from_inside_a_record_is_refused(path: Path) -> None:
    ends = filled(path)
    with pytest.raises(TrackerError, match="no record boundary"):
        records(path, ends[0] - 1)
    with pytest.raises(TrackerError, match="no record boundary"):
        records(path, ends[-1] + 1)


def test_a_missing_journal_has_no_records(path: Path) -> None:
    assert records(path) == []
    assert journal.last(path) is None
    with pytest.raises(TrackerError, match="gone"):
        records(path, 10)


def test_torn_at_every_byte_of_the_last_record(path: Path) -> None:
    ends = filled(path)
    whole = path.read_bytes()
    for cut in range(ends[1], ends[2]):
        path.write_bytes(whole[:cut])
        assert [r.fields["step"] for r in records(path)] == [0, 1], cut
        opened = Journal(path)
        assert opened.end == ends[1], cut
        opened.append("metrics", 9, step=9, values={})
        opened.close()
        assert [r.fields["step"] for r in records(path)] == [0, 1, 9], cut


def test_one_flipped_byte_anywhere_in_the_last_record_drops_only_that_record(path: Path) -> None:
    ends = filled(path)
    whole = path.read_bytes()
    for at in range(ends[1], ends[2]):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert [r.fields["step"] for r in records(path)] == [0, 1], at


def test_damage_in_the_middle_is_skipped_loudly_and_the_rest_is_kept(path: Path) -> None:
    ends = filled(path, 4)
    whole = bytearray(path.read_bytes())
    whole[ends[0] + 5] ^= 1
    path.write_bytes(bytes(whole))
    seen: list[Damage] = []
    assert [r.fields["step"] for r, _ in read(path, damaged=seen.append)] == [0, 2, 3]
    assert seen == [Damage(path, ends[0], ends[1] - ends[0])]
    with pytest.warns(UserWarning, match="damaged bytes"):
        records(path)
    Journal(path).close()
    assert path.read_bytes() == bytes(whole), "opening must not cut what records follow"


def test_whole_damaged_lines_at_the_end_are_kept_aside(path: Path) -> None:
    ends = filled(path)
    path.write_bytes(path.read_bytes()[: ends[0]] + b"garbage\nmore\n\0\0\0")
    with pytest.warns(UserWarning, match="moved to"):
        opened = Journal(path)
    assert opened.end == ends[0] == path.stat().st_size
    (aside,) = path.parent.glob("journal.jsonl.cut-*")
    assert aside.read_bytes() == b"garbage\nmore\n\0\0\0"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text() | st.floats() | st.integers(), max_size=4), max_size=6
    ),
    st.floats(0, 1),
)
def test_any_records_cut_anywhere_give_a_prefix(
    path: Path, contents: list[dict[str, object]], where: float
) -> None:
    path.unlink(missing_ok=True)
    opened = Journal(path)
    for content in contents:
        opened.append("tags", values=content)
    opened.close()
    whole = records(path)
    assert [r.fields["values"] for r in whole] == [journal.plain(c) for c in contents]
    os.truncate(path, int(where * path.stat().st_size))
    kept = records(path)
    assert kept == whole[: len(kept)]
    Journal(path).close()
    assert records(path) == kept


def test_threads_do_not_mix_their_lines(path: Path) -> None:
    opened = Journal(path)
    ends: list[int] = []

    def work(number: int) -> None:
        for n in range(200):
            ends.append(opened.append("tags", values={"from": number, "n": n, "fill": "x" * 5000}))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = list(read(path))
    assert len(found) == 1600 and sorted(ends) == [end for _, end in found]
    for number in range(8):
        mine = [r.fields["values"]["n"] for r, _ in found if r.fields["values"]["from"] == number]
        assert mine == list(range(200))


WRITER = """
import sys
from pathlib import Path
from xptrain.tracking.journal import Journal
journal = Journal(Path(sys.argv[1]))
for n in range(10**9):
    journal.append("metrics", step=n, values={"loss": n})
    print(n, flush=True)
"""


def test_sigkill_loses_no_record_that_was_appended(path: Path, child) -> None:
    process = child(WRITER, path)
    for line in process.stdout:
        if int(line) >= 500:
            break
    os.kill(process.pid, signal.SIGKILL)
    told = [500, *(int(line) for line in process.stdout.read().split())]
    steps = [r.fields["step"] for r in records(path)]
    assert steps == list(range(len(steps))) and steps[-1] >= told[-1]


FULL_DISK = """
import resource, sys
from pathlib import Path
from xptrain.errors import TrackerError
from xptrain.tracking.journal import Journal, read
path = Path(sys.argv[1])
journal = Journal(path)
journal.append("metrics", step=0, values={})
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (journal.end + 10, hard))  # a write stops after 10 bytes
raised = []
for step in (1, 2, 3):
    try:
        journal.append("metrics", step=step, values={})
    except TrackerError as error:
        raised.append(step)
        assert "cannot be written" in str(error) and "remedy" in str(error)
assert raised == [1], raised
assert [r.fields["step"] for r, _ in read(path)] == [0]
try:
    journal.sync()
except TrackerError:
    pass
else:
    sys.exit("sync hides that records are not on the disk")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
end = journal.append("metrics", step=4, values={})
assert journal.sync() == end == path.stat().st_size
assert [r.fields["step"] for r, _ in read(path)] == [0, 1, 2, 3, 4]
print("fine")
"""


def test_a_full_disk_is_told_once_and_the_order_is_kept(path: Path, child) -> None:
    out, _ = child(FULL_DISK, path).communicate(timeout=60)
    assert out.endswith("fine\n"), out


def test_after_a_failed_fsync_nothing_is_called_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Journal(path)
    opened.append("tags", values={})

    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(journal, "fsync", fails)
        with pytest.raises(TrackerError, match="not durable"):
            opened.sync()
    with pytest.raises(TrackerError, match="not durable"):
        opened.sync()


def test_a_folder_that_is_not_there_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(TrackerError, match="cannot be opened for writing"):
        Journal(tmp_path / "nowhere" / "journal.jsonl")


def test_pick_finds_kinds_without_reading_the_rest(path: Path) -> None:
    opened = Journal(path)
    opened.append("attempt", attempt=1)
    for step in range(10):
        opened.append("metrics", step=step, values={"attempt": 1})
    opened.append("status", status="FAILED")
    assert [r.kind for r in journal.pick(path, ("attempt", "status"))] == ["attempt", "status"]
    assert journal.last(path) == Record("status", journal.last(path).ms, {"status": "FAILED"})
