"""The code of an attempt: with and without git, imported files, comment edits, secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from xptrain.provenance.source import digest_source
from xptrain.secrets.redact import REDACTED

Git = Callable[..., str]
Python = Callable[..., str]

TRAIN = """
import json, sys
import helper
from pkg import part
from xptrain.provenance.source import capture_source
source = capture_source(max_diff_bytes=int(sys.argv[1]))
print(json.dumps([source.record, source.artifacts]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text("LR = 0.1\n")
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "part.py").write_text("X = 1\n")
    (folder / "not_imported.py").write_text("Y = 1\n")
    return folder


def capture(python: Python, project: Path, cap: int = 1 << 20) -> tuple[dict, dict]:
    return json.loads(python("", str(project / "train.py"), str(cap), cwd=project))


def commit_all(git: Git, project: Path) -> str:
    git(project, "init")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "all")
    return git(project, "rev-parse", "HEAD").strip()


def test_outside_a_repository_all_imported_files_are_kept(python: Python, project: Path) -> None:
    record, artifacts = capture(python, project)
    assert record["git"]["commit"] is None and "not a git repository" in record["git"]["notes"][0]
    assert set(record["files"]) == {"train.py", "helper.py", "pkg/__init__.py", "pkg/part.py"}
    assert set(artifacts) == {f"files/{name}" for name in record["files"]}
    assert artifacts["files/train.py"] == TRAIN
    assert record["script"] == str(project / "train.py") and record["cwd"] == str(project)


def test_without_git_installed(python: Python, project: Path) -> None:
    text = python("", str(project / "train.py"), "100", cwd=project, PATH="/nowhere")
    record, artifacts = json.loads(text)
    assert "git cannot be started" in record["git"]["notes"][0]
    assert "files/helper.py" in artifacts


def test_a_repository_without_commits(python: Python, project: Path, git: Git) -> None:
    git(project, "init")
    git(project, "add", "helper.py")
    record, artifacts = capture(python, project)
    assert (record["git"]["commit"], record["git"]["branch"], record["git"]["dirty"]) == (None, "main", True)
    assert "+LR = 0.1" in artifacts["diff.patch"]
    assert "train.py" in record["untracked"] and "helper.py" not in record["untracked"]


def test_a_clean_repository(python: Python, project: Path, git: Git) -> None:
    commit = commit_all(git, project)
    record, artifacts = capture(python, project)
    assert (record["git"]["commit"], record["git"]["branch"], record["git"]["dirty"]) == (
        commit,
        "main",
        False,
    )
    assert set(artifacts) == {"files/train.py"} and record["untracked"] == []


def test_changes_and_untracked_and_ignored_imports(python: Python, project: Path, git: Git) -> None:
    (project / ".gitignore").write_text("pkg/\n.xptrain/\n")
    commit_all(git, project)
    (project / "helper.py").write_text("LR = 0.2\n")
    git(project, "checkout", "-q", "--detach")
    record, artifacts = capture(python, project)
    assert record["git"]["dirty"] is True and record["git"]["branch"] is None
    assert "-LR = 0.1\n+LR = 0.2\n" in artifacts["diff.patch"]
    assert record["untracked"] == ["pkg/__init__.py", "pkg/part.py"]
    assert artifacts["files/pkg/part.py"] == "X = 1\n"


def test_a_large_diff_is_cut_and_said(python: Python, project: Path, git: Git) -> None:
    commit_all(git, project)
    (project / "not_imported.py").write_text("".join(f"x{n} = {n}\n" for n in range(100_000)))
    record, artifacts = capture(python, project, cap=5000)
    assert 4000 < len(artifacts["diff.patch"]) <= 5000 and artifacts["diff.patch"].endswith("\n")
    assert "diff cut at 5000 bytes" in record["notes"]
    assert record["git"]["dirty"] is True


