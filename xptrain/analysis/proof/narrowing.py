"""Narrows down where two runs part, to the step, by replaying both."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xptrain.analysis.parting import Parting, StateParting, compare_receipts, receipts
from xptrain.analysis.proof.replaying import Replay, replay
from xptrain.analysis.reading import Reading
from xptrain.analysis.recorded import recorded, refuse_strangers
from xptrain.checkpoint.receipts import Receipt
from xptrain.session.replay import by_step


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

    @property
    def headline(self) -> str | None:
        """One sentence with the very step; None when the replays do not say where the records part."""
        if self.state is None or self.unlike_record:
            return None
        equal = "" if self.last_equal is None else f", equal up to step {self.last_equal}"
        return f"the runs part at step {self.state.step} (trained again{equal})"


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
        saved = receipts(reading)[step]
        start = _start(reading, parting.last_equal)
        came = replay(reading, command, start, saved[-1], steps=None, allow=allow, quiet=True)
        replays.append(came)
        if compare_receipts(step, saved, _receipts(came)[step]):
            unlike.append(reading.info.key)
    last, state = _part(*replays)
    return Narrowed(last if last is not None else parting.last_equal, state, tuple(unlike))


def _start(reading: Reading, last_equal: int | None) -> Receipt | None:
    """Return the newest checkpoint on disk that is not behind the last equal state."""
    found = [receipt for receipt in reading.receipts if receipt.step <= (last_equal or 0)]
    return max(found, key=lambda receipt: receipt.step, default=None)


def _part(first: Replay, second: Replay) -> tuple[int | None, StateParting | None]:
    a, b = _receipts(first), _receipts(second)
    last = None
    for step in sorted(a.keys() & b.keys()):
        parting = compare_receipts(step, a[step], b[step])
        if parting is not None:
            return last, parting
        last = step
    return last, None


def _receipts(replayed: Replay) -> dict[int, list[Receipt]]:
    return {step: [state.receipt for state in states] for step, states in by_step(replayed.states).items()}
