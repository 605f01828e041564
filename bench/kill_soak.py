"""Kill runs at random moments, resume them, and compare each with a run that was never stopped.

    python -m bench.kill_soak [--kills 200] [--seed 0]

Each run is the training script of the resume law's tests (tests/laws/scripts/train.py: dropout, noise, batch
normalization, callbacks with a state, validation), fed by arrays, loader processes or a generator, with a
checkpoint each epoch or every 3 steps. It is killed by SIGKILL up to 10 times, each time after a random time:
while Python imports, while the run opens, restores, compiles, trains, validates or saves. Then it is left to
finish, and every bit is compared: variables, generators, callbacks, History, predictions, points in MLflow.
Two runs go on side by side. Exits with 8 if anything differs.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.laws.processes import Lab, differences

KILLS_PER_RUN = 10
EPOCHS = 24
KINDS = tuple(product(("arrays", "processes", "generator"), ("steps", "epochs")))
EXIT_DIFFERS = 8


@dataclass
class Tally:
    """What happened."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumes: int = 0
    mismatches: list[str] = field(default_factory=list)


def arguments(kind: tuple[str, str]) -> list[str]:
    data, policy = kind
    return ["--data", data, "--policy", policy, "--epochs", str(EPOCHS)]


def steps_of(lab: Lab, key: str) -> int:
    """Return how many steps all attempts of a run have trained so far."""
    steps = lab.out(key) / "steps.txt"
    return len(steps.read_text().splitlines()) if steps.exists() else 0


def where(lab: Lab, key: str, before: int) -> str:
    """Say how far the attempt that was killed had come."""
    if not lab.folder(key).run_json.exists():
        return "before the run was opened"
    return "before its first step" if steps_of(lab, key) == before else "after its first step"


def soak(lab: Lab, name: str, kind: tuple[str, str], kills: int, seconds: float, rng: random.Random) -> Tally:
    """Kill runs of one kind until there were that many kills; each is left to finish and compared."""
    tally = Tally()
    while not tally.mismatches and (left := kills - sum(tally.kills.values())):
        key = f"{name}-{tally.runs}"
        tally.runs += 1
        for _ in range(min(left, KILLS_PER_RUN)):
            if not kill(lab, key, kind, rng.uniform(0, seconds), tally):
                break
        if not tally.mismatches:
            finish(lab, key, kind, tally)
    return tally


def kill(lab: Lab, key: str, kind: tuple[str, str], after: float, tally: Tally) -> bool:
    """Begin an attempt and kill it after so many seconds; returns whether it was killed before its end."""
    is_there = lab.folder(key).run_json.exists()
    before = steps_of(lab, key)
    with lab.start(key, *arguments(kind), resume=is_there) as process:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        _, said = process.communicate()
    tally.resumes += is_there
    if process.returncode == -signal.SIGKILL:
        tally.kills[where(lab, key, before)] += 1
        return True
    if process.returncode:
        tally.mismatches.append(f"{key}: exit code {process.returncode}: {said[-2000:]}")
    return False


def finish(lab: Lab, key: str, kind: tuple[str, str], tally: Tally) -> None:
    """Let a run come to its end, and compare it with the straight one of its kind."""
    is_there = lab.folder(key).run_json.exists()
    last = lab.train(key, *arguments(kind), resume=is_there)
    tally.resumes += is_there
    if last.returncode:
        tally.mismatches.append(f"{key}: exit code {last.returncode}: {last.stderr[-2000:]}")
        return
    lab.wait_for_status(key, "FINISHED")
    tally.mismatches += [f"{key}: {text}" for text in differences(lab, key, "-".join(kind))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    whole = -(-args.kills // KILLS_PER_RUN)
    kinds = [KINDS[number % len(KINDS)] for number in range(whole)]
    total = Tally()
    began = time.monotonic()
    os.environ["KERAS_BACKEND"] = "jax"
    with tempfile.TemporaryDirectory(prefix="kill-soak-") as folder, ThreadPoolExecutor(2) as two:
        lab = Lab(Path(folder), real=True)

        def straight(kind: tuple[str, str]) -> float:
            since = time.monotonic()
            done = lab.train("-".join(kind), *arguments(kind))
            assert done.returncode == 0, done.stderr
            lab.wait_for_status("-".join(kind), "FINISHED")
            return time.monotonic() - since

        seconds = dict(zip(dict.fromkeys(kinds), two.map(straight, dict.fromkeys(kinds)), strict=True))
        left = args.kills
        jobs = []
        for number, kind in enumerate(kinds):
            kills, left = min(KILLS_PER_RUN, left), left - min(KILLS_PER_RUN, left)
            rng = random.Random(f"{args.seed} {number}")
            jobs.append(two.submit(soak, lab, f"soak-{number}", kind, kills, seconds[kind], rng))
        for number, job in enumerate(jobs):
            tally = job.result()
            total.kills += tally.kills
            total.runs += tally.runs
            total.resumes += tally.resumes
            total.mismatches += tally.mismatches
            print(f"{number + 1} of {whole}: {'-'.join(kinds[number])}, {dict(tally.kills)}", flush=True)
            for text in tally.mismatches:
                print(text, flush=True)
    for name, count in total.kills.items():
        print(f"{count:5d} kills {name}")
    kills, mismatches = sum(total.kills.values()), len(total.mismatches)
    print(f"kills {kills}, resumes {total.resumes}, mismatches {mismatches}, of {total.runs} runs")
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(EXIT_DIFFERS if total.mismatches else 0)


if __name__ == "__main__":
    main()
