"""Run Keras's own tests twice, as they are and routed through `xptrain.Trainer`, and compare.

    python -m tests.keras_own [--keep FOLDER]

Every test that passes on plain Keras must pass routed, but for the exceptions below. The tests come from the
installed wheel: trainers/trainer_test.py, the callbacks' tests, models/model_test.py. The exit code is 1
otherwise.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800
# The first two assert, for the short last chunk of an epoch, the index that a full one would end with: with 7
# batches and steps_per_execution=3 the hook is told of batch 8. Ours is told of batch 6, the last there is.
# The third asserts that a model's variables are empty in batch hooks. Ours hold the newest state there, so
# that it can be read by any way, also through another model that holds this one; no array is held twice.
EXCEPTIONS = (
    "test_steps_per_execution_steps_count",
    "test_steps_per_execution_steps_count_unknown_dataset_size",
    "test_fit_eval_flow_for_jax_model_weights",
)
# Keras's test suite has this helper in a conftest.py that is not in the wheel.
CONFTEST = """
import keras
import pytest

def skip_if_backend(given, reason):
    return pytest.mark.skipif(keras.backend.backend() == given, reason=reason)
"""


def copy_tests(folder: Path) -> None:
    """Copy Keras's tests out of the wheel; inside it they could not have a conftest of ours."""
    import keras

    source = Path(keras.__file__).parent / "src"
    files = [source / "trainers/trainer_test.py", source / "models/model_test.py"]
    for file in [*files, *sorted((source / "callbacks").glob("*_test.py"))]:
        shutil.copy(file, folder)
    (folder / "conftest.py").write_text(CONFTEST)


def run(folder: Path, routed: bool) -> dict[str, str]:
    """Run the tests and return passed, failed or skipped by test."""
    report = folder / f"{'routed' if routed else 'plain'}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.keras_own.routed", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "--tb=line", f"--junitxml={report}", str(folder)]
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": str(ROOT),
        "XPTRAIN_ROUTED": str(int(routed)),
    }
    with (folder / f"{report.stem}.log").open("w") as log:
        subprocess.run(
            command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=LIMIT_S, check=False
        )
    return outcomes(report)


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test in a JUnit report that this program had written."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return found


def is_exception(test: str) -> bool:
    """Say whether a test is one of the exceptions, whatever its parameters."""
    name = test.rpartition(".")[2]
    parameter = r"(_\d+_\w+)?"
    return any(re.fullmatch(known + parameter, name) for known in EXCEPTIONS)


def main() -> int:
    """Compare both sides and say what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path, help="folder for the tests and their logs")
    keep = parser.parse_args().keep
    folder = (keep or Path(tempfile.mkdtemp(prefix="keras-own-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    copy_tests(folder)
    plain, ours = (run(folder, routed) for routed in (False, True))
    wanted = [test for test, outcome in plain.items() if outcome == "passed"]
    lost = [test for test in wanted if ours.get(test) != "passed"]
    unexpected = [test for test in lost if not is_exception(test)]
    known = len(lost) - len(unexpected)
    print(
        f"{len(wanted)} of Keras's own tests pass on plain Keras; routed, {len(wanted) - len(lost)} of them"
    )
    print(f"{known} differ as known: {', '.join(EXCEPTIONS)} (each with its parameters)")
    for test in unexpected:
        print(f"LOST {test}: {ours.get(test, 'not run')}")
    print(f"logs in {folder}")
    return 1 if unexpected or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
