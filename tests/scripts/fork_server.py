"""Imports what trainers import, then forks a process for each launch that `tests.launching` sends.

A child leaves `serve` and falls out of this script's end, so that Python ends it as it ends any script. The
forks are sound because no JAX backend and no thread of Python has been started; OpenBLAS and jemalloc, which
have threads of their own, end and start them around a fork. xptrain is not imported here: what it draws or
notes at its import, such as the name of the process, must be each child's own.
"""

import builtins
import json
import os
import random
import select
import socket
import sys
import threading
import types
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.machinery import BuiltinImporter, SourceFileLoader
from pathlib import Path
from typing import Any

# With what they import themselves, all that a run of xptrain uses and that takes long.
PRELOADED = ("keras", "orbax.checkpoint", "blake3", "psutil")
POLL_S = 0.01


def preload() -> dict[str, str]:
    """Import; returns the environment variables that the imports have set."""
    before = dict(os.environ)
    for name in PRELOADED:
        import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    assert not sys.modules["jax._src.xla_bridge"].backends_are_initialized()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each order; returns, in the children alone, the order and the standard streams.

    Args:
        control: Where orders come from, a line of JSON each, with four descriptors: the child's standard
            streams and a pipe that is told its id and, when it has ended, its return code. Nobody at the
            other end any more: the server ends.
    """
    running: dict[int, int] = {}
    while True:
        # A child's end is polled for: a handler of SIGCHLD would be one more thing for children to undo.
        if select.select([control], [], [], POLL_S if running else None)[0]:
            text, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4)
            if not text:
                os._exit(0)
            while not text.endswith(b"\n"):
                text += control.recv(1 << 16)
            *streams, status = descriptors
            with warnings.catch_warnings():
                # From 3.12 on Python counts the threads of OpenBLAS, too.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                for descriptor in (status, *running.values()):
                    os.close(descriptor)
                control.close()
                return json.loads(text), streams
            for descriptor in streams:
                os.close(descriptor)
            running[pid] = status
            tell(status, pid)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = running.pop(ended[0])
            tell(status, os.waitstatus_to_exitcode(ended[1]))
            os.close(status)


def tell(status: int, number: int) -> None:
    # Whoever started it may not wait for it.
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % number)


def become(
    order: dict[str, Any], streams: list[int], added: dict[str, str]
) -> tuple[types.ModuleType, bytes, str]:
    """Make this process what `python …` is before its first line.

    The seed of hashes is the server's: only a real launch has another one.

    Args:
        order: `arguments` (after the interpreter), `env`, `cwd` and `new_session`.
        streams: Descriptors of its standard streams.
        added: Environment variables that imports set.

    Returns:
        Its `__main__`, what is to be run in it, and the name of that in tracebacks.
    """
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["new_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update({**added, **order["env"]})
    # Both were seeded at their import.
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.orig_argv = [sys.executable, *order["arguments"]]
    first, *others = order["arguments"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __loader__=BuiltinImporter)
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *others[1:]], ""
        return main, others[0].encode(), "<string>"
    sys.argv, sys.path[0] = [first, *others], os.path.dirname(os.path.realpath(first))
    file = os.path.join(order["cwd"], first.removeprefix("./"))
    main.__dict__.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    return main, Path(file).read_bytes(), file


if __name__ == "__main__":
    added = preload()
    # Standard input is the socket; the children get another one in its place.
    main, text, name = become(*serve(socket.socket(fileno=os.dup(0))), added)
    try:
        exec(compile(text, name, "exec"), main.__dict__)
    except BaseException as error:
        # The script's traceback begins with the script; Python itself does all the rest.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        raise
