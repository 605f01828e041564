"""The demo can fail: a second run with another seed is reported as different."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cli.conftest import Shell

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def test_a_run_with_another_seed_is_not_bit_identical(shell: Shell) -> None:
    out = shell.folder / "out"
    arguments = ("--epochs", "8", "--second-seed", "1", "--out", str(out))
    done = shell.start(sys.executable, str(DEMO), *arguments)
    assert done.returncode == 8, done.stdout + done.stderr
    assert "bit-identical: no" in done.stdout
    assert "killed with SIGKILL after step" in done.stdout
    # It resumed all the same.
    assert "resumed #2" in done.stdout


def test_a_folder_of_somebody_else_is_not_deleted(shell: Shell) -> None:
    mine = shell.folder / "out"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    done = shell.start(sys.executable, str(DEMO), "--out", str(mine))
    assert done.returncode == 1
    assert "was not made by this demo" in done.stderr
    assert (mine / "thesis.txt").exists()
