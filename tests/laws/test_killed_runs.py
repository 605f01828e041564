"""The resume law with real SIGKILLs: killed anywhere, resumed, equal to the run that was never stopped.

Each chain is one run that is killed several times. The moments are drawn from a fixed seed and printed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import pytest

from tests.laws.processes import Lab, differences, was_killed

EPOCHS, STEPS = 8, 10
TEST_BATCHES = 3  # 40 validation samples in batches of 16
PHASES = ("before the first checkpoint", "epoch", "validation", "save", "committed", "ledger-written")


def moment(phase: str, rng: random.Random) -> dict[str, Any]:
    """Draw when to die, counted from the start of the attempt; each costs at most two epochs."""
    if phase == "before the first checkpoint":
        return {"phase": "batch", "nth": rng.randint(1, 2)}
    if phase == "epoch":
        return {"phase": "batch", "nth": rng.randint(STEPS + 1, 2 * STEPS - 1)}
    if phase == "validation":
        return {"phase": "validation", "nth": rng.randint(1, 2 * TEST_BATCHES)}
    if phase == "save":
        return rng.choice(
            [{"phase": "save", "nth": 1, "delay": rng.uniform(0, 0.15)}, {"phase": "written", "nth": 1}]
        )
    return {"phase": phase, "nth": rng.randint(1, 2)}


def draw_chains() -> dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Return key → (policy, moments): every phase at least three times, first ones first."""
    rng = random.Random(20)
    others = list(PHASES[1:]) * 4
    rng.shuffle(others)
    chains = {}
    for number in range(5):
        policy = "steps" if number % 2 else "epochs"
        phases = ([PHASES[0]] if number < 4 else []) + [others.pop() for _ in range(4)]
        chains[f"chain-{number}"] = (policy, [(phase, moment(phase, rng)) for phase in phases])
    return chains


CHAINS = draw_chains()


def test_the_moments_cover_every_phase() -> None:
    drawn = Counter(phase for _, moments in CHAINS.values() for phase, _ in moments)
    assert sum(drawn.values()) >= 20
    assert all(drawn[phase] >= 3 for phase in PHASES), drawn


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A home in which a run that is never stopped has finished."""
    made = Lab(tmp_path_factory.mktemp("laws"))
    straight = Lab(made.home, real=True).train("straight")
    assert straight.returncode == 0, straight.stderr
    made.wait_for_status("straight", "FINISHED")
    return made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", CHAINS)
def test_bit_identical_after_kills_cases_5_6_7_14_29_33(
    lab: Lab, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    policy, moments = CHAINS[key]
    if key == "chain-0":
        # As users start them, like the straight run: each attempt has its own hashes and addresses.
        lab = Lab(lab.home, real=True)
    said = []
    for number, (phase, die) in enumerate(moments):
        process = lab.train(key, "--policy", policy, die=die, resume=number > 0)
        assert was_killed(process), f"{phase} {die}: exit {process.returncode}\n{process.stderr[-3000:]}"
        seconds = lab.wait_for_status(key, "KILLED")
        said.append(f"{key} kill {number + 1}: {phase} {die}, KILLED in MLflow after {seconds:.1f} s")
    process = lab.train(key, "--policy", policy, resume=True)
    assert process.returncode == 0, process.stderr
    lab.wait_for_status(key, "FINISHED")
    with capfd.disabled():
        print("\n" + "\n".join(said), file=sys.stderr)

    # Bit for bit: every variable, generator and callback state; History; predictions; every point once. Each
    # attempt went on from its checkpoint, one step after another; the last one to the end.
    assert differences(lab, key, "straight") == []
    assert lab.result(key)["iterations"] == EPOCHS * STEPS
    trained = lab.steps(key)
    tags = lab.tags(key)
    last = len(moments) + 1
    assert trained[last][-1] == EPOCHS * STEPS
    if policy == "steps":
        # Saves every 3 steps: no attempt but those that died at once repeats more than an epoch.
        assert int(tags[f"xptrain.attempt.{last}.from_step"]) > 0
    assert tags["xptrain.grade"] == "exact"


def test_the_comparison_can_fail(lab: Lab) -> None:
    process = lab.train("shorter", "--epochs", "2")
    assert process.returncode == 0, process.stderr
    lab.wait_for_status("shorter", "FINISHED")
    found = " ".join(differences(lab, "shorter", "straight"))
    assert all(text in found for text in ("other tensors", "another host", "another result", "other points"))
