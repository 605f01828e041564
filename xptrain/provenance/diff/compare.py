"""Compares the manifests of two attempts: what differs, and whether it can move bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from xptrain.errors import ChangedError
from xptrain.provenance.diff import code, place
from xptrain.provenance.diff.difference import Category, Difference, Severity, check_allow, split
from xptrain.provenance.diff.text import items, show
from xptrain.provenance.summary import difference_table

Section = Mapping[str, Any]
_MOST_NAMED: Final = 3


def compare(before: Section, after: Section) -> list[Difference]:
    """Compare two manifests.

    Args:
        before: Manifest of the attempt whose checkpoint is restored.
        after: Manifest of this attempt.

    Returns:
        The differences, those that move bits first. A section that either manifest lacks (devices before
        the first fit, for example) is not compared.

    Example:
        >>> compare({"seed": 0}, {"seed": 1})[0].category
        'config'
    """
    found: list[Difference] = []
    for name, function in _SECTIONS.items():
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None:
            found += function(old, new)
    found += code.compare_code(before, after)
    found = place.relax_host(found, before, after)
    return sorted(found, key=lambda d: d.severity != "refuse")


def refuse(differences: Sequence[Difference], allow: Iterable[str] = ()) -> None:
    """Raise when something that moves bits differs and was not allowed.

    Args:
        differences: What `compare` returned.
        allow: Categories the user lets pass, see `difference.CATEGORIES`.

    Raises:
        ChangedError: Its text is a table of both sides, with the `--allow` that would let each pass.
        UsageError: `allow` has a name that is no category.
    """
    refused, _ = split(differences, allow)
    if not refused:
        return
    names = sorted({d.category for d in refused} | check_allow(allow))
    count = "1 thing that moves bits" if len(refused) == 1 else f"{len(refused)} things that move bits"
    table = difference_table(differences, check_allow(allow))
    # The first line is what stays of it, as the reason of the attempt.
    shown = ", ".join(map(str, refused[:_MOST_NAMED]))
    more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
    raise ChangedError(
        f"{count} changed since this run was started: {shown}{more}\n\n{table}\n",
        remedy=f"put it back as it was, or accept other bits with --allow {','.join(names)}",
    )


def _seed(old: Any, new: Any) -> list[Difference]:
    return [Difference("config", "seed", show(old), show(new), "refuse")] if old != new else []


def _config(old: Section, new: Section) -> list[Difference]:
    return [Difference("config", f"config.{n}", show(a), show(b), "refuse") for n, a, b in items(old, new)]


def _packages(old: Section, new: Section) -> list[Difference]:
    found = [
        Difference("packages", name, show(a), show(b), "refuse")
        for name, a, b in items(old["bit_movers"], new["bit_movers"])
    ]
    movers = {*old["bit_movers"], *new["bit_movers"]}
    others = [(n, a, b) for n, a, b in items(old["installed"], new["installed"]) if n not in movers]
    if others:
        note = "they move bits only if your data or model code uses them: " + ", ".join(
            f"{n} {show(a)} -> {show(b)}" for n, a, b in others[:12]
        )
        found.append(Difference("packages", "other packages", "", f"{len(others)} changed", "tell", note))
    a, b = old["python"], new["python"]
    if a != b:
        minor = a["version"].split(".")[:2] != b["version"].split(".")[:2]
        serious = minor or a["implementation"] != b["implementation"]
        texts = [f"{side['implementation']} {side['version']}" for side in (a, b)]
        found.append(Difference("packages", "Python", texts[0], texts[1], "refuse" if serious else "tell"))
    return found


def _data(old: Section, new: Section) -> list[Difference]:
    found = []
    if old["digest"] != new["digest"]:
        changed = [
            f"{name} {_leaf(a)} -> {_leaf(b)}" for name, a, b in _leaf_items(old["leaves"], new["leaves"])
        ]
        note = f"changed: {', '.join(changed[:6])}" + (
            f" and {len(changed) - 6} more" if len(changed) > 6 else ""
        )
        found.append(Difference("data", "data", old["digest"][:12], new["digest"][:12], "refuse", note))
    return found


def _order(old: Section, new: Section) -> list[Difference]:
    return [Difference("data", f"data order: {n}", show(a), show(b), "refuse") for n, a, b in items(old, new)]


def _fit(old: Section, new: Section) -> list[Difference]:
    found = []
    for name, a, b in items(old, new):
        category: Category = "epochs" if name in ("epochs", "initial_epoch") else "config"
        severity: Severity = "tell" if name == "verbose" else "refuse"
        found.append(Difference(category, f"fit {name}", show(a), show(b), severity))
    return found


def _callbacks(old: Sequence[Section], new: Sequence[Section]) -> list[Difference]:
    """Callbacks by position and class; their settings are compared, never overwritten."""
    names = [" ".join(str(callback["name"]) for callback in side) for side in (old, new)]
    if names[0] != names[1]:
        return [Difference("callbacks", "callbacks", names[0] or "none", names[1] or "none", "refuse")]
    return [
        Difference(
            "callbacks", f"{a['name']}.{n}", show(x), show(y), "refuse", "this attempt's value is used"
        )
        for a, b in zip(old, new, strict=True)
        for n, x, y in items(a.get("settings") or {}, b.get("settings") or {})
    ]


def _hazards(old: Sequence[Section], new: Sequence[Section]) -> list[Difference]:
    known = {hit["id"] for hit in old if hit["severity"] != "info"}
    return [
        Difference(
            "hazards",
            hit["id"],
            "not there",
            hit["severity"],
            "refuse",
            f"{hit['title']} ({hit['evidence']})",
        )
        for hit in new
        if hit["severity"] != "info" and hit["id"] not in known
    ]


def _leaf_items(old: Section, new: Section) -> list[tuple[str, Any, Any]]:
    names = dict.fromkeys([*old, *new])
    return [(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def _leaf(leaf: Section | None) -> str:
    return (
        "nothing"
        if leaf is None
        else f"{leaf['dtype'] or leaf['kind']}{tuple(leaf['shape'])} {leaf['digest'][:8]}"
    )


_SECTIONS: Final[Mapping[str, Any]] = {
    "seed": _seed,
    "config": _config,
    "packages": _packages,
    "data": _data,
    "order": _order,
    "fit": _fit,
    "callbacks": _callbacks,
    "hazards": _hazards,
    **place.SECTIONS,
}
