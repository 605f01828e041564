"""`doctor`: will a script's run be exact? A few steps, a kill and a resume tell, before the long run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xptrain.analysis.parting import StateParting, compare_receipts
from xptrain.analysis.proof.comparing import differing_host
from xptrain.analysis.proof.replaying import start_process
from xptrain.analysis.reading import read
from xptrain.errors import InexactError, UsageError
from xptrain.session.replay import Orders, State, states
from xptrain.tracking.finding import all_runs

_SEED: Final = 1


@dataclass(frozen=True)
class Diagnosis:
    """What `examine` found.

    Args:
        grade: The grade that the run gave itself, with its reasons.
        hazards: Known hazards of this machine and its packages, in words.
        steps: How many steps were trained.
        cut: Step after which the process was cut off and resumed.
        resumed: The first state that differs after the resume, or None.
        host: Places in callbacks and generators that differ first after the resume.
        values: Logged values that came out differently after the resume, in words.
        repeated: The first state that differs when the script is started again, or None.
    """

    grade: str
    hazards: tuple[str, ...]
    steps: int
    cut: int
    resumed: StateParting | None
    host: tuple[str, ...]
    values: tuple[str, ...]
    repeated: StateParting | None

    @property
    def resumes_exactly(self) -> bool:
        """Whether the resumed steps came out bit for bit."""
        return not (self.resumed or self.host or self.values)

    @property
    def exact(self) -> bool:
        """Whether the run resumes exactly, here and by its grade."""
        return self.resumes_exactly and not self.grade.startswith("approximate")

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"exact": self.exact, "resumes_exactly": self.resumes_exactly, **asdict(self)}


def examine(command: Sequence[str], steps: int = 6) -> Diagnosis:
    """Start a script, cut it off after some steps, resume it, and compare; then start it once more.

    All is done in a folder of its own that is deleted at the end: no run is recorded, and callbacks of Keras
    that write files write them there. What the script itself writes or sends, it does write and send. The
    first run that it opens counts.

    Args:
        command: What follows `python`: a script and its arguments, or `-m` and a module.
        steps: How many steps to train, at least 2; the cut is in their middle.

    Returns:
        A `Diagnosis`.

    Raises:
        UsageError: The script cannot be started, opens no run, or trains less than two steps.
        InexactError: The resume was refused: the script begins with something else each time.
        XptrainError: The script failed.

    Example:
        >>> examine(["train.py", "--epochs", "5"]).exact  # doctest: +SKIP
        True
    """
    _check(command, steps)
    full = [sys.executable, *command]
    with tempfile.TemporaryDirectory(prefix="xptrain-doctor-", ignore_cleanup_errors=True) as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        cut = steps // 2
        straight = _train(
            full, first, Orders(*_places(first), seed=_SEED, stop_at=steps, save_at=cut, kill=True)
        )
        trained = straight[-1].receipt.step if straight else 0
        if trained < steps:
            # A shorter fit than that: it ended by itself, and the cut may have come too late, or not at all.
            cut = trained // 2
            if cut:
                first = Path(folder) / "again"
                orders = Orders(*_places(first), seed=_SEED, stop_at=trained, save_at=cut, kill=True)
                straight = _train(full, first, orders)
        if not cut:
            raise UsageError(
                "the script trained too few steps to be cut off between two of them",
                expected="a script that opens a run with xptrain.run(…) and trains 2 steps or more in it",
                found=_opened(first, trained),
                remedy="train with run.fit(model, …), for longer, under the first run that is opened",
            )
        reading = read(all_runs(first / "home")[0])
        key = reading.info.key
        orders = Orders(*_places(first, "resumed"), key=key, seed=_SEED, attempts=1, stop_at=trained)
        try:
            resumed = _train(full, first, orders, key)
        except InexactError as error:
            raise InexactError(
                "this run will not resume: it begins with something else each time the script is started",
                expected="the same data, config and code",
                found=error.found,
                remedy="seed what the script draws, and let nothing depend on the time",
            ) from None
        values = tuple(read(reading.folder).divergences)
        again = _train(full, second, Orders(*_places(second), seed=_SEED, stop_at=cut))
    later = [state for state in straight if state.receipt.step > cut]
    parting, host = _first(later, resumed)
    repeated, _ = _first([state for state in straight if state.receipt.step <= cut], again)
    return Diagnosis(
        grade=reading.tags.get("xptrain.grade", ""),
        hazards=tuple(f"{hit['title']} ({hit['evidence']})" for hit in reading.manifest().get("hazards", ())),
        steps=trained,
        cut=cut,
        resumed=parting,
        host=tuple(host),
        values=values,
        repeated=repeated,
    )


def _check(command: Sequence[str], steps: int) -> None:
    if not command or (command[0] != "-m" and not Path(command[0]).is_file()):
        raise UsageError(
            "there is no such script",
            expected="a Python file, or -m and a module",
            found=command[0] if command else "nothing",
            remedy="xptrain doctor train.py --epochs 5",
        )
    if steps < 2:
        raise UsageError("doctor needs two steps at least", expected="--steps >= 2", found=str(steps))


def _places(scratch: Path, name: str = "straight") -> tuple[str, str]:
    return str(scratch / f"{name}.jsonl"), str(scratch / "files" / name)


def _train(command: Sequence[str], scratch: Path, orders: Orders, key: str | None = None) -> list[State]:
    (scratch / "home").mkdir(parents=True, exist_ok=True)
    env = dict(os.environ)
    if key is not None:
        env["XPTRAIN_RESUME"] = key
    start_process(command, str(Path.cwd()), env, orders, scratch, quiet=True)
    return states(Path(orders.out))


def _opened(scratch: Path, trained: int) -> str:
    if not all_runs(scratch / "home"):
        return "it opened no run"
    return f"{trained} steps" if trained else "no step of a fit, or of a loop with run.checkpoint"


def _first(wanted: Sequence[State], found: Sequence[State]) -> tuple[StateParting | None, list[str]]:
    """Return the first state that differs, and what differs first in callbacks and generators."""
    by_step = {state.receipt.step: state for state in found}
    host: list[str] = []
    for state in wanted:
        other = by_step.get(state.receipt.step)
        if other is None:
            return StateParting(state.receipt.step, (), 0, ("the whole state",)), host
        parting = compare_receipts(state.receipt.step, [state.receipt], [other.receipt])
        host = host or differing_host(state.host, other.host)
        if parting is not None:
            return parting, host
    return None, host
