"""Where two runs part, and what differed before it: the likely cause first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from typing import Any

from xptrain.analysis.causes import Cause, Found, find, text_of
from xptrain.analysis.judging import judge
from xptrain.analysis.parting import Parting, ledger_notes, part, receipts
from xptrain.analysis.reading import Reading, read
from xptrain.analysis.runs import Home, find_run
from xptrain.errors import UsageError
from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.sharding import initial_digests
from xptrain.session.manifests import Manifests

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Within:
    """What changed between two attempts of one run, and is no cause of anything.

    Args:
        run: Key of the run.
        where: The later attempt, and the step that it went on from.
        differences: What differs; the earlier attempt's value, the later one's.
    """

    run: str
    where: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; as text it is a few readable lines.

    Args:
        runs: Keys of the two runs.
        equal: True when every state that both recorded is the same, False when the runs part, None when
            they have no step in common to compare.
        parting: How far they go together, and what differs first.
        causes: Likely causes, the likeliest first, at most three. Empty while the runs are equal.
        consequences: Differences that follow from a cause, as a rule.
        others: Recorded differences that are no cause here.
        within: What changed between two attempts of one run, and is no cause here.
        grades: The grade of each run.
        hazards: Known hazards of each run.
        notes: What could not be read or compared, in words.
    """

    runs: tuple[str, str]
    equal: bool | None
    parting: Parting
    causes: tuple[Cause, ...]
    consequences: tuple[Cause, ...]
    others: tuple[Difference, ...]
    grades: tuple[str, str]
    hazards: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...]
    within: tuple[Within, ...] = ()

    def __str__(self) -> str:
        lines = [self.headline]
        lines += [f"likely cause: {self.causes[0]}"] if self.causes else []
        lines += [f"then perhaps: {cause.title}" for cause in self.causes[1:]]
        return "\n".join([*lines, *self.notes])

    @property
    def headline(self) -> str:
        """One sentence: whether, and where, the runs part."""
        found = self.parting
        if self.equal:
            steps = f" ({found.states} checkpoints compared)" if found.states else ""
            return f"equal as far as both go: up to step {found.last_equal}{steps}"
        if self.equal is None:
            if found.points:
                equal = f"all that both logged is equal ({found.points} points)"
                return f"no step has a checkpoint in both runs; {equal}"
            return "nothing to compare: the runs have no checkpoint and no logged value in common"
        if found.state is not None and found.state.step == 0:
            return "the runs part at step 0: their initial variables differ"
        after = "" if found.last_equal is None else f" after step {found.last_equal}"
        by = "" if found.by_step is None else f"{' and' if after else ''} by step {found.by_step}"
        return f"the runs part{after}{by}" if after or by else "the runs part"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "runs": list(self.runs),
            "equal": self.equal,
            "headline": self.headline,
            "last_equal_step": self.parting.last_equal,
            "first_different_state": asdict(self.parting.state) if self.parting.state else None,
            "first_different_value": asdict(self.parting.point) if self.parting.point else None,
            "states_compared": self.parting.states,
            "values_compared": self.parting.points,
            "initial_variables_compared": self.parting.initial_known,
            "causes": [_cause_json(cause) for cause in self.causes],
            "consequences": [_cause_json(cause) for cause in self.consequences],
            "others": [asdict(difference) for difference in self.others],
            "within": [asdict(within) for within in self.within],
            "grades": dict(zip(self.runs, self.grades, strict=True)),
            "hazards": dict(zip(self.runs, map(list, self.hazards), strict=True)),
            "notes": list(self.notes),
        }


def explain(a: Any, b: Any, home: Home = None) -> Explanation:
    """Say where two runs part and what differed before it, the likely cause first.

    States are compared by the receipts of all checkpoints, deleted ones included, and logged values by the
    journals. Only local files are read; nothing is trained.

    Args:
        a: A key, an MLflow run id, a unique prefix of either, `"@last"`, or a `Run`.
        b: The other run.
        home: Folder of the runs; `$XPTRAIN_HOME`, else `.xptrain` in the working directory, when None.

    Returns:
        An `Explanation`; print it, or look at `equal`, `parting`, `causes` and `consequences`.

    Raises:
        RunNotFoundError: No run or more than one has one of the names.
        UsageError: Both names mean one run.
        TrackerError: A journal cannot be read.

    Example:
        >>> print(xptrain.explain("3f2a", "9c01"))  # doctest: +SKIP
        the runs part after step 60 and by step 120
        likely cause: the order of the batches: data order: shuffle True -> False
    """
    folders = [find_run(run, home) for run in (a, b)]
    if folders[0].key == folders[1].key:
        raise UsageError(
            "explain needs two runs", expected="two different runs", found=f"{folders[0].key} twice"
        )
    readings = (read(folders[0]), read(folders[1]))
    notes: list[str] = []
    recorded = [_Recorded.of(reading, notes) for reading in readings]
    starts = [side.start for side in recorded]
    parting = part(readings, [side.initial for side in recorded])
    notes += _unknown_weights(recorded)
    for reading in readings:
        notes += ledger_notes(reading)
        notes += _notes(reading)
    found = [_start(starts, parting), *_later_fits(recorded, readings), *_later_attempts(recorded)]
    for each in found:
        notes += [f"the manifests' section on {kind} cannot be compared" for kind in each.unread]
    equal = False if parting.parted else True if parting.states else None
    causes, consequences, rest = judge(found, parting)
    return Explanation(
        runs=(folders[0].key, folders[1].key),
        equal=equal,
        parting=parting,
        causes=causes,
        consequences=consequences,
        others=rest.pop(("", ""), ()),
        grades=(_grade(readings[0]), _grade(readings[1])),
        hazards=(_hazards(starts[0]), _hazards(starts[1])),
        notes=tuple(dict.fromkeys(notes)),
        within=tuple(Within(*place, differences) for place, differences in rest.items()),
    )