def test_secrets_are_in_no_record(python: Python, project: Path, git: Git) -> None:
    (project / ".env").write_text("HF_TOKEN=old0secret\n")
    (project / "pkg" / "part.py").write_text("X = 1\n")
    commit_all(git, project)
    git(project, "remote", "add", "origin", "https://bob:hunter2secret@example.com/x.git")
    (project / ".env").write_text("HF_TOKEN=new0secret\n")
    (project / "helper.py").write_text('LR = 0.2\nAPI_KEY = "diff0secret"\n')
    git(project, "rm", "-q", "--cached", "pkg/part.py")
    (project / "pkg" / "part.py").write_text('password = "file0secret"\n')
    text = python("", str(project / "train.py"), "100000", "--token", "argv0secret", cwd=project)
    assert "0secret" not in text and "hunter2secret" not in text
    record, artifacts = json.loads(text)
    assert "LR = 0.2" in artifacts["diff.patch"]
    assert any("left out of the diff: .env" in note for note in record["notes"])
    assert any("helper.py: API_KEY" in note for note in record["notes"])
    assert f'password = "{REDACTED}"' in artifacts["files/pkg/part.py"]
    assert record["argv"][-1] == REDACTED
    assert record["git"]["remote"] == f"https://{REDACTED}@example.com/x.git"


def test_a_secret_module_is_digested_not_copied(python: Python, project: Path) -> None:
    (project / "secrets.py").write_text('WIFI = "abc0def"\n')
    (project / "helper.py").write_text("import importlib.util, sys\nimport secrets as mine\n")
    text = python("", str(project / "train.py"), "100", cwd=project)
    record, artifacts = json.loads(text)
    assert "secrets.py" in record["files"] and "files/secrets.py" not in artifacts
    assert "abc0def" not in text
    assert any("secrets.py" in note for note in record["notes"])


def test_installed_packages_inside_the_project_are_not_its_code(python: Python, project: Path) -> None:
    paths = ["venv/lib", "node_modules", ".xptrain/x", "lib/site-packages"]
    for folder, name in zip(paths, ("a", "b", "c", "d"), strict=True):
        (project / folder).mkdir(parents=True)
        (project / folder / f"dep_{name}.py").write_text("Z = 1\n")
    (project / "venv" / "pyvenv.cfg").write_text("")
    (project / "helper.py").write_text(
        f"import sys\nsys.path += [{', '.join(repr(str(project / p)) for p in paths)}]\n"
        "import dep_a, dep_b, dep_c, dep_d\n"
    )
    record, _ = capture(python, project)
    assert set(record["files"]) == {"train.py", "helper.py", "pkg/__init__.py", "pkg/part.py"}


def test_python_dash_m_finds_the_folder_above_the_package(python: Python, project: Path) -> None:
    (project / "pkg" / "main.py").write_text(TRAIN)
    record, _ = json.loads(python("", "-m", "pkg.main", "100", cwd=project))
    assert record["module"] == "pkg.main"
    assert {"pkg/main.py", "helper.py"} <= set(record["files"])


def test_without_a_script(python: Python, project: Path) -> None:
    code = "import json, xptrain.provenance.source as s; print(json.dumps(s.capture_source().record))"
    record = json.loads(python(code, cwd=project))
    assert record["script"] is None and record["files"] == {}


def test_a_diff_driver_of_the_repository_is_not_started(
    python: Python, project: Path, git: Git, tmp_path: Path
) -> None:
    (project / ".gitattributes").write_text("*.py diff=evil\n")
    commit_all(git, project)
    mark = tmp_path / "started"
    git(project, "config", "diff.evil.command", f"touch {mark}; true")
    git(project, "config", "diff.evil.textconv", f"touch {mark}; cat")
    git(project, "config", "core.fsmonitor", f"touch {mark}; true")
    git(project, "config", "diff.mnemonicPrefix", "true")
    (project / "helper.py").write_text("LR = 0.3\n")
    _, artifacts = capture(python, project)
    assert "+LR = 0.3" in artifacts["diff.patch"] and "--- a/helper.py" in artifacts["diff.patch"]
    assert not mark.exists()


def test_a_comment_edit_keeps_the_code_digest() -> None:
    old = digest_source(b'def f(x):\n    """Doc."""\n    return x + 1\n')
    comment = digest_source(b'# hello\ndef f(x):\n    """Other doc."""\n\n    return (x + 1)\n')
    changed = digest_source(b'def f(x):\n    """Doc."""\n    return x + 2\n')
    assert old["code"] == comment["code"] != changed["code"]
    assert old["digest"] != comment["digest"]


def test_a_file_that_is_no_python_has_digests_too() -> None:
    assert digest_source(b"def (") == {"digest": digest_source(b"def (")["digest"]} | {
        "code": digest_source(b"def (")["digest"]
    }
