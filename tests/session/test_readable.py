"""How our own errors end a script, and do not end a prompt."""

from __future__ import annotations

import sys

import pytest

from xptrain.errors import UsageError
from xptrain.session import readable


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
