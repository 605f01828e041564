"""`verify`: does a part of a run come out again, bit for bit, when it is trained again?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xptrain.analysis.parting import receipts
from xptrain.analysis.proof.comparing import Comparison, compare_replay
from xptrain.analysis.proof.replaying import replay
from xptrain.analysis.reading import Reading, read
from xptrain.analysis.recorded import recorded, refuse_strangers
from xptrain.analysis.runs import Home, find_run
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointNotFoundError, UsageError
from xptrain.provenance.diff.difference import check_allow
from xptrain.session.forked import Fork


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    Args:
        run: Key of the run.
        from_step: Step of the checkpoint that the replay began from; 0 for the beginning of the run.
        to_step: Step at which it ended.
        comparison: What was compared, and what differs.
        seconds: How long the replay took, in seconds, its start and compile included.
    """

    run: str
    from_step: int
    to_step: int
    comparison: Comparison
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether every bit that was compared is the same."""
        return self.comparison.equal

    def __str__(self) -> str:
        return f"run {self.run}, steps {self.from_step + 1} to {self.to_step}: {self.headline}"

    @property
    def headline(self) -> str:
        """One sentence: equal, or what differs first."""
        found = self.comparison
        if found.state is not None:
            return f"the state after step {found.state.step} differs: {found.state.named(3)}"
        if found.value is not None:
            value, (first, second) = found.value, found.value.values
            where = f"the value of {value.metric} at {value.step} differs"
            return f"{where}: {first!r} recorded, {second!r} replayed"
        if found.host:
            return f"the state of callbacks or generators differs: {', '.join(found.host[:3])}"
        if found.missing:
            return f"the replay did not come by step {found.missing[0]}"
        return f"every bit is the same: {found.tensors} tensors and {found.values} logged values"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "run": self.run,
            "equal": self.equal,
            "headline": self.headline,
            "from_step": self.from_step,
            "to_step": self.to_step,
            "seconds": self.seconds,
            **asdict(self.comparison),
        }


def verify(
    run: Any,
    *,
    epoch: int | None = None,
    whole: bool = False,
    allow: str | Iterable[str] = (),
    yes: bool = False,
    home: Home = None,
) -> Verdict:
    """Train a part of a run again, with its record switched off, and compare every bit with the record.

    The run's own command is started in its recorded folder and environment, from a copy of the checkpoint
    before; the digest of every tensor, the host state and every logged value are compared with what the run
    recorded. It costs about what the part cost to train. Callbacks of Keras that write files write them
    elsewhere meanwhile; what your script itself writes or sends, it writes and sends again.

    Args:
        run: A key, an MLflow run id, a unique prefix of either, `"@last"`, or a `Run`.
        epoch: Number of an epoch of the run, from 1; when None, what was trained since the last checkpoint
            but one.
        whole: The whole run, from its beginning.
        allow: What may differ from the recorded run although it moves bits, as for `run`.
        yes: Start the command also when another user, host or repository recorded it.
        home: Folder of the runs; `$XPTRAIN_HOME`, else `.xptrain` in the working directory, when None.

    Returns:
        A `Verdict`; print it, or look at `equal` and `comparison`.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        CheckpointNotFoundError: The run has recorded no state to compare with.
        UsageError: The run has no such epoch, or its command cannot be started again.
        ChangedError: Something that moves bits changed since the run was recorded.

    Example:
        >>> print(xptrain.verify("3f2a"))  # doctest: +SKIP
        run 3f2a, steps 481 to 540: every bit is the same: 14 tensors and 122 logged values
    """
    reading = read(find_run(run, home))
    names = check_allow(allow)
    if epoch is not None and whole:
        raise UsageError("verify one epoch or the whole run", expected="epoch= or whole=", found="both")
    saved = receipts(reading)
    start, wanted = _part(reading, saved, epoch, whole)
    command = recorded(reading)
    command.check()
    if not yes:
        refuse_strangers(reading, command, "look at the command; then give --yes, or yes=True")
    stop = wanted[-1]
    steps = {receipt.step for receipt in wanted}
    came = replay(reading, command, start, stop, steps=steps, allow=names)
    known = {step: saved[step] for step in steps}
    comparison = compare_replay(reading, known, came.states, came.points)
    return Verdict(reading.info.key, start.step if start else 0, stop.step, comparison, came.seconds)


def _part(
    reading: Reading, saved: Mapping[int, Sequence[Receipt]], epoch: int | None, whole: bool
) -> tuple[Receipt | None, list[Receipt]]:
    """Return the checkpoint to begin from (None: the beginning), and the states to compare with."""
    # What was trained last of a step is what the run went on from.
    history = [saved[step][-1] for step in sorted(saved)]
    if not history:
        raise CheckpointNotFoundError(
            f"run {reading.info.key} has recorded no state to compare with",
            expected="at least one checkpoint, which may have been deleted since",
            found=f"an empty ledger in {reading.checkpoints.path}",
            remedy="let the run reach its first checkpoint",
        )
    if whole:
        return _begun(reading, None, history)
    if epoch is None:
        last = history[-1].step
        return _begun(reading, _newest_on_disk(reading, before=last), history)
    begin, end = _steps_of(reading, history, epoch)
    start = _newest_on_disk(reading, before=begin + 1)
    return _begun(reading, start, [receipt for receipt in history if receipt.step <= end])


def _begun(
    reading: Reading, start: Receipt | None, history: Sequence[Receipt]
) -> tuple[Receipt | None, list[Receipt]]:
    fork = Fork.of(reading.info)
    if start is None and fork is not None:
        # Nobody has trained its steps before that with its config.
        start = next((receipt for receipt in reading.receipts if receipt.step == fork.step), None)
        if start is None:
            raise CheckpointNotFoundError(
                f"run {reading.info.key} is a fork, and the checkpoint that it began from is gone",
                expected=f"the checkpoint of step {fork.step} in {reading.checkpoints.path}",
                found="nothing",
                remedy="leave out --all, or verify an epoch that has a checkpoint before it",
            )
    begin = start.step if start else 0
    return start, [receipt for receipt in history if receipt.step > begin]


def _newest_on_disk(reading: Reading, before: int) -> Receipt | None:
    found = [receipt for receipt in reading.receipts if receipt.step < before]
    return max(found, key=lambda receipt: receipt.step, default=None)


def _steps_of(reading: Reading, history: Sequence[Receipt], epoch: int) -> tuple[int, int]:
    """Return the step before an epoch, and that of the first state in which it is over."""
    begin, before = 0, 0
    ends = {r.cursor.fit: r.cursor.epoch for r in history if r.cursor.done}
    # Epochs of the run that were over when a fit's epoch 0 would have begun, by fit.
    offsets, over = {}, 0
    for fit in range(max(receipt.cursor.fit for receipt in history) + 1):
        first = int(reading.manifest(fit).get("fit", {}).get("initial_epoch", 0))
        offsets[fit] = over - first
        over += ends.get(fit, first) - first
    for receipt in history:
        done = offsets[receipt.cursor.fit] + receipt.cursor.epoch
        if done >= epoch:
            return begin, receipt.step
        if done > before or not receipt.cursor.batch:
            begin, before = receipt.step, done
    raise UsageError(
        f"run {reading.info.key} has no state in which epoch {epoch} is over",
        expected=f"an epoch from 1 to {before}" if before else "a run with whole epochs",
        found=str(epoch),
        remedy="leave out the epoch to verify what was trained last",
    )
