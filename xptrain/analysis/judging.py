"""Which differences are the causes: what held when two runs parted, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xptrain.analysis.causes import Cause, Found
from xptrain.analysis.parting import Parting
from xptrain.provenance.diff.difference import Difference

MOST_CAUSES: Final = 3
NOTHING_RECORDED: Final = "nothing recorded differs; likely nondeterminism or something not captured"


def judge(
    found: Sequence[Found], parting: Parting
) -> tuple[tuple[Cause, ...], tuple[Cause, ...], dict[tuple[str, str], tuple[Difference, ...]]]:
    """Choose the causes: what held before the runs parted, and had not been without effect for long.

    Args:
        found: What differs: between the runs from the start and in later fits, and between attempts of each.
        parting: Where the runs part.

    Returns:
        The causes, what follows from them, and the rest: by run and attempt what changed within a run, under
        two empty texts what differs between the runs.
    """
    causes = [cause for each in found for cause in each.causes]
    perhaps = [cause for each in found for cause in each.perhaps]
    consequences = [cause for each in found for cause in each.consequences]
    if not parting.parted:
        return (), (), _rest([*causes, *perhaps, *consequences], found)
    late = [cause for cause in (*causes, *perhaps) if _too_late(cause, parting)]
    # `sorted` is stable: among those of one place the likeliest stays first.
    strong = sorted((c for c in causes if c not in late), key=lambda cause: _idle(cause, parting))
    weak = sorted((c for c in perhaps if c not in late), key=lambda cause: _idle(cause, parting))
    named = strong or weak or [_first_step(parting) or Cause("unknown", NOTHING_RECORDED)]
    unnamed = [*named[MOST_CAUSES:], *(weak if strong else ()), *late]
    kept = tuple(c for c in consequences if not _too_late(c, parting))
    return tuple(named[:MOST_CAUSES]), kept, _rest(unnamed, found)


def _rest(causes: Sequence[Cause], found: Sequence[Found]) -> dict[tuple[str, str], tuple[Difference, ...]]:
    """Return differences that are no cause by where they are: within a run, or between the two."""
    listed = [(cause.run, cause.where, cause.differences) for cause in causes]
    listed += [(each.run, each.where, each.others) for each in found]
    rest: dict[tuple[str, str], dict[Difference, None]] = {}
    for run, where, differences in listed:
        # A later fit is compared between the runs, as their start is.
        rest.setdefault((run, where if run else ""), {}).update(dict.fromkeys(differences))
    return {place: tuple(these) for place, these in rest.items() if these}


def _too_late(cause: Cause, parting: Parting) -> bool:
    """Tell whether the runs had parted before a difference came."""
    return parting.by_step is not None and cause.since > 0 and cause.since >= parting.by_step


def _idle(cause: Cause, parting: Parting) -> bool:
    """Tell whether the runs went on being equal although a difference was there."""
    return cause.since < (parting.last_equal or 0)


def _first_step(parting: Parting) -> Cause | None:
    """Return the initial weights as a cause when the very first loss differs and they are not recorded."""
    point = parting.point
    is_first = point is not None and point.metric.startswith("batch/") and point.step == 1
    if parting.initial_known or not is_first:
        return None
    why = "no digests of them are recorded, and values differ in the very first step"
    return Cause("weights", "the initial weights", (Difference("config", why, "", "", "tell"),), perhaps=True)
