"""Machine, environment and flags, and what a resumed process is started with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from xptrain.errors import UsageError
from xptrain.provenance.environment import environment, environment_changes, keras_config, resume_environment
from xptrain.provenance.flags import is_true, unknown_flags, with_flags, xla_flags
from xptrain.provenance.machine import capture_machine, parse_cpuinfo, xla_threads

Python = Callable[..., str]
X86 = "processor\t: 0\nmodel name\t: Xeon 1\nflags\t\t: sse avx2 fma\n\nprocessor\t: 1\nmodel name\t: Other\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n\n"


def test_features_are_read_from_cpuinfo() -> None:
    assert parse_cpuinfo(X86) == ("Xeon 1", "avx2 fma sse")
    assert parse_cpuinfo(ARM) == ("0xd0c", "asimd fp")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is a Linux notion")
def test_case_32_usable_cores_follow_the_affinity(python: Python) -> None:
    code = """
import json, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from xptrain.provenance.machine import capture_machine
print(json.dumps(capture_machine()["cores"]))
"""
    cores = json.loads(python(code, NPROC=""))
    assert cores["usable"] == cores["threads"] == 1
    assert cores["logical"] == os.cpu_count()


def test_threads_follow_the_variables_of_xla() -> None:
    assert xla_threads(8, {}) == 8
    assert xla_threads(8, {"NPROC": "2"}) == 2
    assert xla_threads(8, {"NPROC": "2", "PJRT_NPROC": "3"}) == 3
    assert xla_threads(8, {"NPROC": "many"}) == 8
    assert capture_machine({"NPROC": "5"})["cores"]["threads"] == 5


def test_what_is_recorded_and_what_never_is() -> None:
    env = {
        "XLA_FLAGS": "--xla_a=1",
        "JAX_ENABLE_X64": "1",
        "KERAS_BACKEND": "jax",
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": "src",
        "CUDA_VISIBLE_DEVICES": "0",
        "NPROC": "2",
        "TF_VAR_password": "abc",
        "TF_TOKEN_app": "abc",
        "JAX_API_KEY": "abc",
        "HOME": "/root",
        "HF_TOKEN": "abc",
    }
    assert set(environment(env)) == set(list(env)[:8])


def test_a_resumed_process_gets_what_moved_bits_and_keeps_the_rest() -> None:
    recorded = {"XLA_FLAGS": "--xla_a=1", "PYTHONPATH": "src", "NPROC": "2", "JAX_PROCESS_ID": "0"}
    current = {
        "HOME": "/root",
        "HF_TOKEN": "abc",
        "PYTHONPATH": "other",
        "OMP_NUM_THREADS": "1",
        "JAX_PROCESS_ID": "3",
        "JAX_COORDINATOR_ADDRESS": "host:1",
    }
    assert resume_environment(recorded, current) == {
        "HOME": "/root",
        "HF_TOKEN": "abc",
        "PYTHONPATH": "src",
        "XLA_FLAGS": "--xla_a=1",
        "NPROC": "2",
        "JAX_PROCESS_ID": "3",
        "JAX_COORDINATOR_ADDRESS": "host:1",
    }
    assert ("OMP_NUM_THREADS", "1", "") in environment_changes(recorded, current)
    assert environment(resume_environment(recorded, current)).items() >= {
        ("NPROC", "2"),
        ("PYTHONPATH", "src"),
    }


@pytest.mark.parametrize(("now", "then", "used"), [("7", "3", "7"), ("0,1", "3", "3"), (None, "3", "3")])
def test_a_scheduler_may_give_other_devices_but_not_another_number(
    now: str | None, then: str, used: str
) -> None:
    current = {} if now is None else {"CUDA_VISIBLE_DEVICES": now}
    assert resume_environment({"CUDA_VISIBLE_DEVICES": then}, current)["CUDA_VISIBLE_DEVICES"] == used


def test_a_redacted_value_is_not_set() -> None:
    assert resume_environment({"JAX_X": "https://<redacted>@h"}, {}) == {}


def test_keras_settings_are_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text('{"floatx": "float64"}')
    assert keras_config({"KERAS_HOME": str(tmp_path)}) == {"floatx": "float64"}
    (tmp_path / "keras.json").write_text("{")
    assert keras_config({"KERAS_HOME": str(tmp_path)}) == {}
    assert keras_config({"KERAS_HOME": str(tmp_path / "none")}) == {}


def test_flags_are_read_as_xla_reads_them(tmp_path: Path) -> None:
    assert xla_flags({}) == {}
    assert xla_flags({"XLA_FLAGS": "--a=1 --b --a=2 --c="}) == {"--a": "2", "--b": "true", "--c": ""}
    (tmp_path / "flags").write_text("--a=1\n--b\n")
    assert xla_flags({"XLA_FLAGS": str(tmp_path / "flags")}) == {"--a": "1", "--b": "true"}
    assert [is_true(v) for v in ("true", "1", "TRUE", "false", "0", None)] == [True] * 3 + [False] * 3
    env = with_flags({"XLA_FLAGS": "--a=1 --b", "HOME": "/"}, {"--a": "2", "--c": "x y", "--d": ""})
    assert env["HOME"] == "/"
    assert xla_flags(env) == {"--a": "2", "--b": "true", "--c": "x y", "--d": ""}


def test_an_unknown_flag_is_found_before_it_aborts_the_process() -> None:
    asked = ["--xla_no_such_flag=1", "--xla_gpu_deterministic_ops=true", "--xla_nor_this"]
    assert unknown_flags(asked, os.environ) == ["--xla_no_such_flag", "--xla_nor_this"]
    assert unknown_flags([], {}) == []


def test_a_flag_with_a_bad_value_is_an_error_of_its_own() -> None:
    with pytest.raises(UsageError, match="could not be tried"):
        unknown_flags(["--xla_force_host_platform_device_count=many"], os.environ)
