"""Narrows down where two runs part, to the step, by replaying both."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xptrain.analysis.parting import Parting, StateParting, compare_receipts, receipts
from xptrain.analysis.proof.replaying import Replay, replay
from xptrain.analysis.reading import Reading
from xptrain.analysis.recorded import recorded, refuse_strangers
from xptrain.checkpoint.receipts import Receipt


@dataclass(frozen=True)
class Narrowed:
    """Where two replays part.

    Args:
        last_equal: Last step after which both replays have the same state; None without.
        state: The first state that differs; None when the replays are equal.
        unlike_record: Keys of the runs whose replay did not come to the state that was recorded.
    """

    last_equal: int | None
    state: StateParting | None
    unlike_record: tuple[str, ...]


def narrow(
    readings: tuple[Reading, Reading], parting: Parting, *, allow: Collection[str] = (), yes: bool = False
) -> Narrowed | None:
    """Replay two runs from where they were equal to where they are not, and compare every step.

    Args:
        readings: The two runs.
        parting: Where they part, as far as their records tell.
        allow: What may differ from the recorded runs although it moves bits.
        yes: Start the commands also when they were recorded elsewhere.

    Returns:
        The step; None where the records have no two states that differ, or differ before the first step.

    Raises:
        XptrainError: A run could not be replayed.
    """
    if parting.state is None or parting.state.step == 0:
        return None
    step = parting.state.step
    replays, unlike = [], []
    for reading in readings:
        command = recorded(reading)
        command.check()
        if not yes:
            refuse_strangers(reading, command, "look at the command; then give --yes, or yes=True")
        stop = receipts(reading)[step][-1]
        start = _start(reading, parting.last_equal)
        came = replay(reading, command, start, stop, steps=None, allow=allow, quiet=True)
        replays.append(came)
        of_step = [state.receipt for state in came.states if state.receipt.step == step]
        if compare_receipts(step, receipts(reading)[step], of_step):
            unlike.append(reading.info.key)
    last, state = _part(*replays)
    return Narrowed(last if last is not None else parting.last_equal, state, tuple(unlike))


def _start(reading: Reading, last_equal: int | None) -> Receipt | None:
    """Return the newest checkpoint on disk that is not behind the last equal state."""
    found = [receipt for receipt in reading.receipts if receipt.step <= (last_equal or 0)]
    return max(found, key=lambda receipt: receipt.step, default=None)


def _part(first: Replay, second: Replay) -> tuple[int | None, StateParting | None]:
    steps: list[dict[int, list[Receipt]]] = [{}, {}]
    for found, replayed in zip(steps, (first, second), strict=True):
        for state in replayed.states:
            found.setdefault(state.receipt.step, []).append(state.receipt)
    last = None
    for step in sorted(steps[0].keys() & steps[1].keys()):
        parting = compare_receipts(step, steps[0][step], steps[1][step])
        if parting is not None:
            return last, parting
        last = step
    return last, None
