"""Which tracking store a run uses, and whether it can: checked at once, without importing mlflow."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from xptrain.errors import TrackerError

if TYPE_CHECKING:
    from xptrain.tracking.folder import RunInfo
    from xptrain.tracking.tracker import Tracker

_DATABASES = ("postgresql", "mysql", "mssql")
# A password may hold "/" and "@" unescaped; digits before a "/" are a port.
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):(?!\d+(?:/|$))(.+)@")
_TOKEN = re.compile(r"(?<=^http://)[^/@:]+@|(?<=^https://)[^/@:]+@")
_IN_QUERY = re.compile(
    r"([?&](?:password|passwd|pwd|token|access_token|secret|api_?key|access_?key)=)[^&#]*", re.IGNORECASE
)
_SQLITE_HEAD = b"SQLite format 3\0"


@dataclass(frozen=True)
class Store:
    """A tracking store.

    Args:
        uri: Complete address for mlflow; a SQLite path in it is absolute.
        artifact_location: URI for the artifacts of new experiments; None lets the server decide.
    """

    uri: str
    artifact_location: str | None


def resolve_store(uri: str | None, home: Path) -> Store:
    """Say which store a run uses.

    Args:
        uri: An MLflow tracking URI, or None for `$MLFLOW_TRACKING_URI`, else `<home>/mlflow.db`.
        home: Absolute home of all runs.

    Returns:
        The store; nothing is opened or made.

    Raises:
        TrackerError: The URI is none that MLflow can use.

    Example:
        >>> resolve_store(None, Path("/data/.xptrain")).uri  # doctest: +SKIP
        'sqlite:////data/.xptrain/mlflow.db'
    """
    given = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}"
    artifacts = (home / "artifacts").as_uri()
    scheme = given.split(":", 1)[0].lower() if ":" in given else ""
    base = scheme.split("+")[0]
    if base == "sqlite":
        return Store(f"sqlite:///{sqlite_path(given)}", artifacts)
    if scheme in ("http", "https"):
        if not _host(given):
            raise _refused(given, "a server's address such as http://host:5000")
        return Store(given.rstrip("/"), None)
    if base in _DATABASES:
        return Store(given, artifacts)
    if scheme.startswith("databricks") or given == "databricks":
        return Store(given, None)
    if scheme in ("", "file"):
        raise _refused(given, "sqlite:///<path>, http(s)://… or a database; MLflow retired its file store")
    raise _refused(given, "sqlite:///<path>, http://…, https://…, postgresql://…, mysql://… or databricks")


def _host(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018 - raises when it is no port
        return parts.hostname
    except ValueError:
        return None


def _refused(uri: str, expected: str) -> TrackerError:
    return TrackerError(
        "the tracking URI cannot be used",
        expected=expected,
        found=mask(uri),
        remedy="pass another tracking_uri, or correct MLFLOW_TRACKING_URI",
    )


def sqlite_path(uri: str) -> Path:
    """Return the absolute path of a SQLite URI's database.

    Raises:
        TrackerError: The URI names no file (an in-memory database would be lost).
    """
    path = uri.split("?", 1)[0].split("://", 1)[-1].removeprefix("/")
    if not path or path == ":memory:":
        raise _refused(uri, "sqlite:///<path of a file>")
    return Path(path).absolute()


def check_store(uri: str | None, home: Path) -> Store:
    """Resolve a store and fail at once when this machine cannot use it (law L9). No server is contacted.

    Args:
        uri: As in `resolve_store`.
        home: Absolute home of all runs; made when missing.

    Returns:
        The store.

    Raises:
        TrackerError: A bad URI, a folder that cannot be written, or a file that is no SQLite database.
    """
    store = resolve_store(uri, home)
    _writable_folder(home)
    if store.uri.startswith("sqlite:"):
        check_sqlite(sqlite_path(store.uri))
    return store


def check_sqlite(path: Path) -> None:
    """Fail at once when a SQLite database cannot be opened or made (mlflow would try for 100 s).

    Args:
        path: The database file; its folder is made when missing.

    Raises:
        TrackerError: It cannot be written, or is no SQLite database.
    """
    _writable_folder(path.parent)
    try:
        if not path.exists():
            return
        with path.open("r+b") as file:
            head = file.read(len(_SQLITE_HEAD))
    except OSError as error:
        raise TrackerError(
            f"the tracking database {path} cannot be opened",
            found=error.strerror,
            remedy="make it readable and writable, or pass another tracking_uri",
        ) from error
    if head and head != _SQLITE_HEAD:
        raise TrackerError(
            f"{path} is not a SQLite database", remedy="move the file away, or pass another tracking_uri"
        )


def _writable_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            return
        reason = "Permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    raise TrackerError(
        f"the folder {path} cannot be written",
        found=reason,
        remedy="make it writable, or point XPTRAIN_HOME (or tracking_uri) elsewhere",
    )


def mask(uri: str) -> str:
    """Return a URI without its password, for run.json and messages."""
    return _IN_QUERY.sub(r"\1***", _TOKEN.sub("***@", _PASSWORD.sub(r"\1:***@", uri)))


def unmask(uri: str, given: str | None = None) -> str:
    """Return a recorded URI with its password put back.

    Args:
        uri: As recorded.
        given: The complete one, if the script gives it; else it is taken from `$MLFLOW_TRACKING_URI`.

    Raises:
        TrackerError: The variable does not hold that address.
    """
    if "***" not in uri:
        return uri
    for complete in (given or "", os.environ.get("MLFLOW_TRACKING_URI", "")):
        if mask(complete).rstrip("/") == uri:
            return complete.rstrip("/")
    raise TrackerError(
        "the password of the tracking store is not recorded",
        expected=f"{uri} with its password in MLFLOW_TRACKING_URI",
        remedy="set MLFLOW_TRACKING_URI to the complete address",
    )


def open_tracker(info: RunInfo) -> Tracker:
    """Return the tracker of a run: MLflow at its recorded address (imports mlflow, 1-3 s).

    Args:
        info: The run's identity.

    Returns:
        A tracker that has not opened anything yet.

    Raises:
        TrackerError: The address needs a password that is not at hand.
    """
    # A dead server must cost seconds, not mlflow's default of 247 s; whoever delivers tries again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from xptrain.tracking.mlflow_tracker import MlflowTracker

    return MlflowTracker(unmask(info.tracking_uri))
