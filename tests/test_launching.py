"""A child of the fork server is like a new process: what a script sees, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import launching
from tests.launching import Launched

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or "REAL_LAUNCHES" in os.environ, reason="all launches are real"
)

SEEN = """
import json, os, random, signal, sys, threading
import keras, numpy
from jax._src import xla_bridge
found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__,
    "file": globals().get("__file__"), "package": __package__, "doc": __doc__,
    "spec": getattr(__spec__, "name", None),
    "loader": getattr(__loader__, "__name__", type(__loader__).__name__), "names": sorted(globals()),
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "cwd": os.getcwd(), "flags": str(sys.flags), "warnings": sys.warnoptions,
    "group": os.getpgid(0) == os.getpid(), "session": os.getsid(0) == os.getpid(),
    "handlers": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "ignored": [l for l in open("/proc/self/status") if l.startswith(("SigIgn", "SigCgt", "SigBlk"))],
    "threads": [str(t.name) for t in threading.enumerate()],
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "streams": [(s.encoding, s.errors, s.line_buffering, s.isatty(), s.seekable(), s.name, s.mode)
                for s in (sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(), "xptrain": [name for name in sys.modules if name.startswith("xptrain")],
    "env": dict(os.environ), "jax": xla_bridge.backends_are_initialized(),
}
different = [os.getpid(), random.random(), numpy.random.random()]
print(json.dumps([found, different]))
"""


def ran(command: list[str], cwd: Path, real: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
    return launching.run(
        [sys.executable, *command], env={**os.environ, **env}, cwd=cwd, timeout=120, real=real
    )


def begun(code: str, cwd: Path, **more: Any) -> Launched:
    process = launching.start([sys.executable, "-c", code], env=os.environ, cwd=cwd, **more)
    assert isinstance(process, Launched)
    return process


def script(folder: Path, text: str) -> str:
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "script.py").write_text(text)
    return "scripts/script.py"


@pytest.mark.parametrize("how", ["script", "code"])
def test_it_sees_what_a_new_process_sees(tmp_path: Path, how: str) -> None:
    path = script(tmp_path, SEEN)
    command = [path] if how == "script" else ["-c", SEEN]
    forked, again, real = (
        json.loads(ran([*command, "--one", "2"], tmp_path, real=real, XPTRAIN_HOME="elsewhere").stdout)
        for real in (False, False, True)
    )
    assert forked[0] == again[0]
    assert forked[0] == real[0]
    assert forked[0]["env"]["XPTRAIN_HOME"] == "elsewhere"
    assert not forked[0]["jax"]
    assert all(a != b for a, b in zip(forked[1], again[1], strict=True))


ENDS = {
    "well": "print('done')",
    "error": "def deep():\n    raise ZeroDivisionError('on purpose')\ndeep()",
    "syntax": "print('never')\n1 +",
    "code": "import sys\nsys.exit(3)",
    "text": "import sys\nsys.exit('a word')",
    "at once": "import os\nos._exit(9)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.5), print('late'))).start()\n"
    "threading._register_atexit(print, 'threads can still work')",
    "at exit": "import atexit\natexit.register(print, 'at exit')\nprint('first')\n1 / 0",
    "hook": "import sys\n"
    "def hook(kind, error, trace):\n"
    "    print(trace.tb_frame.f_code.co_filename, trace.tb_next)\n"
    "    raise SystemExit(5)\n"
    "sys.excepthook = hook\n"
    "1 / 0",
}


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_a_new_process_ends(tmp_path: Path, how: str) -> None:
    path = script(tmp_path, ENDS[how])
    forked, real = (ran([path], tmp_path, real=real) for real in (False, True))
    expected = {"code": 3, "at once": 9, "killed": -9, "terminated": -15, "interrupted": -2, "hook": 5}
    assert forked.returncode == expected.get(how, int(how in ("error", "syntax", "text", "at exit")))
    assert vars(forked) == vars(real)


def test_it_is_signalled_waited_for_and_read_as_a_child(tmp_path: Path) -> None:
    code = "import sys, time\nprint('begun', flush=True)\ntime.sleep(100)"
    with begun(code, tmp_path, new_session=True) as process:
        assert process.stdout.readline() == "begun\n"
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.1)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("", "")
        assert process.poll() == process.wait() == -signal.SIGTERM
        # Too late, and no error.
        process.kill()


def test_two_run_at_the_same_time(tmp_path: Path) -> None:
    code = "import sys\nprint('begun', flush=True)\nwhile {}: pass"
    with begun(code.format(True), tmp_path) as one, begun(code.format(False), tmp_path) as two:
        assert two.communicate(timeout=60)[0] == "begun\n"
        assert one.stdout.readline() == "begun\n"
        assert (one.poll(), two.poll()) == (None, 0)
        one.kill()


ALONE = """
import os, signal, sys
from pathlib import Path
from tests import launching

process = launching.start([sys.executable, "-c", "import time; time.sleep(100)"], env=os.environ, cwd=Path())
print(process.pid, *[server.process.pid for server in launching._servers.values()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_ends_with_its_pytest_and_its_children_go_on(tmp_path: Path) -> None:
    done = ran(["-c", ALONE], tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child, server = map(int, done.stdout.split())
    try:
        deadline = time.monotonic() + 60
        while runs(server):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_other_settings_that_imports_read_have_a_server_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_servers", {})
    monkeypatch.setattr(launching, "Server", dict)
    first: Any = launching.server_for({"A": "1", "XPTRAIN_HOME": "a"})
    assert first == {"A": "1"}
    assert launching.server_for({"A": "1", "DIE": "b"}) is first
    assert launching.server_for({"A": "1", "JAX_ENABLE_X64": "1"}) not in (first, None)
    # More than that are not started.
    assert launching.server_for({"A": "1", "JAX_ENABLE_X64": "0"}) is None
    assert len(launching._servers) == launching.MOST_SERVERS


TRAINED = """
import keras, numpy as np, xptrain
from tests.examples import X, Y, dropout_model, variable_digests
keras.utils.set_random_seed(3)
model = dropout_model()
history = xptrain.Trainer(model, seed=5).fit(X, Y, batch_size=8, epochs=2, verbose=0).history
print(sorted(variable_digests(model).items()), history, np.linalg.svd(X.astype("float64") @ X.T)[0].tobytes())
"""


def test_it_computes_the_bits_of_a_new_process(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINED)
    forked, real = (ran([path], tmp_path, real=real) for real in (False, True))
    assert forked.returncode == 0, forked.stderr
    assert len(forked.stdout) > 1000
    assert forked.stdout == real.stdout
