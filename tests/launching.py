"""Launches of Python scripts: most of them forked from a server that has Keras and JAX imported.

`python script.py` imports for seconds before its first line, and the suite launches more than a hundred. A
fork server (`tests/scripts/fork_server.py`) is started for a worker of pytest with the first launch, and ends
with the worker. Its children are like new processes, but have the server's seed of hashes and its addresses
in memory; so some tests launch really, with `real=True`. With REAL_LAUNCHES=1 in pytest's environment all do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

SERVER = Path(__file__).parent / "scripts" / "fork_server.py"
# What nothing reads while it is imported in the server. Every other setting must be the server's own.
READ_LATER = ("XPTRAIN_", "MLFLOW_", "SLURM_", "PYTEST_", "COLUMNS", "DIE", "PLANT")
MOST_SERVERS = 2


class Launched:
    """A child of a fork server, with what the tests use of `subprocess.Popen`.

    Args:
        args: Its command.
        status: Where the server tells its id, then its return code.
        stdout: What it says.
        stderr: The same.
    """

    def __init__(self, args: Sequence[str], status: IO[bytes], stdout: IO[str], stderr: IO[str]) -> None:
        self.args, self.stdout, self.stderr = args, stdout, stderr
        self.returncode: int | None = None
        self._status = status
        self._said = ["", ""]
        self._readers: list[threading.Thread] = []
        self.pid = self._number()

    def _number(self) -> int:
        line = self._status.readline()
        if not line:
            raise RuntimeError(f"the fork server has ended, and nobody knows how {self.args} did")
        return int(line)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            for number in range(2):
                self._readers.append(threading.Thread(target=self._read, args=(number,), daemon=True))
                self._readers[number].start()
        for reader in self._readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0, deadline - time.monotonic()))
        return self._said[0], self._said[1]

    def _read(self, number: int) -> None:
        stream = (self.stdout, self.stderr)[number]
        with stream:
            self._said[number] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        # A reader closes its stream itself.
        if not self._readers:
            self.stdout.close()
            self.stderr.close()
        self.wait()


Process: TypeAlias = "subprocess.Popen[str] | Launched"


class Server:
    """A fork server; it ends when its socket is closed, so with this process at the latest.

    Args:
        env: Its environment.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair()
        self._turn = threading.Lock()
        command = [sys.executable, str(SERVER)]
        with theirs:
            # Pipes for output, so that Python's streams are those of a process that writes to pipes.
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, env=env, stdin=theirs.fileno(), stdout=pipe, stderr=pipe, text=True
            )

    def launch(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, new_session: bool
    ) -> Launched:
        """Fork a child for a command."""
        order = {"arguments": command[1:], "env": dict(env), "cwd": str(cwd), "new_session": new_session}
        text = json.dumps(order).encode() + b"\n"
        # One order at a time, until it is answered: a read must not go on into the next one's descriptors.
        with self._turn:
            with ExitStack() as theirs:
                ours, handed = [], [theirs.enter_context(open(os.devnull)).fileno()]
                for _ in range(3):
                    reader, writer = os.pipe()
                    theirs.callback(os.close, writer)
                    ours.append(reader)
                    handed.append(writer)
                sent = socket.send_fds(self._control, [text], handed)
                self._control.sendall(text[sent:])
            out, errors, status = map(os.fdopen, ours, ("r", "r", "rb"), (-1, -1, 0))
            try:
                return Launched(command, status, out, errors)
            except RuntimeError as error:
                error.add_note(self.process.communicate()[1])
                raise

    def stop(self) -> None:
        """End the server; children that still run are left."""
        self._control.close()
        self.process.communicate()


_servers: dict[frozenset[tuple[str, str]], Server] = {}
_starting = threading.Lock()


def server_for(env: Mapping[str, str]) -> Server | None:
    """Return the server whose imports read the same settings as a launch's would, or None."""
    if sys.platform != "linux" or os.environ.get("REAL_LAUNCHES"):
        return None
    early = {name: value for name, value in env.items() if not name.startswith(READ_LATER)}
    with _starting:
        key = frozenset(early.items())
        if key not in _servers and len(_servers) < MOST_SERVERS:
            _servers[key] = Server(early)
        return _servers.get(key)


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    new_session: bool = False,
    real: bool = False,
) -> Process:
    """Begin `python script.py …` or `python -c …`; its output is read from pipes, as text.

    Args:
        command: The command; its first word is this interpreter.
        env: The whole environment.
        cwd: Where it runs.
        new_session: Give it a session and a process group of its own.
        real: Start an interpreter, whatever it costs.
    """
    assert command[0] == sys.executable
    assert command[1] == "-c" or not command[1].startswith("-")
    server = None if real else server_for(env)
    if server is not None:
        return server.launch(command, env, cwd, new_session)
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=new_session, **pipe
    )


def run(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float, real: bool = False
) -> subprocess.CompletedProcess[str]:
    """Start a command and wait for its end; it is killed when it takes longer than `timeout` seconds."""
    with start(command, env=env, cwd=cwd, real=real) as process:
        return finish(process, timeout)


def finish(process: Process, timeout: float) -> subprocess.CompletedProcess[str]:
    """Wait for a process and return what it said; it is killed when it takes longer."""
    try:
        out, errors = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, errors)
