"""What differs between two runs, and which of it can be the cause of the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from xptrain.provenance.diff.code import compare_code
from xptrain.provenance.diff.compare import compare
from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.diff.place import SHARDING
from xptrain.provenance.diff.text import items, show

Record = Mapping[str, Any]

# Kinds of differences, the likeliest cause first, with what each is called.
TITLES: Final[Mapping[str, str]] = {
    "seed": "the seed",
    "config": "the config",
    "data": "the data",
    "order": "the order of the batches",
    "fit": "the arguments of fit",
    "callbacks": "the callbacks",
    "code": "the code",
    "packages": "the packages",
    "flags": "the XLA flags",
    "settings": "the settings of JAX or Keras",
    "environment": "the environment",
    "devices": "the machine or its devices",
    "model": "the model or its optimizer",
    "topology": "the layout over devices",
    "program": "the compiled train step",
    "weights": "the initial weights",
    "hazards": "a known hazard",
}
_RANK: Final = {kind: number for number, kind in enumerate(TITLES)}
_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "seed": ("seed",),
    "config": ("config",),
    "data": ("data",),
    "order": ("order",),
    "fit": ("fit",),
    "callbacks": ("callbacks",),
    "packages": ("packages",),
    "flags": ("flags",),
    "settings": ("jax_config", "keras_config"),
    "environment": ("environment",),
    "devices": ("machine", "devices"),
    "topology": ("topology",),
    "hazards": ("hazards",),
}
_ALL: Final = frozenset(TITLES)
# A difference of one kind follows from one of these, where there is one.
_FOLLOWS: Final[Mapping[str, frozenset[str]]] = {
    "data": frozenset({"seed"}),
    "topology": frozenset({"devices"}),
    "hazards": frozenset({"packages", "flags", "devices", "environment"}),
    "model": frozenset({"config", "code", "packages"}),
    "program": _ALL - {"program", "weights", "callbacks", "hazards"},
    "weights": _ALL - {"weights", "order", "fit", "callbacks", "hazards"},
}
# What is named as a possible cause when nothing is recorded that surely moves bits.
_PERHAPS: Final = ("code", "packages", "environment")
_DATA_SIZES: Final = ("num_samples", "num_batches")


@dataclass(frozen=True)
class Cause:
    """Differences of one kind.

    Args:
        kind: One of `TITLES`, or `unknown`.
        title: What it is called.
        differences: What differs; first value, second value.
        since: Train step from which on it could have had an effect.
        where: The later attempt or fit with which it came; empty for the start of the runs.
        run: Key of the run that changed between two of its attempts: then the values are those of the earlier
            attempt and of the later one. Empty for what differs between the runs.
        perhaps: True when it moves bits only under conditions that are not recorded.
    """

    kind: str
    title: str
    differences: tuple[Difference, ...] = ()
    since: int = 0
    where: str = ""
    run: str = ""
    perhaps: bool = False

    def __str__(self) -> str:
        shown = "; ".join(text_of(difference) for difference in self.differences[:3])
        more = f" and {len(self.differences) - 3} more" if len(self.differences) > 3 else ""
        place = self.place
        where = f" ({place})" if place else ""
        return f"{'perhaps ' if self.perhaps else ''}{self.title}{where}{': ' if shown else ''}{shown}{more}"

    @property
    def place(self) -> str:
        """Where it came, in words; empty for the start of the runs."""
        return f"within {self.run}: {self.where}" if self.run else self.where


@dataclass(frozen=True)
class Found:
    """What differs between two records.

    Args:
        causes: What can have moved bits and follows from nothing else, the likeliest first.
        perhaps: What moves bits only under conditions that are not recorded.
        consequences: What follows from a cause, as a rule.
        others: What moves no bits.
        unread: Sections that could not be compared.
        where: The later attempt or fit that was compared; empty for the start of the runs.
        run: Key of the run whose attempts were compared; empty for the two runs.
    """

    causes: tuple[Cause, ...] = ()
    perhaps: tuple[Cause, ...] = ()
    consequences: tuple[Cause, ...] = ()
    others: tuple[Difference, ...] = ()
    unread: tuple[str, ...] = ()
    where: str = ""
    run: str = ""


def text_of(difference: Difference) -> str:
    """Return a difference as text.

    Example:
        >>> text_of(Difference("config", "seed", "0", "1", "refuse"))
        'seed 0 -> 1'
    """
    if not difference.before and not difference.after:
        return difference.name
    before = f"{difference.before} -> " if difference.before else ""
    return f"{difference.name}{':' if not before else ''} {before}{difference.after}"


def find(
    first: Record,
    second: Record,
    weights: Sequence[str] = (),
    since: int = 0,
    where: str = "",
    run: str = "",
) -> Found:
    """Compare two manifests and sort what differs into causes and consequences.

    Args:
        first: A manifest; sections that one of the two lacks are not compared.
        second: The other one.
        weights: Keys of initial variables that differ.
        since: Train step from which on these manifests held.
        where: Attempt or fit that they belong to.
        run: The run, when both are of its attempts.

    Returns:
        The causes, the likeliest first: what cannot be a consequence of another difference.
    """
    unread: list[str] = []
    kinds: dict[str, list[Difference]] = {}
    for kind, (differences, failed) in _by_kind(first, second).items():
        kinds[kind] = differences
        unread += [kind] if failed else []
    if weights:
        kinds["weights"] = [Difference("config", name, "", "", "refuse") for name in weights]
    names = {difference.name for difference in kinds.pop("edited", [])}
    edited = [d for d in kinds.get("code", []) if d.name in names]
    moving = {kind: [d for d in found if _moves(d)] for kind, found in kinds.items()}
    others = [d for found in kinds.values() for d in found if not _moves(d)]
    if edited and moving.get("program"):
        moving["code"] = edited
    moving = {kind: found for kind, found in moving.items() if found}
    make = partial(_cause, since=since, where=where, run=run)
    causes, consequences = _sort(moving, make, _lie_alike(first, second))
    weak = {kind: [d for d in kinds.get(kind, []) if not _moves(d)] for kind in _PERHAPS}
    weak["code"] = [d for d in edited if d not in moving.get("code", [])]
    perhaps = [make(kind, found, perhaps=True) for kind, found in weak.items() if found]
    named = [d for cause in (*causes, *perhaps) for d in cause.differences]
    return Found(
        tuple(causes),
        tuple(perhaps),
        tuple(consequences),
        tuple(d for d in others if d not in named),
        tuple(unread),
        where,
        run,
    )


def _by_kind(first: Record, second: Record) -> dict[str, tuple[list[Difference], bool]]:
    """Return the differences by kind, and whether they could not be told; `edited`: other code."""
    found: dict[str, tuple[list[Difference], bool]] = {}

    def take(kind: str, make: Any) -> None:
        try:
            found[kind] = make(), False
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            found[kind] = [], True

    for kind, names in _SECTIONS.items():
        a, b = ({name: side.get(name) for name in names} for side in (first, second))
        take(kind, lambda a=a, b=b: compare(a, b))
    # A hazard of either side counts.
    hazards = {d.name: d for pair in ((first, second), (second, first)) for d in _hazards(*pair)}
    found["hazards"] = list(hazards.values()), found["hazards"][1]
    steps = ("program", "topology")
    parts = [{name: side.get(name) for name in steps} for side in (first, second)]
    take("program", lambda: compare_code(*parts))
    programs = found["program"][0]
    take("code", lambda: [d for d in compare_code(first, second) if d not in programs])
    # Without the compiled steps, what Python reads differently is told from comments and layout.
    bare = [{**side, "program": {}} for side in (first, second)]
    take("edited", lambda: [d for d in compare_code(*bare) if d.severity == "refuse" or _is_file(d)])
    take("model", lambda: _model(first.get("model"), second.get("model")))
    return found


def _hazards(first: Record, second: Record) -> list[Difference]:
    try:
        return compare({"hazards": first.get("hazards")}, {"hazards": second.get("hazards")})
    except (KeyError, TypeError, AttributeError):
        return []


def _is_file(difference: Difference) -> bool:
    return difference.category == "code" and "imported" in (difference.before, difference.after)


def _model(first: Record | None, second: Record | None) -> list[Difference]:
    """Compare what was compiled; a model's automatic name says nothing."""
    old, new = ({n: v for n, v in (side or {}).items() if n != "name"} for side in (first, second))
    if not old or not new:
        return []
    return [Difference("config", name, show(a), show(b), "refuse") for name, a, b in items(old, new)]


