from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from xptrain.checkpoint.ledger import Ledger

FILES = {"state/d/x": (3, "abc")}


@pytest.fixture
def ledger(tmp_path: Path, kit: Any) -> Ledger:
    made = Ledger(tmp_path / "ledger.jsonl")
    for step in (10, 20, 30):
        made.append(kit.receipt(step, loss=float("nan")), FILES)
    return made


def steps(ledger: Ledger) -> list[int]:
    return [receipt.step for receipt in ledger.history()]


def test_receipts_come_back_in_order_with_their_files(ledger: Ledger) -> None:
    again = Ledger(ledger.path)
    assert steps(again) == [10, 20, 30]
    assert again.entries()[20].files == FILES


def test_a_reader_sees_what_a_writer_appends_later(ledger: Ledger, kit: Any) -> None:
    reader = Ledger(ledger.path)
    assert steps(reader) == [10, 20, 30]
    ledger.append(kit.receipt(40), FILES)
    assert steps(reader) == [10, 20, 30, 40]


def test_deleted_checkpoints_stay_in_the_history(ledger: Ledger) -> None:
    ledger.gone(10, "deleted")
    ledger.gone(20, "damaged")
    assert (steps(ledger), sorted(ledger.entries()), ledger.lost()) == ([10, 20, 30], [30], {20: "damaged"})


def test_a_step_saved_again_is_there_again(ledger: Ledger, kit: Any) -> None:
    ledger.gone(30, "damaged")
    ledger.append(kit.receipt(30, loss=2.0), FILES)
    assert ledger.lost() == {} and ledger.entries()[30].receipt.metrics == {"loss": 2.0}


def test_every_cut_leaves_the_lines_before_it(ledger: Ledger, kit: Any) -> None:
    text = ledger.path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(text) if byte == ord("\n")]
    for cut in range(0, len(text), 7):
        ledger.path.write_bytes(text[:cut])
        torn = Ledger(ledger.path)
        whole = sum(end <= cut for end in ends)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a line in the making is no reason for alarm
            assert steps(torn) == [10, 20, 30][:whole]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torn.append(kit.receipt(40), FILES)
            # The torn line may be whole but for its newline; then it counts.
            assert steps(torn) == steps(Ledger(ledger.path)) and steps(torn)[-1] == 40
            assert steps(torn)[:whole] == [10, 20, 30][:whole]


def test_every_flipped_byte_loses_at_most_its_own_lines_and_says_so(ledger: Ledger) -> None:
    text = ledger.path.read_bytes()
    for place in range(0, len(text), 11):
        ledger.path.write_bytes(text[:place] + bytes([text[place] ^ 4]) + text[place + 1 :])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            left = steps(Ledger(ledger.path))
        assert len(left) in (1, 2) and set(left) < {10, 20, 30}, place
        assert caught and "unreadable" in str(caught[0].message)


def test_repair_takes_bad_lines_out_for_good(ledger: Ledger) -> None:
    text = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(text[0] + text[1].replace(b"abc", b"abd") + text[2] + b'{"torn')
    again = Ledger(ledger.path)
    with pytest.warns(UserWarning, match="unreadable"):
        dropped = again.repair()
    assert [len(dropped), steps(again)] == [2, [10, 30]]
    assert ledger.path.read_bytes() == text[0] + text[2]
    assert Ledger(ledger.path).repair() == []


def test_a_ledger_that_is_taken_away_is_empty(ledger: Ledger) -> None:
    ledger.path.unlink()
    assert ledger.history() == [] and ledger.entries() == {}


def test_a_line_is_durable_before_append_returns(
    ledger: Ledger, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(ledger.path.read_bytes()))
    ledger.append(kit.receipt(40), FILES)
    assert synced == [ledger.path.read_bytes()]
