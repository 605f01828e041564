"""Compiled programs are kept for this user and machine alone, and change no bit; flags come in time."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from xptrain.errors import UsageError
from xptrain.provenance import flags, machine
from xptrain.session import compile_cache

# A CNN with dropout; prints the digest of its final state, and what the run says of its cache.
SCRIPT = """
import json, os, sys
import keras
import numpy as np
import xptrain
from tests.examples import variable_digests
from xptrain.provenance import devices
from xptrain.session.delivery import Delivery
from xptrain.state.digest import digest_mapping

# Nothing is delivered: a recorder would share the cores, and be waited for.
for name in ("start", "keep", "wait"):
    setattr(Delivery, name, lambda self: None)
if "early" in sys.argv:
    keras.ops.ones(3) + 1
with xptrain.run("cache", seed=1, deterministic="deterministic" in sys.argv) as run:
    started = devices.backend_started()
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype("float32")
    run.fit(model, x, x[:, :3, 0, 0], batch_size=8, epochs=1, verbose=0)
print(json.dumps({
    "state": digest_mapping(variable_digests(model)),
    "cache": run.manifest["compile_cache"],
    "used": run.compile_cache.used(),
    "flags": run.manifest["flags"],
    "started": started,
}))
"""
PROCESS = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "XLA_FLAGS")


def start(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Start the script as a user would, who has no cache of his own."""
    clean = {name: value for name, value in os.environ.items() if name not in PROCESS}
    clean.pop("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", None)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**clean, "XPTRAIN_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def train(home: Path, *arguments: str, **env: str) -> dict[str, Any]:
    done = start(home, *arguments, **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_process_loads_what_the_first_compiled_and_gets_the_same_bits(isolated_home: Path) -> None:
    first = train(isolated_home)
    folder = Path(first["cache"]["folder"])
    assert folder.parent == isolated_home / "compiled"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert first["used"]["hits"] == 0
    assert len(first["used"]["added"]) == first["used"]["misses"] > 5
    assert any(name.startswith("jit_train_step-") for name in first["used"]["added"])

    second = train(isolated_home)
    assert second["cache"] == first["cache"]
    assert second["used"] == {**first["used"], "hits": first["used"]["misses"], "misses": 0, "added": []}

    without = train(isolated_home, XPTRAIN_COMPILE_CACHE="0")
    assert without["cache"] == {"kept_by": "none", "folder": None}
    assert without["used"] is None
    assert first["state"] == second["state"] == without["state"]


def test_deterministic_sets_its_flags_before_jax_starts_and_records_them(isolated_home: Path) -> None:
    found = train(isolated_home, "deterministic", XLA_FLAGS="--xla_cpu_enable_fast_math=false")
    assert not found["started"]
    assert found["flags"] == {
        "--xla_cpu_enable_fast_math": "false",
        "--xla_gpu_deterministic_ops": "true",
        "--xla_gpu_exclude_nondeterministic_ops": "true",
    }


def test_deterministic_after_jax_has_started_is_refused(isolated_home: Path) -> None:
    done = start(isolated_home, "deterministic", "early")
    assert done.returncode == UsageError.exit_code
    assert "comes too late" in done.stderr
    assert not (isolated_home / "runs").exists()


def test_a_cache_of_the_user_is_left_alone(isolated_home: Path) -> None:
    # The suite has one.
    import jax

    before = jax.config.jax_compilation_cache_dir
    assert before
    found = compile_cache.use(isolated_home, pytest.fail)
    assert found.as_json() == {"kept_by": "user", "folder": before}
    assert found.used() is None
    assert jax.config.jax_compilation_cache_dir == before
    assert not isolated_home.exists()


@pytest.fixture
def pointed(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Take the suite's own cache out of sight; return the folders that JAX would be pointed to."""
    import jax

    found: list[str | None] = []
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr(compile_cache, "_ours", jax.config.jax_compilation_cache_dir)
    monkeypatch.setattr(compile_cache, "_point_to", found.append)
    return found


def test_a_folder_that_others_can_use_is_not_used(isolated_home: Path, pointed: list[str | None]) -> None:
    folder = isolated_home / "compiled" / compile_cache.fingerprint(os.environ)
    folder.mkdir(parents=True)
    folder.chmod(0o750)
    said: list[str] = []
    assert compile_cache.use(isolated_home, said.append).kept_by == "none"
    assert pointed == [None]
    assert len(said) == 1
    assert "can be used by others (mode 750, not 700)" in said[0]


def test_a_folder_of_another_user_is_not_used(
    isolated_home: Path, pointed: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    me, said = os.geteuid(), list[str]()
    assert compile_cache.use(isolated_home, said.append).kept_by == "xptrain"
    same = compile_cache.fingerprint(os.environ)
    monkeypatch.setattr(compile_cache, "fingerprint", lambda env: same)
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert compile_cache.use(isolated_home, said.append).kept_by == "none"
    assert pointed[1:] == [None]
    assert "belongs to another user" in said[0]


def test_a_link_in_the_folders_place_is_not_followed(isolated_home: Path, pointed: list[str | None]) -> None:
    folder = isolated_home / "compiled" / compile_cache.fingerprint(os.environ)
    folder.parent.mkdir(parents=True)
    elsewhere = isolated_home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    said: list[str] = []
    assert compile_cache.use(isolated_home, said.append).kept_by == "none"
    assert "is not a folder" in said[0]


@pytest.mark.parametrize("name", ["XLA_FLAGS", "NPROC", "TPU_ACCELERATOR_TYPE"])
def test_what_changes_programs_has_a_folder_of_its_own(name: str) -> None:
    assert compile_cache.fingerprint({}) == compile_cache.fingerprint({"HOME": "/"})
    assert compile_cache.fingerprint({}) != compile_cache.fingerprint({name: "77"})


def test_another_machine_and_user_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {compile_cache.fingerprint({})}
    for module, name, value in (
        (machine, "cpu_model_and_features", ("Xeon", "avx512f")),
        (socket, "gethostname", "elsewhere"),
        (platform, "machine", "riscv64"),
        (compile_cache, "version", "0.0.0"),
        (os, "geteuid", 4711),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
        found.add(compile_cache.fingerprint({}))
    assert len(found) == 6


def entry(folder: Path, name: str, content: bytes, age: float) -> Path:
    file = folder / f"{name}-cache"
    file.write_bytes(content)
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_half_an_entry_is_removed_and_whole_ones_stay(isolated_home: Path, pointed: list[str | None]) -> None:
    folder = Path(compile_cache.use(isolated_home, pytest.fail).folder or "")
    (folder / "checked").unlink()
    whole = zlib.compress(os.urandom(5000))
    half = entry(folder, "jit_half-1", whole[:3000], age=60)
    empty = entry(folder, "jit_empty-1", b"", age=60)
    kept = [
        entry(folder, "jit_whole-1", whole, age=60),
        entry(folder, "jit_zstandard-1", b"\x28\xb5\x2f\xfd123", age=60),
        entry(folder, "jit_being_written-1", whole[:3000], age=0),
    ]
    compile_cache.use(isolated_home, pytest.fail)
    assert not half.exists()
    assert not empty.exists()
    assert all(file.exists() for file in kept)


def test_beyond_the_limit_the_oldest_entries_go(
    isolated_home: Path, pointed: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(compile_cache.use(isolated_home, pytest.fail).folder or "")
    content = zlib.compress(os.urandom(1000))
    files = [entry(folder, f"jit_{age}-1", content, age) for age in (300, 100, 200)]
    monkeypatch.setattr(compile_cache, "LIMIT", 2 * len(content))
    compile_cache.use(isolated_home, pytest.fail)
    assert [file.exists() for file in files] == [False, True, True]


FALSE_ALARM = """
import sys, zlib
from pathlib import Path
import jax
from xptrain.provenance import machine
from xptrain.session import compile_cache

machine.cpu_model_and_features = lambda: ("a CPU", sys.argv[2])
compile_cache.fingerprint = lambda env: "same"
folder = Path(compile_cache.use(Path(sys.argv[1]), print).folder)
one = jax.numpy.ones(3)
jax.jit(lambda x: x @ jax.numpy.sin(x))(one)
for file in folder.glob("*-cache"):
    text = zlib.decompress(file.read_bytes())
    # A feature that no CPU has stands for the tuning hints that XLA misses where there is AVX-512.
    file.write_bytes(zlib.compress(text.replace(b"+sse2,", b"+none,").replace(b"+neon,", b"+none,")))
"""


def test_the_false_alarm_about_cpu_features_is_not_shown(isolated_home: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_"))}

    def said(features: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", FALSE_ALARM, str(isolated_home), features],
            env={**clean, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stderr

    # Whatever CPU this runs on: XLA complains of any feature that is missing.
    said("avx2")
    alarm = "Target machine feature"
    assert alarm in said("avx2")
    assert alarm not in said("avx2 avx512f")
    # A level that the user chose stays.
    assert alarm in said("avx2 avx512f", TF_CPP_MIN_LOG_LEVEL="0")


# --- flags --------------------------------------------------------------------------------------------


def test_flags_that_are_there_are_left_as_they_are() -> None:
    env = {"XLA_FLAGS": "--xla_b  --xla_gpu_deterministic_ops"}
    flags.make_deterministic(True, env)
    assert env == {"XLA_FLAGS": "--xla_b  --xla_gpu_deterministic_ops"}


def test_contrary_flags_are_refused() -> None:
    env = {"XLA_FLAGS": "--xla_gpu_exclude_nondeterministic_ops=false"}
    with pytest.raises(UsageError, match="contradict"):
        flags.make_deterministic(False, env)


def test_a_flag_that_jaxlib_does_not_know_is_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "_in_the_binary", lambda name: name == "--xla_gpu_deterministic_ops")
    asked: list[str] = []

    def unknown(names: list[str], env: object, python: str) -> list[str]:
        asked.extend(names)
        return [name.partition("=")[0] for name in names]

    monkeypatch.setattr(flags, "unknown_flags", unknown)
    env: dict[str, str] = {}
    flags.make_deterministic(False, env)
    assert env == {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
    assert asked == ["--xla_gpu_exclude_nondeterministic_ops=true"]
    monkeypatch.setattr(flags, "_in_the_binary", lambda name: False)
    with pytest.raises(UsageError, match="not possible with this jaxlib"):
        flags.make_deterministic(False, {})


def test_the_binary_tells_which_flags_are_known() -> None:
    assert flags._in_the_binary("--xla_gpu_deterministic_ops")
    assert not flags._in_the_binary("--xla_gpu_deterministic")
