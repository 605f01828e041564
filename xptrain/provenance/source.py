"""Which code ran: the script, the project's imported modules, and what git says about them."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import blake3

from xptrain.provenance import git
from xptrain.secrets.redact import is_secret_file, redact_argv, redact_text

MAX_DIFF_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 1 << 19
MAX_TOTAL_BYTES: Final = 1 << 21
# Parsing takes a second per megabyte; larger sources are generated ones, and compared by their bytes.
_MAX_PARSED_BYTES: Final = 1 << 18
_TRIES: Final = 5
# Digest of a file's bytes → digest of its code, of all files that this process has digested.
_CODE_OF: dict[str, str] = {}
_FOREIGN: Final = frozenset({"site-packages", "dist-packages", "node_modules", ".xptrain", "__pycache__"})


@dataclass(frozen=True)
class Source:
    """The code of an attempt.

    Args:
        record: JSON: `script`, `module`, `argv`, `cwd`, `interpreter`, `root`, `git`, `files`,
            `untracked`, `notes`.
        artifacts: Texts to keep, by path: `diff.patch` and `files/…` (script, files git does not hold).
    """

    record: dict[str, Any]
    artifacts: dict[str, str] = field(default_factory=dict)


def capture_source(
    *, script: Path | None = None, argv: Sequence[str] | None = None, max_diff_bytes: int = MAX_DIFF_BYTES
) -> Source:
    """Capture the script, the imported project files and the state of their repository.

    Args:
        script: The script; default: the file that `__main__` came from, or None in a notebook.
        argv: Its arguments, default `sys.argv`. Secrets in them are redacted.
        max_diff_bytes: Cap of the kept diff, in bytes.

    Returns:
        The record and the texts to keep, both without secrets.

    Example:
        >>> capture_source().record["interpreter"] == sys.executable
        True
    """
    script = script or main_script()
    cwd = Path.cwd()
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    folder = script.parent if script else cwd
    if script and spec and spec.parent:
        # `python -m package.train`: the project begins above the package.
        folder = script.parents[spec.parent.count(".") + 1]
    root, why = git.toplevel(folder)
    state: dict[str, Any] = git.describe(root) if root else {"commit": None, "notes": [why]}
    shown_argv, notes = redact_argv(list(sys.argv if argv is None else argv))
    notes = [f"redacted in the arguments: {name}" for name in notes]
    files = project_files(root or folder, script)
    stray = git.untracked(root, [f for f in files if f.is_relative_to(root)]) if root else files
    artifacts: dict[str, str] = {}
    if root:
        text, more = git.diff(root, max_diff_bytes)
        notes += more
        if text:
            artifacts["diff.patch"] = text
    kept, more = _copies([*([script] if script in files else []), *stray], root or folder)
    record = {
        "script": str(script) if script else None,
        "module": spec.name if spec else None,
        "argv": shown_argv,
        "cwd": str(cwd),
        "interpreter": sys.executable,
        "root": str(root or folder),
        "git": state,
        "files": digest_files(files, root or folder),
        "untracked": [_name(path, root or folder) for path in stray],
        "notes": notes + more,
    }
    return Source(record, {**artifacts, **kept})


def main_script() -> Path | None:
    """Return the file that this process runs, or None in a notebook, a REPL or `python -c`."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(name).resolve() if name else None
    return path if path and path.is_file() else None


def project_files(root: Path, script: Path | None) -> list[Path]:
    """Return the imported source files that belong to the project, sorted.

    Args:
        root: Top folder of the project.
        script: The script; its folder counts too, wherever it lies.

    Returns:
        Resolved paths under `root` or the script's folder that are no installed package's.
    """
    folders = {root.resolve(), *([script.resolve().parent] if script else [])}
    installed = {Path(p).resolve() for k, p in sysconfig.get_paths().items() if k != "data"}
    # A folder such as / or one that holds the interpreter is nobody's project.
    folders -= {Path("/"), *installed}
    virtual: dict[Path, bool] = {}
    found = set()
    # Thousands of modules are libraries': not one of them is looked up on disk.
    libraries = tuple({f"{path}{os.sep}" for name, path in sysconfig.get_paths().items() if "lib" in name})
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py") or name.startswith(libraries):
            continue
        path = Path(name).resolve()
        base = next((f for f in folders if path.is_relative_to(f)), None)
        if base is None or _FOREIGN.intersection(path.parts) or not path.is_file():
            continue
        inside = [p for p in path.parents if p.is_relative_to(base)]
        if any(p in installed or virtual.setdefault(p, (p / "pyvenv.cfg").exists()) for p in inside):
            continue
        found.add(path)
    return sorted(
        found | ({script.resolve()} if script and not _FOREIGN.intersection(script.parts) else set())
    )


def digest_files(files: Sequence[Path], root: Path) -> dict[str, dict[str, str]]:
    """Return for each file, by its name below `root`, the digest of its bytes and of its code.

    Two files with the same `code` differ in comments, docstrings and layout at most.
    """
    return {_name(path, root): digest_source(path.read_bytes()) for path in files}


def digest_source(data: bytes) -> dict[str, str]:
    """Return `digest` (of the bytes) and `code` (of what Python sees: no comments, layout or docstrings)."""
    digest = blake3.blake3(data).hexdigest()
    # Parsing takes most of the time that a run's source costs, and a notebook opens run after run.
    code = _CODE_OF.get(digest)
    if code is None:
        code = _CODE_OF[digest] = _digest_code(data) or digest
    return {"digest": digest, "code": code}


def _digest_code(data: bytes) -> str | None:
    if len(data) > _MAX_PARSED_BYTES:
        return None
    tree = None
    for _ in range(_TRIES):
        try:
            tree = ast.parse(data)
            break
        except SystemError:  # Python 3.11 when another thread parses at the same time
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
            break
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            del node.body[0]
    return blake3.blake3(ast.dump(tree).encode()).hexdigest()


def _copies(files: Sequence[Path], root: Path) -> tuple[dict[str, str], list[str]]:
    kept: dict[str, str] = {}
    notes = []
    total = 0
    for path in dict.fromkeys(files):
        name = _name(path, root)
        size = path.stat().st_size
        if is_secret_file(name):
            notes.append(f"not copied, its name says that it holds secrets: {name}")
        elif size > MAX_FILE_BYTES or total + size > MAX_TOTAL_BYTES:
            notes.append(f"not copied, too large ({size} bytes): {name}")
        else:
            total += size
            text, redacted = redact_text(path.read_text("utf-8", "replace"), name)
            kept[f"files/{name}"] = text
            notes += [f"redacted in {name}: {what}" for what in redacted]
    return kept, notes


def _name(path: Path, root: Path) -> str:
    """Name a file below `root`; one that lies elsewhere is named by its folder and name."""
    path, root = path.resolve(), root.resolve()
    return (
        path.relative_to(root).as_posix() if path.is_relative_to(root) else f"{path.parent.name}/{path.name}"
    )
