"""How exact a run is: one grade and the reasons for it, from facts alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from xptrain.errors import InexactError, UsageError
from xptrain.provenance.diff.compare import refuse
from xptrain.provenance.diff.difference import Difference, check_allow, split
from xptrain.provenance.hazards import Hit

Level = Literal["exact", "same-topology", "approximate"]
Exactness = Literal["exact", "same-topology", "any"]

_ORDER: Final[tuple[Level, ...]] = ("approximate", "same-topology", "exact")
_NAMES: Final[Mapping[str, str]] = {
    "exact": "exact",
    "same-topology": "exact on the same topology",
    "approximate": "approximate",
}
_LOWEST: Final[Mapping[str, Level]] = {
    "exact": "exact",
    "same-topology": "same-topology",
    "any": "approximate",
}


@dataclass(frozen=True)
class Grade:
    """How exact a run is.

    Args:
        level: `exact`, `same-topology` or `approximate`.
        reasons: Why it is not better, and what the reader must know at any level.

    Example:
        >>> str(Grade("exact").lower("same-topology", "8 devices"))
        'exact on the same topology: 8 devices'
    """

    level: Level
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The level in words: `exact`, `exact on the same topology` or `approximate`."""
        return _NAMES[self.level]

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(self.reasons)}" if self.reasons else self.name

    def lower(self, level: Level, *reasons: str) -> Grade:
        """Return the worse of this grade and `level`, with the new reasons added once."""
        worse = min(self.level, level, key=_ORDER.index)
        return Grade(worse, tuple(dict.fromkeys((*self.reasons, *reasons))))

    def as_json(self) -> dict[str, Any]:
        """Return the grade as JSON, for tags and the manifest."""
        return {"level": self.level, "name": self.name, "reasons": list(self.reasons)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Grade:
        """Return the grade that `as_json` wrote."""
        level = value["level"]
        if level not in _ORDER:
            raise UsageError("unknown grade", expected=", ".join(_ORDER), found=str(level))
        return cls(level, tuple(value["reasons"]))


def assess(
    *,
    hazards: Iterable[Hit] = (),
    devices: int = 1,
    processes: int = 1,
    not_captured: Sequence[str] = (),
    allowed: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Grade:
    """Grade a run from what is known before it trains.

    Args:
        hazards: What `hazards.check` found; `wrong` and `wandering` ones make the run approximate.
        devices: Devices that hold the state; with several, bits depend on the topology.
        processes: Processes that train together.
        not_captured: One reason for each data source, callback or RNG whose state cannot be captured.
        allowed: One reason for each difference that `allow=` let pass.
        notes: What must be said with the grade but does not lower it, such as sampled data digests.

    Returns:
        The grade.

    Example:
        >>> assess(devices=8).name
        'exact on the same topology'
    """
    grade = Grade("exact")
    if devices > 1 or processes > 1:
        several = f"{devices} devices" + (f" in {processes} processes" if processes > 1 else "")
        grade = grade.lower("same-topology", several)
    for hit in hazards:
        if hit.severity != "info":
            grade = grade.lower("approximate", f"{hit.title} ({hit.evidence})")
    for reason in (*not_captured, *allowed):
        grade = grade.lower("approximate", reason)
    return grade.lower("exact", *notes)


def admit(
    *,
    exactness: str,
    allow: Iterable[str] = (),
    hazards: Sequence[Hit] = (),
    devices: int = 1,
    processes: int = 1,
    not_captured: Sequence[str] = (),
    differences: Sequence[Difference] = (),
    notes: Sequence[str] = (),
) -> Grade:
    """Grade a run and refuse it when the grade is below what was asked for.

    What `allow` names lowers the grade but is not a reason to refuse: the user has accepted it by name.

    Args:
        exactness: `exact`, `same-topology` or `any`.
        allow: Categories the user lets pass.
        hazards: What `hazards.check` found.
        devices: Devices that hold the state.
        processes: Processes that train together.
        not_captured: One reason for each state that cannot be captured.
        differences: What `diff.compare` returned, on a resume.
        notes: What must be said with the grade but does not lower it.

    Returns:
        The grade.

    Raises:
        InexactError: The grade is too low; `ChangedError` when something that moves bits changed.
        UsageError: An unknown name in `exactness` or `allow`.
    """
    names = check_allow(allow)
    refuse(differences, names)
    _, passed = split(differences, names)
    unaccepted = [] if "hazards" in names else hazards
    require(
        assess(hazards=unaccepted, devices=devices, processes=processes, not_captured=not_captured), exactness
    )
    reasons = [f"{d.category} changed: {d}" for d in passed]
    return assess(
        hazards=hazards,
        devices=devices,
        processes=processes,
        not_captured=not_captured,
        allowed=reasons,
        notes=notes,
    )


def check_exactness(exactness: str) -> str:
    """Return `exactness`, or raise UsageError when there is no such one."""
    if exactness not in _LOWEST:
        raise UsageError(
            "unknown exactness",
            expected=", ".join(_LOWEST),
            found=repr(exactness),
            remedy="correct exactness=",
        )
    return exactness


def require(grade: Grade, exactness: str) -> None:
    """Refuse a run whose grade is below the requested exactness.

    Args:
        grade: Grade of the run.
        exactness: `exact`, `same-topology` or `any`.

    Raises:
        InexactError: The grade is lower; the text gives its reasons.
        UsageError: There is no such exactness.

    Example:
        >>> require(Grade("same-topology"), "same-topology")
    """
    check_exactness(exactness)
    if _ORDER.index(grade.level) >= _ORDER.index(_LOWEST[exactness]):
        return
    enough = next(
        name for name in ("same-topology", "any") if _ORDER.index(grade.level) >= _ORDER.index(_LOWEST[name])
    )
    raise InexactError(
        "this run cannot be resumed bit for bit",
        expected=_NAMES[_LOWEST[exactness]],
        found=str(grade),
        remedy=f"remove the reasons, or accept this with run(exactness={enough!r})",
    )
