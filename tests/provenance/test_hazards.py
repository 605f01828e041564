"""Known hazards: versions, flags, and a canary that can fail. Evidence: docs/design/hazards.md."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

from xptrain.provenance.canary import Canary, Probe, run_canary
from xptrain.provenance.hazards import HAZARDS, YNN_FLAG, check

ROOT = Path(__file__).resolve().parents[2]
# Read now: the suite's own fixture takes away variables of ours before each test.
BAD_PYTHON = os.environ.get("XPTRAIN_BAD_JAX_PYTHON", "")
SEEDED = {"PYTHONHASHSEED": "0"}
CLEAN = Canary((), {"sum": 3}, {}, 1.0)
DIRTY = Canary(("sum",), {"sum": 2}, {"sum": (3.0, 2.0)}, 1.0)


def severities(
    env: dict[str, str], version: str, platform: str = "cpu", canary: Canary = CLEAN
) -> dict[str, str]:
    hits = check({**SEEDED, **env}, {"jaxlib": version}, platform=platform, run_canary=lambda: canary)
    return {hit.id: hit.severity for hit in hits}


@pytest.mark.parametrize("version", ["0.10.2", "0.10.2.1", "0.11.0", "0.11.2", "0.11.3.dev1"])
def test_bad_versions_are_hits_even_when_the_canary_was_lucky(version: str) -> None:
    assert severities({}, version) == {"jaxlib-cpu-wrong-sums": "wrong"}


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1", "0.10.20", "0.12.0", "0.12.0.1", ""])
def test_good_versions_are_not(version: str) -> None:
    assert severities({}, version) == {}


def test_the_flag_that_cures_is_told_unless_the_canary_errs_all_the_same() -> None:
    cured = {"XLA_FLAGS": f"{YNN_FLAG}="}
    assert severities(cured, "0.10.2") == {"jaxlib-cpu-wrong-sums": "info"}
    assert severities(cured, "0.10.2", canary=DIRTY)["jaxlib-cpu-wrong-sums"] == "wrong"
    assert severities({"XLA_FLAGS": f"{YNN_FLAG}=+reduce"}, "0.10.2") == {"jaxlib-cpu-wrong-sums": "wrong"}


def test_a_version_nobody_knows_is_caught_by_the_canary() -> None:
    hits = check(SEEDED, {"jaxlib": "9.9"}, run_canary=lambda: DIRTY)
    assert [hit.id for hit in hits] == ["canary-wrong-sums"]
    assert hits[0].evidence == "canary: sum gave 3 instead of 2 (call 2)"


def test_gpu_flags() -> None:
    assert severities({}, "0.10.1", "gpu") == {
        "gpu-nondeterministic-ops": "wandering",
        "gpu-autotuning": "info",
    }
    assert severities({"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}, "0.10.1", "gpu") == {}
    only_ops = {"XLA_FLAGS": "--xla_gpu_exclude_nondeterministic_ops"}
    assert severities(only_ops, "0.10.1", "gpu") == {"gpu-autotuning": "info"}
    assert severities({"XLA_FLAGS": "--xla_gpu_deterministic_ops=false"}, "0.10.1", "gpu") != {}
    assert "gpu-eager-kernels" in severities({}, "0.11.1", "gpu")


def test_the_hash_seed_is_only_told() -> None:
    for env in ({}, {"PYTHONHASHSEED": "random"}):
        assert [(hit.id, hit.severity) for hit in check(env, {})] == [("hash-seed", "info")]


def test_the_table_is_complete() -> None:
    assert len({hazard.id for hazard in HAZARDS}) == len(HAZARDS)
    assert all(hazard.source.startswith("https://") and hazard.remedy for hazard in HAZARDS)


def test_the_canary_can_fail() -> None:
    answers = itertools.chain([2.0] * 4, [2.5], itertools.repeat(2.0))
    found = run_canary(
        {"rare": Probe(lambda: next(answers), 2.0), "good": Probe(lambda: 1.0, 1.0)}, seconds=0.0
    )
    assert found.wrong == ("rare",) and found.calls == {"rare": 5, "good": 8}
    assert found.found == {"rare": (2.5, 2.0)}


def test_a_probe_that_does_not_race_is_asked_once_and_nan_is_wrong() -> None:
    found = run_canary(
        {"once": Probe(lambda: float("nan"), 1.0), "same": Probe(lambda: 1.0, 1.0, races=False)}
    )
    assert found.wrong == ("once",) and found.calls["same"] == 1


def test_the_canary_stops_in_time() -> None:
    found = run_canary({"fast": Probe(lambda: 1.0, 1.0)}, seconds=10, max_calls=50)
    assert found.calls["fast"] == 50 and found.ms < 5000


def test_this_jaxlib_is_good() -> None:
    assert run_canary().wrong == ()


START = """
import json, jaxlib
from xptrain.provenance.canary import run_canary
from xptrain.provenance.hazards import check
import os
hits = check(dict(os.environ), {"jaxlib": jaxlib.__version__}, run_canary=run_canary)
print(json.dumps({hit.id: hit.severity for hit in hits}))
"""


@pytest.mark.skipif(not BAD_PYTHON, reason="XPTRAIN_BAD_JAX_PYTHON names no Python with a bad jaxlib")
@pytest.mark.parametrize(("flags", "expected"), [("", "wrong"), (f"{YNN_FLAG}=", "info")])
def test_a_really_bad_jaxlib_is_caught(flags: str, expected: str) -> None:
    env = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([BAD_PYTHON, "-c", START], env=env, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["jaxlib-cpu-wrong-sums"] == expected
    assert ("canary-wrong-sums" in found) is (expected == "wrong")
