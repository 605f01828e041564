"""L9: what is wrong with the local set-up is said at once, without mlflow and without any server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from xptrain.errors import TrackerError
from xptrain.tracking import stores
from xptrain.tracking.stores import check_store, mask, resolve_store, unmask


def test_the_default_store_is_absolute_and_in_the_home(home: Path) -> None:
    store = check_store(None, home)
    assert (
        store.uri == f"sqlite:///{home}/mlflow.db"
        and store.artifact_location == (home / "artifacts").as_uri()
    )


def test_the_variable_is_honoured_and_an_argument_goes_first(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000/")
    assert resolve_store(None, home) == stores.Store("http://tracker:5000", None)
    assert resolve_store("postgresql+psycopg2://u@h/db", home).artifact_location is not None


def test_a_relative_database_becomes_absolute(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_store("sqlite:///runs.db", home).uri == f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize(
    "uri",
    [
        "./mlruns",
        "file:///tmp/mlruns",
        "htp://x",
        "http://",
        "http://h:port",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_bad_uri_fails_at_once_with_a_remedy(home: Path, uri: str) -> None:
    with pytest.raises(TrackerError, match=r"(?s)cannot be used.*expected.*remedy"):
        check_store(uri, home)


def test_a_dead_server_is_no_set_up_error_and_costs_no_time(home: Path) -> None:
    begun = time.monotonic()
    assert check_store("http://127.0.0.1:9", home).artifact_location is None
    assert time.monotonic() - begun < 1


def test_a_home_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackerError, match=r"cannot be written"):
        check_store(None, tmp_path / "file" / "home")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_home_is_said(home: Path) -> None:
    home.chmod(0o555)
    try:
        with pytest.raises(TrackerError, match="cannot be written"):
            check_store(None, home)
    finally:
        home.chmod(0o755)


def test_a_file_that_is_no_database_is_said(home: Path) -> None:
    (home / "mlflow.db").write_text("these are not the tables you look for")
    with pytest.raises(TrackerError, match="not a SQLite database"):
        check_store(None, home)
    (home / "mlflow.db").write_text("")
    check_store(None, home)
    (home / "mlflow.db").unlink()
    (home / "mlflow.db").mkdir()
    with pytest.raises(TrackerError, match="cannot be opened"):
        check_store(None, home)


def test_passwords_stay_out_of_records_and_come_back_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = "postgresql://ada:s3cret@db:5432/mlflow"
    assert mask(uri) == "postgresql://ada:***@db:5432/mlflow" and unmask("http://h:1") == "http://h:1"
    assert mask("http://h:5000/a@b") == "http://h:5000/a@b"
    with pytest.raises(TrackerError, match="password"):
        unmask(mask(uri))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert unmask(mask(uri)) == uri


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://u:ab/cd@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p@ss@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("https://token@h/x", "https://***@h/x"),
        ("postgresql://h/db?user=u&password=s3cret", "postgresql://h/db?user=u&password=***"),
        ("http://h:5000/a@b", "http://h:5000/a@b"),
        ("sqlite:////tmp/a@b:c.db", "sqlite:////tmp/a@b:c.db"),
    ],
)
def test_no_secret_of_an_address_is_shown(uri: str, shown: str) -> None:
    assert mask(uri) == shown


def test_a_password_is_put_back_from_what_the_script_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    complete = "http://alice:hunter2@host:5000"
    assert unmask(mask(complete), complete) == complete
    with pytest.raises(TrackerError, match="password of the tracking store"):
        unmask(mask(complete), "http://alice:hunter2@other:5000")
