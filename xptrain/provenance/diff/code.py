"""Compares code: the program's hash weighs most, then what Python sees, then the bytes of the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xptrain.provenance.diff.difference import Category, Difference, Severity
from xptrain.provenance.diff.text import show

Section = Mapping[str, Any]


def compare_code(before: Section, after: Section) -> list[Difference]:
    """Compare the code of two manifests.

    Args:
        before: Manifest with `program` {step name: hash of the lowered step} and `code`.
        after: The other one.

    Returns:
        Refused: a changed program; and, unless a `train` program is known on both sides, source that
        Python reads differently. Told: any other edit, another commit, script or argument.
    """
    old, new = before.get("program") or {}, after.get("program") or {}
    # On another mesh the same code is another program, which then says nothing about the code.
    moved = before.get("topology") != after.get("topology")
    both = [name for name in old if name in new]
    kind: Category = "topology" if moved else "code"
    found = [
        Difference(kind, f"{name} step (lowered program)", old[name][:12], new[name][:12], "refuse")
        for name in both
        if old[name] != new[name]
    ]
    code, other = before.get("code"), after.get("code")
    if code is not None and other is not None:
        versions = [side.get("packages", {}).get("python", {}).get("version", "") for side in (before, after)]
        # Python's syntax tree differs between its minor versions, so that `code` cannot be compared then.
        field = "code" if versions[0].split(".")[:2] == versions[1].split(".")[:2] else "digest"
        proven = not moved and any(name.startswith("train") for name in both)
        found += _files(code["files"], other["files"], field, proven)
        found += _git(code, other)
    return found


def _files(old: Section, new: Section, field: str, proven: bool) -> list[Difference]:
    found = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if a is None or b is None:
            there = ["imported" if side else "not imported" for side in (a, b)]
            found.append(Difference("code", name, there[0], there[1], "tell"))
        elif a["digest"] != b["digest"]:
            severity: Severity = "tell"
            if a[field] == b[field]:
                note = "comments, docstrings or layout only"
            elif proven:
                note = "the compiled steps are compared by themselves"
            else:
                severity, note = "refuse", "the compiled steps are not known yet"
            found.append(Difference("code", name, a["digest"][:12], b["digest"][:12], severity, note))
    return found


def _git(old: Section, new: Section) -> list[Difference]:
    pairs = [
        ("git commit", old["git"].get("commit"), new["git"].get("commit")),
        ("git branch", old["git"].get("branch"), new["git"].get("branch")),
        ("script", old["script"], new["script"]),
        ("interpreter", old["interpreter"], new["interpreter"]),
    ]
    found = [Difference("code", name, show(a), show(b), "tell") for name, a, b in pairs if a != b]
    if old["argv"][1:] != new["argv"][1:]:  # a resumed script may be named by another path
        texts = [" ".join(side["argv"][1:]) for side in (old, new)]
        found.append(Difference("code", "arguments", show(texts[0]), show(texts[1]), "tell"))
    return found
