"""One fit of a run: what it goes on from, what is refused, what is recorded, when it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xptrain.checkpoint.receipts import Loaded
from xptrain.errors import UsageError
from xptrain.provenance.data import fingerprint
from xptrain.provenance.diff.beginning import compare_beginnings
from xptrain.provenance.diff.compare import compare
from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.grade import Grade, admit, require
from xptrain.provenance.hazards import Hit
from xptrain.provenance.manifest import capture_dynamic
from xptrain.provenance.summary import difference_table
from xptrain.session.forked import say_what_stays
from xptrain.session.opening import known_now
from xptrain.session.readable import say
from xptrain.session.recording import record_fit
from xptrain.session.sections import fit_section
from xptrain.state.records import VariableRecord
from xptrain.state.snapshot import Snapshot
from xptrain.training.logs import flat, is_number, numbers
from xptrain.training.observer import Epoch, Plan, Restored, Start

if TYPE_CHECKING:
    from xptrain.session.life import Life

_VOLATILE = frozenset({"time/epoch_seconds", "time/steps_per_second"})


class RunObserver:
    """Watches one fit for a run; see `training.observer.Observer` for when each method is called.

    Args:
        run: The run, open.
    """

    def __init__(self, run: Life) -> None:
        self._run = run
        self._fit = 0
        self._names: dict[str, str] = {}
        self._seen_keys: frozenset[str] = frozenset()
        self._is_nested = False
        self._uncaptured: set[str] = set()
        self._lost: list[str] = []
        self._grade = Grade("exact")
        self._before: dict[str, Any] | None = None
        self._manifest: dict[str, Any] = {}
        self._differences: list[Difference] = []
        self._beginning: list[Difference] = []
        self._epoch_offset = 0
        self._first_step = 0
        self._model: Any = None
        self._began = False
        self._step_before = 0
        self._loaded: Loaded | None = None
        self._is_forking = False
        self.wants_steps = run.checkpoints.wants_steps
        self.files = None if run.replay is None else run.replay.files

    def begin(self, plan: Plan, model: Any, records: Sequence[VariableRecord]) -> Start:
        """Find the checkpoint, capture what must be equal, and say where the fit goes on."""
        run = self._run
        run.check_open()
        # From here on a signal waits for the next step boundary.
        run.preemption.enter(self)
        self._fit = run.next_fit()
        self._model = model
        self._began, self._step_before = False, run.step
        loaded = self._loaded = run.checkpoints.for_fit(self._fit)
        if loaded is not None and run.fork is not None:
            self._is_forking = loaded.receipt.step <= run.fork.step
            loaded = run.fork.adopt(loaded, records)
        data = fingerprint(plan.data)
        self._manifest = capture_dynamic(
            run.manifest,
            run_canary=self._fit == 0,
            data=data.as_json(),
            order=dict(plan.source),
            fit=fit_section(plan),
            callbacks=[{"name": name} for name in plan.callbacks],
            variables=[(r.key, r.role, r.path, r.variable.value) for r in records],
        )
        if self._fit:
            # The canary ran once, at the first fit.
            self._manifest["hazards"] = run.hazards
        run.hazards = self._manifest["hazards"]
        self._manifest["data_note"] = plan.note or data.note
        self._manifest["model"] = dict(plan.model)
        self._manifest["files"] = list(plan.files)
        # What the checkpoint was made under counts, not what a later attempt without one trained under.
        newer = run.attempt if loaded is None else loaded.receipt.attempt + 1
        before = self._before = run.manifests.last(newer, self._fit)
        if before is not None:
            if loaded is None:
                self._beginning = compare_beginnings(before, self._manifest)
            self._differences = [*known_now(compare(before, self._manifest)), *self._beginning]
            if "grade" in before and loaded is not None:
                self._grade = Grade.from_json(before["grade"])
        extend = False
        if loaded is not None:
            extend = self._check_epochs(plan, loaded)
        self._admit(uncaptured=())
        self._epoch_offset = run.next_epoch - plan.initial_epoch if self._fit else 0
        restored = None
        step = run.step
        if loaded is not None:
            receipt = loaded.receipt
            restored = Restored(receipt.step, receipt.cursor, loaded.leaves, loaded.host)
            self._epoch_offset = int(loaded.host["session"]["epoch_offset"])
            # What an earlier attempt could not keep is missing from now on, whether it changes again or not.
            self._lost = list(loaded.host["session"].get("uncaptured", ()))
            self._say_where(plan, loaded, extend)
            if before is not None and run.fork is None:
                say_what_stays(before, records, loaded, run.key)
            run.next_epoch = receipt.cursor.epoch + self._epoch_offset
            if receipt.cursor.done and not extend:
                run.step = receipt.step
                self._has_begun()
                reasons = _reasons(self._lost)
                self._merge_grade(self._grade.lower("approximate", *reasons) if reasons else self._grade)
            else:
                # Hooks that run again before the state is written: what they log was logged already.
                run.is_repeating = True
        elif run.attempt > 1 and run.resumed_from is None:
            say(f"run {run.key}, attempt {run.attempt}: no checkpoint yet, starting at step {step}")
            self._note_start(step)
        self._first_step = step if loaded is None else -1
        if loaded is None and before is not None:
            # It starts over: what the attempts before it have appended to files is written again.
            self._manifest["files"] = before.get("files", self._manifest["files"])
        files = self._manifest["files"] if loaded is None else ()
        return Start(fit=self._fit, step=step, seed=run.seed, restored=restored, extend=extend, files=files)

    def resumed(self, step: int) -> None:
        """Go on recording: the state is that of the checkpoint."""
        self._run.step, self._run.is_repeating = step, False
        self._has_begun()

    def ready(
        self,
        program: Callable[[], str | None],
        uncaptured: Sequence[str],
        changes: Sequence[Any],
        name: str = "train",
    ) -> None:
        """Compare the compiled program of that name, grade the run, and record the attempt's manifest."""
        run = self._run
        self._has_begun()
        lowered = program()
        self._manifest["program"] = {} if lowered is None else {name: lowered}
        uncaptured = list(dict.fromkeys([*uncaptured, *self._lost]))
        self._uncaptured = set(uncaptured)
        if self._before is not None and "program" in self._before:
            self._differences = [*compare(self._before, self._manifest), *self._beginning]
        self._differences += [
            Difference(
                "callbacks",
                f"{c.callback}.{c.name}",
                c.before,
                c.after,
                "refuse" if c.moves_bits and not self._is_forking else "tell",
                "this attempt's value is used",
            )
            for c in changes
            # A replay writes elsewhere.
            if c.moves_bits or run.replay is None
        ]
        # A grade never rises again: the steps before this attempt are part of the run.
        grade = self._admit(uncaptured).lower(self._grade.level, *self._grade.reasons)
        told = [difference for difference in self._differences if difference.severity == "tell"]
        if self._differences:
            table = difference_table(self._differences, run.settings.allow)
            say(f"changed since the run was started:\n{table}")
        self._manifest["grade"] = grade.as_json()
        self._manifest["differences"] = [str(difference) for difference in self._differences]
        self._merge_grade(grade)
        record_fit(run, self._manifest, self._model, self._fit, bool(told))
        if self._fit == 0:
            say(f"run {run.key}: {run.grade}")

    def step(self, step: int, logs: Mapping[str, Any], count: int = 1) -> None:
        """Queue the values of one step, or of several; nothing waits."""
        run = self._run
        if run.checkpoints.fenced.is_set():
            run.checkpoints.lock.check()
        run.step = step
        if logs.keys() != self._seen_keys:
            # Rare, so that a step pays for one comparison: which entries are numbers, and all of them flat?
            self._seen_keys = frozenset(logs)
            values = {name: value if count == 1 else value[0] for name, value in flat(logs)}
            self._names = {name: f"batch/{name}" for name, value in values.items() if is_number(value)}
            self._is_nested = any(isinstance(value, Mapping) for value in logs.values())
        if self._is_nested:
            logs = dict(flat(logs))
        run.writer.log_device(step, {label: logs[name] for name, label in self._names.items()}, count=count)

    def _has_begun(self) -> None:
        """Keep the fit's number, and let go of its checkpoint: it would hold a copy of the state."""
        self._began, self._loaded = True, None

    def stopped(self) -> None:
        """Let the script's own records count again; a fit that never began has not been."""
        self._run.preemption.leave(self)
        self._run.is_repeating = False
        if not self._began and self._run.step == self._step_before:
            self._run.give_back(self._fit, self._loaded)
        self._loaded = None

    @property
    def stopping(self) -> bool:
        """Whether a signal asked for it."""
        return self._run.preemption.stopping

    def stop(self) -> None:
        """Raise what the signal means."""
        self._run.preemption.stop(self._run.step)

    def before_step(self, trainer: Any, shapes: Callable[[], str], program: Callable[[], str | None]) -> None:
        """Compare the program of a loop of the user's own."""
        if self._run.loop is not None:
            self._run.loop.before_step(trainer, shapes, program)

    def trained(self) -> None:
        """Note where a loop of the user's own is."""
        run = self._run
        if run.loop is not None:
            run.loop.note_step()
            if run.preemption.stopping or run.checkpoints.replayed(run.step):
                run.loop.hold()

    def due(self, step: int, steps_done: int, epochs_done: int | None = None) -> bool:
        """Ask the policy."""
        return self._run.checkpoints.due(step, steps_done, epochs_done)

    def make_room(self) -> None:
        """Wait for a save in flight."""
        self._run.checkpoints.make_room()

    def save(self, snapshot: Snapshot, uncaptured: Sequence[str]) -> None:
        """Add what the session needs to go on, and save in the background."""
        run = self._run
        found = [name for name in dict.fromkeys(uncaptured) if name not in self._uncaptured]
        self._uncaptured.update(found)
        # A fit without a step: its checkpoint would replace the one that ends the fit before it.
        if snapshot.step != self._first_step:
            session = {
                "epoch_offset": self._epoch_offset,
                "journal": run.journal.end,
                "uncaptured": sorted(self._uncaptured),
            }
            run.checkpoints.save(replace(snapshot, host={**snapshot.host, "session": session}))
            if snapshot.cursor.done:
                run.next_epoch = snapshot.cursor.epoch + self._epoch_offset
        if found:
            # After the save: a run that is refused now can go on from here if it is let.
            self._lower(_reasons(found))

    def epoch(self, epoch: Epoch) -> None:
        """Record the epoch's values under `train/` and `val/`, with the run's epoch number."""
        run = self._run
        number = epoch.epoch + self._epoch_offset
        values = {
            f"val/{name[4:]}" if name.startswith("val_") else f"train/{name}": value
            for name, value in numbers(epoch.logs).items()
        }
        if epoch.trained and epoch.seconds > 0:
            values["time/epoch_seconds"] = epoch.seconds
            values["time/steps_per_second"] = epoch.trained / epoch.seconds
        run.writer.log(number, values, volatile=_VOLATILE)
        self._tag_attempt("to_step", epoch.step)

    def _merge_grade(self, grade: Grade) -> None:
        run = self._run
        run.grade = grade if run.grade is None else run.grade.lower(grade.level, *grade.reasons)

    def _lower(self, reasons: list[str]) -> None:
        """Lower the grade while training: the grade claims only what holds."""
        run = self._run
        self._merge_grade(Grade("approximate", tuple(reasons)))
        assert run.grade is not None
        run.writer.append("tags", values={"xptrain.grade": str(run.grade)})
        say(f"run {run.key}: {run.grade}")
        require(run.grade, run.settings.exactness)

    def _note_start(self, step: int) -> None:
        self._run.resumed_from = step
        self._tag_attempt("from_step", step)

    def _tag_attempt(self, name: str, step: int) -> None:
        run = self._run
        run.writer.append("tags", values={f"xptrain.attempt.{run.attempt}.{name}": str(step)})

    def _admit(self, uncaptured: Sequence[str]) -> Grade:
        run = self._run
        hits = [Hit(**hit) for hit in self._manifest["hazards"]]
        topology = self._manifest.get("topology") or {}
        note = self._manifest["data_note"]
        return admit(
            exactness=run.settings.exactness,
            allow=run.settings.allow,
            hazards=hits,
            devices=int(topology.get("devices", 1) or 1),
            not_captured=_reasons(uncaptured),
            differences=self._differences,
            notes=[note] if note else [],
        )

    def _check_epochs(self, plan: Plan, loaded: Loaded) -> bool:
        """Return whether a finished fit is to be trained further; refuse fewer epochs than are trained."""
        cursor = loaded.receipt.cursor
        trained = cursor.epoch + (1 if cursor.batch else 0)
        if plan.is_own_loop:
            return False
        if plan.epochs < trained and not loaded.host.get("stopped"):
            raise UsageError(
                "the fit asks for fewer epochs than the run has trained",
                expected=f"epochs >= {trained}",
                found=f"epochs={plan.epochs}",
                remedy="give the run its number of epochs again, or start a new run",
            )
        return cursor.done and plan.epochs > cursor.epoch and not loaded.host.get("stopped")

    def _say_where(self, plan: Plan, loaded: Loaded, extend: bool) -> None:
        run, receipt = self._run, loaded.receipt
        cursor = receipt.cursor
        if cursor.done and not extend:
            say(
                f"run {run.key}: fit {self._fit} is finished ({receipt.step} steps), not trained again; "
                f"more epochs= and `xptrain resume {run.key} --allow epochs` train it further"
            )
            return
        where = f"run {run.key}, attempt {run.attempt}: going on from step {receipt.step}"
        if plan.epochs:
            batch = f", batch {cursor.batch + 1} of {plan.source.get('num_batches')}" if cursor.batch else ""
            where += f" (epoch {cursor.epoch + 1} of {plan.epochs}{batch})"
        say(where)
        self._note_start(receipt.step)


def _reasons(uncaptured: Sequence[str]) -> list[str]:
    return [f"{name} cannot be captured" for name in uncaptured]
