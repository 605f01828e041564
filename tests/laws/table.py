"""The tables of `docs/what-is-exact.md`, from what the tests of the laws found.

    python -m tests.laws.table

runs them in the large profile and writes the tables anew. In any other run `told` compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what-is-exact.md"
BEGIN, END = "<!-- tables: written by `make table` -->\n", "<!-- end of the tables -->\n"
TESTS = ("tests/laws/test_matrix.py", "tests/laws/test_sources.py")
# Both are read now: tests run without such variables.
LARGE = os.environ.get("XPTRAIN_MATRIX") == "large"
_OUT = os.environ.get("XPTRAIN_TABLE")
IS_WRITTEN = _OUT is not None


def told(section: str, row: str, grade: str) -> None:
    """Note the grade of a row; a test calls this when it has cut and resumed it.

    Args:
        section: Heading of its table.
        row: What was trained.
        grade: The grade that a run has.
    """
    where = os.environ["PYTEST_CURRENT_TEST"].partition("[")[0].partition(" ")[0]
    line = f"| {row} | {grade} | `{where}` |"
    if _OUT:
        with Path(_OUT).open("a") as file:
            file.write(json.dumps([section, row, line]) + "\n")
    else:
        assert line in tables().get(section, {}).values(), f"not in {PAGE.name}: {line}; run `make table`"


def tables() -> dict[str, dict[str, str]]:
    """Return the lines of the page by row, by heading."""
    found: dict[str, dict[str, str]] = {}
    for line in _parts()[1].splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line[3:], {})
        elif line.startswith("| ") and not line.startswith("| what"):
            rows[line[2:].partition(" | ")[0]] = line
    return found


def _parts() -> tuple[str, str, str]:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    body, _, tail = rest.partition(END)
    return head, body, tail


def main() -> int:
    """Run the tests and write the page; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        environment = {**os.environ, "XPTRAIN_MATRIX": "large", "XPTRAIN_TABLE": str(out)}
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", *TESTS, *sys.argv[1:]]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code:
            return code
        found: dict[str, dict[str, str]] = {}
        for text in out.read_text().splitlines():
            section, row, line = json.loads(text)
            found.setdefault(section, {})[row] = line
    body = "".join(
        f"\n## {section}\n\n| what is trained, cut and resumed | grade | tested in |\n|---|---|---|\n"
        + "".join(f"{line}\n" for line in rows.values())
        for section, rows in found.items()
    )
    head, _, tail = _parts()
    PAGE.write_text(f"{head}{BEGIN}{body}\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