def _moves(difference: Difference) -> bool:
    # A longer run has the bits of a shorter one as far as that goes.
    return difference.severity == "refuse" and difference.category != "epochs"


def _lie_alike(first: Record, second: Record) -> bool:
    """Tell whether two models differ in their variables, and those that both have lie alike on the devices.

    The digest of all shardings differs then, too, but nobody changed the layout.
    """
    try:
        old, new = ({v["key"]: v["sharding"] for v in side["variables"]} for side in (first, second))
    except (KeyError, TypeError):
        return False
    both = old.keys() & new.keys()
    parts = ("mesh", "spec")
    return old.keys() != new.keys() and all(old[k].get(p) == new[k].get(p) for k in both for p in parts)


def _sort(
    moving: Mapping[str, list[Difference]], make: Callable[..., Cause], lie_alike: bool
) -> tuple[list[Cause], list[Cause]]:
    causes, consequences = [], []
    # Which variables there are follows from the model, and the model from these.
    lie_alike = lie_alike and not moving.keys().isdisjoint({"model", *_FOLLOWS["model"]})
    for kind in sorted(moving, key=_RANK.__getitem__):
        earlier = [d for other, found in moving.items() if _RANK[other] < _RANK[kind] for d in found]
        roots = _FOLLOWS.get(kind, frozenset()) & moving.keys()
        follows = [
            bool(roots) or _echoes(kind, d, earlier, moving) or (lie_alike and d.name == SHARDING)
            for d in moving[kind]
        ]
        own = [d for d, is_echo in zip(moving[kind], follows, strict=True) if not is_echo]
        echo = [d for d, is_echo in zip(moving[kind], follows, strict=True) if is_echo]
        causes += [make(kind, own)] if own else []
        consequences += [make(kind, echo)] if echo else []
    return causes, consequences