@dataclass
class _Recorded:
    """The manifests of a run: of the first fit by attempt, and the first ones of later fits."""

    key: str
    attempts: dict[int, Manifest]
    fits: dict[int, Manifest]
    setup: Mapping[str, Any]
    from_step: dict[int, int]
    from_zero: int

    @property
    def start(self) -> Manifest:
        """The manifest of the first attempt; the seed and config alone where it did not come to a fit."""
        if self.attempts:
            return self.attempts[min(self.attempts)]
        return {name: self.setup[name] for name in ("seed", "config") if self.setup.get(name) is not None}

    @property
    def is_fork(self) -> bool:
        """Whether it began with the checkpoint of another run."""
        return "fork" in self.setup

    @property
    def initial(self) -> Manifest:
        """The manifest of the last attempt that trained from step 0: what it began with was trained."""
        if self.is_fork:
            # It never was at step 0.
            return {}
        numbers = [number for number in self.attempts if number <= self.from_zero]
        return self.attempts[max(numbers)] if numbers else self.start

    @classmethod
    def of(cls, reading: Reading, notes: list[str]) -> _Recorded:
        manifests = Manifests(reading.folder.path)
        numbers = [facts.attempt.attempt for facts in reading.attempts]
        attempts = dict(_manifests(manifests, numbers, 0, reading.info.key, notes))
        fits = {}
        for fit in count(1):
            of_fit = dict(_manifests(manifests, numbers, fit, reading.info.key, notes))
            if not of_fit:
                break
            fits[fit] = of_fit[min(of_fit)]
        if not attempts:
            notes.append(f"{reading.info.key}: no manifest, only its seed and config are compared")
        from_step = {facts.attempt.attempt: facts.from_step or 0 for facts in reading.attempts}
        from_zero = max((f.attempt.attempt for f in reading.attempts if f.from_step == 0), default=0)
        return cls(reading.info.key, attempts, fits, reading.info.setup, from_step, from_zero)


def _manifests(
    manifests: Manifests, numbers: Sequence[int], fit: int, key: str, notes: list[str]
) -> Iterator[tuple[int, Manifest]]:
    before: Manifest | None = None
    for number in numbers:
        try:
            # Where this attempt has none, it is that of an earlier one again.
            record = manifests.last(number + 1, fit)
            if record is not None and not isinstance(record, dict):
                raise ValueError("no JSON object")
        except (ValueError, TypeError):
            notes.append(f"{key}: the manifest of attempt {number} cannot be read, left out")
            return
        if record is not None and record != before:
            yield number, record
            before = record


def _unknown_weights(recorded: Sequence[_Recorded]) -> list[str]:
    """Return, in words, why the weights before the first step cannot be compared; nothing where they can."""
    without = [side.key for side in recorded if not side.is_fork and not initial_digests(side.initial)]
    if not without:
        return []
    lack = "has" if len(without) == 1 else "have"
    return [f"the initial weights cannot be compared: {' and '.join(without)} {lack} no digests of them"]


def _start(starts: Sequence[Manifest], parting: Parting) -> Found:
    state = parting.state
    weights = (*state.leaves, *state.only) if state is not None and state.step == 0 else ()
    return find(starts[0], starts[1], weights)


def _later_fits(recorded: Sequence[_Recorded], readings: tuple[Reading, Reading]) -> Iterator[Found]:
    for fit in sorted(recorded[0].fits.keys() & recorded[1].fits.keys()):
        history = [r for saved in receipts(readings[0]).values() for r in saved]
        since = max((r.step for r in history if r.cursor.fit < fit), default=0)
        first, second = (
            {n: side.fits[fit].get(n) for n in ("data", "order", "fit", "callbacks", "model", "program")}
            for side in recorded
        )
        yield find(first, second, since=since, where=f"fit {fit}")


def _later_attempts(recorded: Sequence[_Recorded]) -> Iterator[Found]:
    for side in recorded:
        for (_, before), (number, after) in pairwise(sorted(side.attempts.items())):
            since = side.from_step.get(number, 0)
            where = f"attempt {number}, from step {since}"
            yield find(before, after, since=since, where=where, run=side.key)


def _notes(reading: Reading) -> list[str]:
    key = reading.info.key
    notes = [] if receipts(reading) else [f"{key}: no checkpoint, so that only logged values are compared"]
    if reading.divergences:
        shown = f"{key}: {len(reading.divergences)} points came out differently when computed again, first"
        notes.append(f"{shown} {reading.divergences[0]}")
    if reading.live:
        notes.append(f"{key}: it is being trained now")
    return notes


def _grade(reading: Reading) -> str:
    return reading.grade or "not known before the first fit"


def _hazards(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    hits = manifest.get("hazards") or ()
    return tuple(f"{hit['severity']}: {hit['title']} ({hit['evidence']})" for hit in hits)


def _cause_json(cause: Cause) -> dict[str, Any]:
    text = {"kind": cause.kind, "text": str(cause), "since_step": cause.since, "where": cause.where}
    text |= {"within": cause.run or None}
    differences = [{**asdict(d), "text": text_of(d)} for d in cause.differences]
    return {**text, "perhaps": cause.perhaps, "differences": differences}
