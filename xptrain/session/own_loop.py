"""A loop of the user's own: restored at its beginning, saved when it says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xptrain.errors import RestoreMismatchError, UsageError
from xptrain.session.fitting import RunObserver
from xptrain.state.digest import digest_array
from xptrain.state.snapshot import Snapshot
from xptrain.training.describe import describe_model
from xptrain.training.keras_backend import checks, variables
from xptrain.training.keras_backend.live import LiveState
from xptrain.training.observer import OWN_LOOP, Plan, Restored
from xptrain.training.saving import FitState
from xptrain.training.trainer import Trainer

if TYPE_CHECKING:
    from xptrain.session.life import Life


class OwnLoop:
    """What a run does for a loop that trains by `train_on_batch`.

    Args:
        run: The run, open.
        trainers: What the loop trains.
    """

    def __init__(self, run: Life, trainers: tuple[Trainer, ...]) -> None:
        if not trainers:
            raise UsageError("restore() needs at least one trainer", remedy="run.restore(run.trainer(model))")
        for trainer in trainers:
            _check(trainer.model)
        self.trainers = trainers
        self._run = run
        self._observer = RunObserver(run)
        # Metrics begin anew with each batch, or should: their values before the first two, by trainer.
        self._begun: dict[Trainer, list[list[str]]] = {trainer: [] for trainer in trainers}
        self._states = [FitState(trainer.model, [], with_metrics=False) for trainer in trainers]
        self._fit = 0
        self._before = 0
        # Steps of the loop, less those of the first trainer: `checkpoint(step=…)` may count differently.
        self._ahead = 0
        self._is_ready = self._is_compiled = False
        self._is_lost = False
        # The run's step of the copies that the models fall back on.
        self._remembered = 0
        self._saved: int | None = None
        # Whether the loop counts as its trainer does; None before it has said so by a checkpoint.
        self._counts_alike: bool | None = None
        # What is saved before the next step, since a signal asked for it, or a replay of one that did.
        self._held: Snapshot | None = None

    def restore(self) -> int:
        """Put the newest checkpoint into the trainers; returns how many steps of the loop are done."""
        models = [trainer.model for trainer in self.trainers]
        plan = Plan(
            epochs=0,
            initial_epoch=0,
            source={"kind": OWN_LOOP},
            validation=None,
            settings={
                "run_eagerly": [bool(model.run_eagerly) for model in models],
                "jit_compile": [bool(model.jit_compile) for model in models],
            },
            callbacks=[],
            model=describe_model(models[0]),
            data={},
            note="the batches are those of your own loop",
        )
        for state in self._states:
            state.python_state.begin()
        records = [
            replace(record, key=_key(number, record.key))
            for number, state in enumerate(self._states)
            for record in state.records
        ]
        start = self._observer.begin(plan, models[0], records)
        self._fit, self._before = start.fit, start.step
        steps = [0 for _ in self.trainers]
        if start.restored is not None:
            steps = self._write(start.restored)
            self._ahead = start.restored.cursor.batch - steps[0]
            self._counts_alike = not self._ahead
            self._saved = start.restored.step if start.restored.cursor.done else None
        self._observer.resumed(start.step if start.restored is None else start.restored.step)
        for trainer, count, state in zip(self.trainers, steps, self._states, strict=True):
            trainer.begin_at(count)
            state.remember()
            trainer.rescue = self._rescuer(trainer, state)
        self._remembered = self._before + self._done
        return self._done

    def stopped(self) -> None:
        """Say that `restore` is over, however it ended."""
        self._observer.stopped()

    def before_step(self, trainer: Any, shapes: Callable[[], str], program: Callable[[], str | None]) -> None:
        """Compare the compiled step with that of earlier attempts, before the first one is trained.

        Args:
            trainer: Which takes the step.
            shapes: Returns the dtypes and shapes of its batch: for others the step is another program.
            program: Returns the digest of the lowered step.

        Raises:
            UsageError: The trainer is not one of the loop's, so that no checkpoint would have its state.
        """
        if trainer not in self.trainers:
            raise UsageError(
                "this trainer is not one of the loop that is running: no checkpoint would have its state",
                expected=f"one of the {len(self.trainers)} that were given to run.restore",
                found=repr(trainer.model.name),
                remedy="give all trainers of the loop to run.restore(…) and run.checkpoint(…)",
            )
        self._check_whole()
        if self._held is not None:
            held, self._held = self._held, None
            self._observer.save(held, self._uncaptured)
            if self._run.preemption.stopping:
                self._run.preemption.stop(held.step)
        if len(self._begun[trainer]) < 2:
            _, _, _, metrics = variables.groups(trainer.model)
            self._begun[trainer].append([digest_array(metric.value) for metric in metrics])
        if not self._is_ready:
            self._is_ready = True
            name = f"train {self.trainers.index(trainer)} {shapes()}"
            self._observer.ready(program, self._uncaptured, (), name)

    def note_step(self) -> None:
        """Note on the run how many steps are done: what is logged now belongs to that step."""
        self._run.step = self._before + self._done
        if not self._is_compiled:
            self._is_compiled = True
            for state in self._states:
                state.python_state.note_compiled()

    def hold(self) -> None:
        """Take the state after a step, to be saved as the next one begins: a signal asked for it.

        In between, what the loop does after a step (its logging) is done: no checkpoint stands before
        the points of its step. Only a loop of one trainer whose steps are the loop's own is stopped here. Any
        other may be in the middle of something, and stops at its next `run.checkpoint`.
        """
        if self._held is None and self._counts_alike and len(self.trainers) == 1:
            self._held = self._taken(done=False)

    def save(self, step: int | None) -> None:
        """Save the state after `step` steps of the loop."""
        self._check_whole()
        self._ahead = 0 if step is None else step - self.trainers[0].steps
        self._counts_alike = not self._ahead
        self._save(done=False)
        if self._run.preemption.stopping:
            self._run.preemption.stop(self._run.step)

    def end(self) -> None:
        """Save what the loop ended with, so that what follows it can be resumed alone."""
        if self._done and not self._is_lost and self._saved != self._before + self._done:
            self._save(done=True)

    def _rescuer(self, trainer: Trainer, state: FitState) -> Callable[[LiveState], str]:
        def rescue(live: LiveState) -> str:
            self._is_lost = True
            state.rescue(live)
            trainer.model.reset_metrics()
            return (
                "the step had taken the model's variables and failed. The model holds the last snapshot "
                f"again, of step {self._remembered}; resume the run to go on from its newest checkpoint"
            )

        return rescue

    def _check_whole(self) -> None:
        """Raise when a model holds an earlier step than the loop is at: what came then were not the run."""
        if self._is_lost:
            raise UsageError(
                "a step of this loop failed, and its model holds an earlier snapshot again",
                expected=f"a loop that goes on from step {self._remembered}",
                found=f"step {self._run.step}",
                remedy="finish the run, and go on with run(resume=…)",
            )

    @property
    def _done(self) -> int:
        return self.trainers[0].steps + self._ahead

    def _save(self, *, done: bool) -> None:
        self._held = None
        self._observer.save(self._taken(done=done), self._uncaptured)

    def _taken(self, *, done: bool) -> Snapshot:
        self.note_step()
        for state in self._states:
            state.forget_last()
        self._observer.make_room()
        self._remembered = self._run.step
        parts = [state.snapshot(self._fit, 0, self._done, self._run.step) for state in self._states]
        leaves = {
            _key(number, key): leaf for number, part in enumerate(parts) for key, leaf in part.leaves.items()
        }
        host = {
            "parts": [part.host for part in parts],
            "steps": [trainer.steps for trainer in self.trainers],
            "stopped": False,
        }
        return Snapshot(self._run.step, replace(parts[0].cursor, done=done), leaves, host, pinned=done)

    def _write(self, restored: Restored) -> list[int]:
        parts = restored.host.get("parts", ())
        if len(parts) != len(self.trainers):
            raise RestoreMismatchError(
                "the checkpoint is not of this loop; nothing was written",
                expected=f"{len(self.trainers)} trainers",
                found=f"a loop of {len(parts)} trainers" if parts else "a checkpoint of run.fit",
                remedy="train as the run did, or start a new run",
            )
        prepared = [
            state.prepare_restore(_part(restored, number)) for number, state in enumerate(self._states)
        ]
        for write in prepared:
            write()
        return [int(steps) for steps in restored.host["steps"]]

    @property
    def _uncaptured(self) -> list[str]:
        named = [name for state in self._states for name in state.uncaptured]
        for trainer, begun in self._begun.items():
            if begun[1:] and begun[1] != begun[0]:
                named.append(f"what a metric of {trainer.model.name!r} keeps when it is reset")
        return named


def _key(number: int, key: str) -> str:
    # The first model's keys are those of a fit, so that its weights can be loaded alone.
    return f"{number}:{key}" if number else key


def _part(restored: Restored, number: int) -> Restored:
    leaves: Mapping[str, Any] = restored.leaves
    if number:
        head = f"{number}:"
        mine = {key.removeprefix(head): leaf for key, leaf in leaves.items() if key.startswith(head)}
    else:
        mine = {key: leaf for key, leaf in leaves.items() if ":" not in key.partition("/")[0]}
    return replace(restored, leaves=mine, host=restored.host["parts"][number])


def _check(model: Any) -> None:
    checks.check_compiled(model, "a loop of your own")
    if not variables.is_built(model):
        raise UsageError(
            "the model must be built before a loop of your own is restored",
            expected="a model with all its variables",
            found=f"{type(model).__name__} {model.name!r}, not built",
            remedy="call it on one batch first: model(x[:1])",
        )
    variables.build_optimizer(model)
