"""Compares what a replay came to with what the run recorded, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xptrain.analysis.parting import (
    PointParting,
    Points,
    StateParting,
    compare_receipts,
    first_point,
    points_of,
)
from xptrain.analysis.reading import Reading
from xptrain.checkpoint.folder import HOST_FILE
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointDamagedError
from xptrain.session.replay import State, by_step

# Constructor settings are compared as the fit begins; a replay writes files elsewhere.
_NOT_STATE: Final = frozenset({"settings", "csv"})


@dataclass(frozen=True)
class Comparison:
    """A replay beside its run.

    Args:
        steps: Steps whose state was compared.
        missing: Steps of the run's states that the replay did not come by.
        tensors: How many tensors were compared, over all steps.
        state: The first state that differs, or None.
        host: Places in the host state (callbacks, generators) that differ, from the first step where any do.
        host_steps: Steps whose host state could be compared: those with a checkpoint on disk.
        values: How many logged values were compared.
        value: The first logged value that differs, or None.
    """

    steps: tuple[int, ...]
    missing: tuple[int, ...]
    tensors: int
    state: StateParting | None
    host: tuple[str, ...]
    host_steps: tuple[int, ...]
    values: int
    value: PointParting | None

    @property
    def equal(self) -> bool:
        """Whether everything that was compared is equal, and nothing is missing."""
        return not (self.state or self.host or self.value or self.missing)


def compare_replay(
    reading: Reading, recorded: Mapping[int, Sequence[Receipt]], states: Sequence[State], values: Points
) -> Comparison:
    """Compare the states and values of a replay with those of its run.

    Args:
        reading: The run.
        recorded: The run's receipts to compare with, by step.
        states: What the replay came by, in order.
        values: What the replay logged.

    Returns:
        What was compared, and what differs first.
    """
    replayed = by_step(states)
    steps = sorted(recorded.keys() & replayed.keys())
    parting: StateParting | None = None
    host: list[str] = []
    host_steps = []
    tensors = 0
    for step in steps:
        found = compare_receipts(step, recorded[step], [state.receipt for state in replayed[step]])
        tensors += len(replayed[step][-1].receipt.leaves)
        parting = parting or found
        known = _host_of(reading, recorded[step][-1])
        same = [s for s in replayed[step] if s.receipt.cursor == recorded[step][-1].cursor]
        if known is not None and same:
            host_steps.append(step)
            host = host or differing_host(known, same[-1].host)
    value, shared = first_point(points_of(reading.folder.journal), values)
    return Comparison(
        steps=tuple(steps),
        missing=tuple(sorted(recorded.keys() - replayed.keys())),
        tensors=tensors,
        state=parting,
        host=tuple(host),
        host_steps=tuple(host_steps),
        values=shared,
        value=value,
    )


def _host_of(reading: Reading, receipt: Receipt) -> dict[str, Any] | None:
    """Return the host state of a checkpoint that is on disk."""
    try:
        there = reading.checkpoints.receipt_in(receipt.step)
        path = reading.checkpoints.folder_of(receipt.step) / HOST_FILE
        record: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError, KeyError, CheckpointDamagedError):
        return None
    is_it = (there.digest, there.host_digest, there.cursor) == (
        receipt.digest,
        receipt.host_digest,
        receipt.cursor,
    )
    return record if is_it else None


def differing_host(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the places in which two host states differ.

    Args:
        first: A host state.
        second: Another one.

    Returns:
        Paths in it; what belongs to the session, or is no state, is left out.
    """
    return _differing(_state_of(first), _state_of(second))


def _state_of(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host state without what is the session's, and without what is no state of a callback."""
    state = {name: value for name, value in host.items() if name != "session"}
    if "python" in state:
        entries = [{k: v for k, v in e.items() if k not in _NOT_STATE} for e in state["python"]["callbacks"]]
        state["python"] = {**state["python"], "callbacks": entries}
    if "end" in state:
        # As the script sees it after the fit.
        state["end"] = _state_of(state["end"])
    if "parts" in state:
        # A loop of the user's own: one host state for each of its models.
        state["parts"] = [_state_of(part) for part in state["parts"]]
    return state


def _differing(first: Any, second: Any, path: str = "") -> list[str]:
    """Return the places in two JSON trees that differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = [*first, *(name for name in second if name not in first)]
        return [
            place
            for name in names
            for place in _differing(first.get(name), second.get(name), f"{path}/{name}" if path else name)
        ]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [place for i, (a, b) in pairs for place in _differing(a, b, f"{path}/{i}")]
    # As text: NaN equals itself.
    return [] if json.dumps(first) == json.dumps(second) else [path]