def _echoes(kind: str, difference: Difference, earlier: list[Difference], moving: Any) -> bool:
    """Tell whether a difference repeats an earlier one: `batch_size` from the config, sizes from the data."""
    if kind in ("config", "order", "fit", "callbacks") and any(_alike(difference, d) for d in earlier):
        return True
    name = difference.name.rpartition(".")[2].rpartition(" ")[2]
    if kind in ("order", "fit") and name in _DATA_SIZES and "data" in moving:
        return True
    if kind == "order" and name == "num_batches":
        return any(d.name.endswith("batch_size") for d in moving["order"])
    if kind in ("devices", "topology"):
        return any(d.category == "topology" for d in moving.get("flags", []))
    # A version of JAX brings settings along, and takes others away.
    new = "not there" in (difference.before, difference.after)
    return kind == "settings" and "packages" in moving and new


def _alike(one: Difference, other: Difference) -> bool:
    pairs = ((one.before, other.before), (one.after, other.after))
    return all(a == b or _close(a, b) for a, b in pairs)


def _close(first: str, second: str) -> bool:
    """Tell whether two texts are one number, once in single precision perhaps."""
    try:
        return math.isclose(float(first), float(second), rel_tol=1e-6)
    except ValueError:
        return False


def _cause(
    kind: str, differences: Sequence[Difference], *, since: int, where: str, run: str, perhaps: bool = False
) -> Cause:
    return Cause(kind, TITLES[kind], tuple(differences), since, where, run, perhaps)
