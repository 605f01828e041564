"""One difference between two manifests, and refusing those that move bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from xptrain.errors import UsageError

Category = Literal[
    "code", "config", "data", "packages", "devices", "topology", "epochs", "callbacks", "hazards"
]
Severity = Literal["refuse", "tell"]

CATEGORIES: Final[tuple[Category, ...]] = (
    "code",
    "config",
    "data",
    "packages",
    "devices",
    "topology",
    "epochs",
    "callbacks",
    "hazards",
)


@dataclass(frozen=True)
class Difference:
    """Something that is not as it was.

    Args:
        category: Name that `allow=` takes to let it pass.
        name: What differs, such as `jaxlib` or `cores (usable)`.
        before: How it was, as short text.
        after: How it is now.
        severity: `refuse` when it can move bits, `tell` when it cannot or only perhaps.
        note: What else the reader should know.
    """

    category: Category
    name: str
    before: str
    after: str
    severity: Severity
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


def check_allow(allow: Iterable[str]) -> frozenset[str]:
    """Return the names in `allow`, or raise UsageError when one is no category."""
    names = frozenset([allow] if isinstance(allow, str) else allow)
    unknown = sorted(names.difference(CATEGORIES))
    if unknown:
        raise UsageError(
            f"unknown name in allow: {', '.join(unknown)}",
            expected=f"any of {', '.join(CATEGORIES)}",
            remedy="correct the spelling",
        )
    return names


def split(
    differences: Sequence[Difference], allow: Iterable[str]
) -> tuple[list[Difference], list[Difference]]:
    """Part differences that move bits into those that are refused and those that `allow` lets pass.

    Args:
        differences: What `compare` returned; ones that are only told are in neither list.
        allow: Categories the user lets pass.

    Returns:
        The refused ones, and the allowed ones (each is a reason for a lower grade).

    Raises:
        UsageError: `allow` has a name that is no category.
    """
    names = check_allow(allow)
    moving = [d for d in differences if d.severity == "refuse"]
    return [d for d in moving if d.category not in names], [d for d in moving if d.category in names]
