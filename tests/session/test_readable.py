"""How our own errors end a script, and do not end a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import xptrain
from xptrain.errors import UsageError
from xptrain.session import delivery, life, readable

# The fixtures of this room switch it off.
WAIT = delivery.Delivery.wait


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "_installed", False)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    readable.install()


def test_a_script_ends_with_the_errors_code(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.excepthook(UsageError, UsageError("no such thing"), None)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("xptrain: no such thing")


def test_a_prompt_goes_on(
    hook: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(UsageError, UsageError("no such thing"), None)
    assert capsys.readouterr().err.startswith("xptrain: no such thing")


def test_ctrl_c_that_was_told_is_one_line(
    hook: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt = readable.told(KeyboardInterrupt())
    sys.excepthook(KeyboardInterrupt, interrupt, None)
    assert capsys.readouterr().err == "KeyboardInterrupt\n"
    monkeypatch.setenv("XPTRAIN_TRACEBACK", "1")
    shown: list[object] = []
    monkeypatch.setattr(readable, "_installed", False)
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error[1]))
    readable.install()
    sys.excepthook(KeyboardInterrupt, interrupt, None)
    assert shown == [interrupt]


class Slow:
    """A folder whose journal is never delivered, since the user does not wait for it."""

    key = "aaaa0001"

    def __init__(self, path: Path) -> None:
        self.journal = path / "journal.jsonl"
        self.journal.write_text("")

    def wait_delivered(self, offset: int, timeout_s: float) -> bool:
        raise KeyboardInterrupt


def test_ctrl_c_in_the_wait_for_the_tracking_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delivery.recorder, "ensure", lambda *_: None)
    folder: Any = Slow(tmp_path)
    with pytest.raises(KeyboardInterrupt) as caught:
        WAIT(delivery.Delivery(folder, ""))
    assert getattr(caught.value, readable._TOLD)
    assert "run aaaa0001: has ended; Ctrl-C ended the wait" in capsys.readouterr().err


def test_ctrl_c_in_that_wait_does_not_hide_an_error(isolated_home: Path, monkeypatch: Any) -> None:
    def interrupted(self: object) -> None:
        raise readable.told(KeyboardInterrupt())

    for name in ("start", "keep"):
        monkeypatch.setattr(life.Delivery, name, lambda self: None)
    monkeypatch.setattr(life.Delivery, "wait", interrupted)
    with pytest.raises(ZeroDivisionError), xptrain.run("digits", key="fails"):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), xptrain.run("digits", key="ends"):
        pass
