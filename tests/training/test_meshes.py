"""Meshes in one process, on 8 virtual CPU devices: shardings are kept, recorded and restored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import launching
from xptrain.checkpoint.folder import Folder

SCRIPT = Path(__file__).parent / "scripts" / "meshes.py"


class Lab:
    """Runs the script in processes of their own, with one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XPTRAIN_HOME": str(self.home)}
        command = [sys.executable, str(SCRIPT), *arguments]
        return launching.run(command, env=environment, cwd=self.home, timeout=300)

    def train(self, *arguments: str) -> dict[str, Any]:
        done = self.start(*arguments)
        lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
        assert done.returncode == 0 and lines, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(lines[-1].removeprefix("TOLD "))
        return told

    def manifest(self, key: str, attempt: int) -> dict[str, Any]:
        path = self.home / "runs" / key / "manifest" / f"attempt-{attempt}.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def straight(lab: Lab) -> dict[str, dict[str, Any]]:
    return {kind: lab.train(kind, "--key", f"straight-{kind}") for kind in ("data", "model")}


@pytest.mark.parametrize("kind", ["data", "model"])
def test_the_bits_of_keras_and_one_compilation(
    lab: Lab, straight: dict[str, dict[str, Any]], kind: str
) -> None:
    ours, theirs = straight[kind], lab.train(kind, "--keras")
    assert ours["digests"] == theirs["digests"]
    assert ours["history"] == theirs["history"]
    assert ours["shardings"] == theirs["shardings"]
    assert ours["compiled"] == 1
    assert ours["grade"].startswith("exact on the same topology")


def test_shardings_are_enforced_and_recorded(lab: Lab, straight: dict[str, dict[str, Any]]) -> None:
    shardings = straight["model"]["shardings"]
    sharded = [key for key, (_, spec) in shardings.items() if "model" in str(spec)]
    # The variables themselves, and their two slots each.
    assert len(sharded) == 6
    assert all("0.dense" in key for key in sharded)
    manifest = lab.manifest("straight-model", 1)
    assert manifest["topology"]["mesh_text"] == "batch=2,model=4"
    assert manifest["topology"]["devices"] == 8
    recorded = {v["key"]: [v["sharding"]["mesh"], v["sharding"]["spec"]] for v in manifest["variables"]}
    assert recorded == shardings


@pytest.mark.parametrize("kind", ["data", "model"])
def test_same_topology_is_resumed_bit_for_bit_case_26(
    lab: Lab, straight: dict[str, dict[str, Any]], kind: str
) -> None:
    key = f"cut-{kind}"
    assert lab.start(kind, "--key", key, "--stop", "6").returncode == 1
    resumed = lab.train(kind, "--resume", key)
    assert resumed["digests"] == straight[kind]["digests"]
    assert resumed["shardings"] == straight[kind]["shardings"]
    assert resumed["history"] == straight[kind]["history"]
    assert resumed["compiled"] == 1
    assert resumed["step"] == 12


def test_other_topology_is_refused_or_allowed_case_26(lab: Lab) -> None:
    assert lab.start("model", "--key", "moved", "--stop", "6").returncode == 1
    refused = lab.start("model", "--resume", "moved", "--devices", "2")
    assert refused.returncode == 5
    assert "topology" in refused.stderr
    assert "Traceback" not in refused.stderr
    allowed = lab.train("model", "--resume", "moved", "--devices", "4", "--allow", "topology,devices")
    assert allowed["grade"].startswith("approximate")
    assert {str(mesh) for mesh, _ in allowed["shardings"].values()} == {"{'batch': 2, 'model': 2}"}
    # Straight into the new shardings, not a bit changed.
    saved = {
        leaf.path: leaf.digest
        for receipt in Folder(lab.home / "runs" / "moved" / "checkpoints").receipts()
        for leaf in receipt.leaves
        if receipt.step == 4
    }
    began = {key: digest for key, digest in allowed["began"].items() if not key.startswith("metrics/")}
    assert len(began) > 20
    assert began.items() <= saved.items()


def test_a_layout_that_matches_nothing_is_an_error(lab: Lab) -> None:
    done = lab.start("wrong", "--key", "wrong")
    assert done.returncode == 2
    assert "'hiden/bias'" in done.stderr
    assert "hidden/bias" in done.stderr
    assert "Traceback" not in done.stderr


def test_fused_steps_on_a_mesh(lab: Lab) -> None:
    straight = lab.train("model", "--fused", "--key", "fused")
    assert lab.start("model", "--fused", "--key", "fused-cut", "--stop", "6").returncode == 1
    resumed = lab.train("model", "--fused", "--resume", "fused-cut")
    assert resumed["digests"] == straight["digests"]
    assert straight["compiled"] == 1
