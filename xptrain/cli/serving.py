"""`xptrain ui`: MLflow's own server on this project's store."""

from __future__ import annotations

import errno
import os
import socket
import sys

from xptrain.cli import console
from xptrain.errors import TrackerError, UsageError
from xptrain.tracking.finding import all_runs, home
from xptrain.tracking.stores import check_sqlite, mask, resolve_store, sqlite_path, unmask

_FIRST_PORT, _PORTS = 5000, 50
# The training view: a fresh browser opens another one.
_VIEW = "/?workflowType=machine_learning"


def serve(host: str, port: int | None) -> None:
    """Serve the store of the newest run; this process becomes MLflow's server.

    Raises:
        TrackerError: There is no store yet, or it cannot be read.
        UsageError: The port is taken.
    """
    runs = all_runs(home())
    uri = unmask(runs[-1].info.tracking_uri) if runs else resolve_store(None, home()).uri
    if uri.startswith(("http://", "https://")):
        console.out().print(f"this project's runs are on a server: {mask(uri)}{_VIEW}", soft_wrap=True)
        return
    if uri.startswith("sqlite:"):
        database = sqlite_path(uri)
        if not database.exists():
            raise TrackerError(
                "there is no tracking store to show yet",
                expected=f"the database {database}",
                found="no file",
                remedy="start a run first, or go to the folder in which it was started",
            )
        check_sqlite(database)
    artifacts = runs[-1].info.artifact_location if runs else None
    artifacts = artifacts or (home() / "artifacts").as_uri()
    chosen = _free_port(host, port)
    console.out().print(f"MLflow:    http://{host}:{chosen}{_VIEW}", soft_wrap=True)
    console.out().print(f"store:     {mask(uri)}", soft_wrap=True)
    console.out().print(f"artifacts: {artifacts}", soft_wrap=True)
    console.out().print("It takes some seconds to start. Ctrl-C stops it.", style="dim")
    sys.stdout.flush()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        host,
        "--port",
        str(chosen),
        "--workers",
        "1",
    ]
    # By the environment, not as arguments: a password in the address is nobody's to see in `ps`.
    env = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": artifacts,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    os.execve(sys.executable, command, env)


def _free_port(host: str, port: int | None) -> int:
    wanted = [port] if port is not None else range(_FIRST_PORT, _FIRST_PORT + _PORTS)
    reason = ""
    for number in wanted:
        try:
            with socket.create_server((host, number)):
                return number
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno != errno.EADDRINUSE:
                break
    shown = str(port) if port is not None else f"{_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1}"
    raise UsageError(
        f"MLflow cannot listen on {host}, port {shown}",
        found=reason,
        remedy="give another --port (or --host)",
    )
