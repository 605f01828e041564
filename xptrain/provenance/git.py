"""What git says about a folder: commit, branch, changes.

Reads only, and works without git, outside a repository and before the first commit.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from xptrain.secrets.redact import REDACTED, is_secret_file, redact_text

_SECONDS: Final = 10.0
# A repository's config may name programs to run; reading it must not start them (L12).
_SAFE: Final = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "core.hooksPath=/dev/null")
_DIFF: Final = ("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")


def toplevel(folder: Path) -> tuple[Path | None, str]:
    """Return the root of the repository that holds a folder, or None and why there is none."""
    text, why = _git(folder, "rev-parse", "--show-toplevel")
    return (Path(text.rstrip("\n")), "") if text else (None, why or "not inside a work tree")


def describe(root: Path) -> dict[str, Any]:
    """Describe a repository.

    Args:
        root: Its top folder.

    Returns:
        `commit` (None before the first one), `branch` (None when detached), `dirty` (tracked files
        differ from the commit; None when git could not say), `remote` (without credentials) and
        `notes` on what git could not tell.
    """
    commit, _ = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    branch, _ = _git(root, "symbolic-ref", "--short", "-q", "HEAD")
    remote, _ = _git(root, "config", "--get", "remote.origin.url")
    changed, why = _git(root, "status", "--porcelain", "-z", "--untracked-files=no")
    return {
        "commit": (commit or "").strip() or None,
        "branch": (branch or "").strip() or None,
        "dirty": None if changed is None else bool(changed),
        "remote": redact_text(remote.strip())[0] if remote else None,
        "notes": [why] if changed is None else [],
    }


def untracked(root: Path, files: list[Path]) -> list[Path]:
    """Return those of `files` (under `root`) that no commit or diff of the repository would hold."""
    names = [path.relative_to(root).as_posix() for path in files]
    if not names:
        return []
    listed, _ = _git(root, "--literal-pathspecs", "ls-files", "-z", "--", *names)
    known = set((listed or "").split("\0"))
    return [path for path, name in zip(files, names, strict=True) if name not in known]


def diff(root: Path, max_bytes: int) -> tuple[str, list[str]]:
    """Return the changes of tracked files since the last commit, without secrets.

    Args:
        root: Top folder of the repository.
        max_bytes: More than this many bytes are cut off, and a note says so.

    Returns:
        The diff (empty when nothing changed) and notes: what was cut, what was redacted.
    """
    head, _ = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    base = head.strip() if head else (_git(root, "hash-object", "-t", "tree", "/dev/null")[0] or "").strip()
    text, why = _git(root, "diff", *_DIFF, base, "--", max_bytes=max_bytes)
    if text is None:
        return "", [why]
    notes = []
    if len(text.encode("utf-8", "surrogateescape")) >= max_bytes:
        text = text[: text.rfind("\n") + 1]
        notes.append(f"diff cut at {max_bytes} bytes")
    sections = []
    for section in re.split(r"(?m)^(?=diff --git )", text):
        header = section.partition("\n")[0]
        names = re.findall(r'"?[ab]/(.+?)"?(?= "?b/|$)', header)
        if any(is_secret_file(name) for name in names):
            sections.append(f"{header}\n{REDACTED}\n")
            notes.append(f"left out of the diff: {names[-1]}")
            continue
        shown, redacted = redact_text(section, names[-1] if names else "")
        sections.append(shown)
        notes.extend(f"redacted in the diff of {names[-1] if names else '?'}: {what}" for what in redacted)
    return "".join(sections), notes


def _git(folder: Path, *arguments: str, max_bytes: int | None = None) -> tuple[str | None, str]:
    """Return the output of a git command, or None and the reason."""
    command = ["git", "-C", str(folder), *_SAFE, *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        return None, f"git cannot be started: {error.strerror}"
    late = threading.Timer(_SECONDS, process.kill)
    late.start()
    with process:
        assert process.stdout is not None
        out = process.stdout.read() if max_bytes is None else process.stdout.read(max_bytes)
        cut = max_bytes is not None and len(out) >= max_bytes
        if cut:
            process.kill()
        _, err = process.communicate()
    if not late.is_alive():
        return None, f"git {arguments[0]} took more than {_SECONDS:.0f} s"
    late.cancel()
    if cut:
        return out.decode("utf-8", "surrogateescape"), ""
    if process.returncode:
        reason = err.decode("utf-8", "replace").strip().splitlines()
        return None, reason[0] if reason else f"git {arguments[0]} ended with {process.returncode}"
    return out.decode("utf-8", "surrogateescape"), ""
