"""Whether an attempt that starts over begins with the values with which the first one began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.sharding import initial_digests

# Metrics begin anew with each epoch.
_ROLES = ("trainable", "non_trainable", "optimizer")
_MOST_NAMES = 3


def compare_beginnings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Compare the variables before the first step of two attempts that both begin without a checkpoint.

    They differ when something was read that the first attempt did not find (a file that it wrote itself), or
    drawn before the seed was set.

    Args:
        before: Manifest of the attempt that trained; one that did not come to a step says nothing.
        after: Manifest of the attempt that starts over.

    Returns:
        One difference, or none.

    Example:
        >>> compare_beginnings({}, {})
        []
    """
    if "program" not in before:
        return []
    old, new = (initial_digests(manifest, _ROLES) for manifest in (before, after))
    differing = {key for key in new if key in old and old[key] != new[key]}
    names = [v["path"] for v in after.get("variables") or () if v["key"] in differing]
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    shown = ", ".join(names[:_MOST_NAMES]) + more
    note = "starts over: make the model inside the run, and load nothing that the run itself writes"
    return [Difference("code", "initial values", "as at first", f"others: {shown}", "refuse", note)]
