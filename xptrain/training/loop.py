"""The loop: the order in which a fit, an epoch and a step happen, readable from top to bottom."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from xptrain.data.generators import shared_with
from xptrain.data.source import in_chunks
from xptrain.training.chunks import Chunks, Fused, Single
from xptrain.training.evaluation import evaluate_source
from xptrain.training.keras_backend import callbacks as kc
from xptrain.training.keras_backend import checks
from xptrain.training.keras_backend.live import TRAIN, LiveState
from xptrain.training.observer import Epoch, Observer, Plan
from xptrain.training.progress import Progress
from xptrain.training.saving import FitState
from xptrain.training.step import train_step

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


class Fit:
    """One fit. The order of the calls below binds: it is what makes a resumed fit equal to a straight one."""

    def __init__(
        self,
        model: Any,
        plan: Plan,
        source: Any,
        validation: Any,
        callbacks: Any,
        observer: Observer,
        progress: Progress,
    ) -> None:
        self._model = model
        self._plan = plan
        self._source = source
        self._validation = validation
        self._callbacks = callbacks
        self._observer = observer
        self._progress = progress
        sources = {"train": source} if validation is None else {"train": source, "validation": validation}
        self._state = FitState(model, callbacks.callbacks, sources=sources)
        self._live: LiveState | None = None
        self._changes: Sequence[Any] = ()
        self._announced = self._has_trained = False
        train_step(model)
        self._unchanged = checks.Unchanged(model)
        self._chunk = 0
        self._last_logs: dict[str, Any] = {}
        self._restored_logs: dict[str, Any] = {}
        self._epoch_logs: dict[str, Any] = {}
        self.number = 0
        self.step = 0

    def run(self) -> None:
        """Train from the beginning, or from the checkpoint that the observer names, to the end."""
        try:
            self._run()
            if self._observer.stopping:
                # Told to stop after its last step: it is finished, and saved.
                self._observer.stop()
        finally:
            self._observer.stopped()

    def _run(self) -> None:
        tap = kc.log_tap()
        python = self._state.python_state
        model, plan = self._model, replace(self._plan, files=python.file_offsets())
        model.stop_training = False
        start = self._observer.begin(plan, model, self._state.records)
        self.number, self.step = start.fit, start.step
        restored = start.restored
        self._state.begin_sources(start.fit, restored)
        if restored is not None and restored.cursor.done and not start.extend:
            self.step = restored.step
            self._state.restore_end(restored)
            return
        epoch, skip = plan.initial_epoch, 0
        prepared: list[Any] = []
        self._callbacks.callbacks.append(tap)
        try:
            python.cut_files(start.files)
            prepared = python.prepare(resuming=restored is not None)
            was_initial = kc.initial_epoch(model)
            self._callbacks.on_train_begin()
            python.begin()
            # `BackupAndRestore` sets it there, for this fit only.
            epoch = kc.initial_epoch(model) or epoch
            kc.set_initial_epoch(model, was_initial)
            if restored is not None:
                epoch, skip, self.step = restored.cursor.epoch, restored.cursor.batch, restored.step
                if skip:
                    # The epoch had begun. Callbacks set themselves up here, from the state that they know,
                    # and get it back afterwards.
                    self._state.restore(restored, prepared)
                    self._begin_epoch(epoch)
                self._changes = self._state.restore(restored, prepared)
                self._restored_logs = self._state.logs_in(restored)
                # A fit that was told to stop has no checkpoint to go on from.
                model.stop_training = False
                self._observer.resumed(self.step)
            self._state.remember()
            while epoch < plan.epochs:
                self._epoch(epoch, skip, tap)
                epoch, skip = epoch + 1, 0
                self._stop_without_data(epoch)
                if model.stop_training:
                    break
                if epoch < plan.epochs and self._wanted(epochs_done=epoch):
                    self._save(self._snapshot(epoch, 0, tap.logs))
                    if self._observer.stopping:
                        self._observer.stop()
            self._end(epoch, tap.logs)
        except BaseException as error:
            # The user's own error goes on; the model stays usable.
            checks.explain(model, error)
            if self._state.rescue(self._live):
                error.add_note("xptrain: the step had taken its inputs; the model holds the last snapshot")
            raise
        finally:
            python.unprepare(prepared)
            self._progress.stop()
            self._callbacks.callbacks.remove(tap)

    def _begin_epoch(self, epoch: int) -> None:
        self._model.reset_metrics()
        self._callbacks.on_epoch_begin(epoch)

    def _epoch(self, epoch: int, skip: int, tap: Any) -> None:
        began, first_step = time.monotonic(), self.step
        if not skip:
            self._begin_epoch(epoch)
        self._progress.epoch_begin(epoch, skip)
        done = self._train(epoch, skip)
        if not done - skip:
            # The checkpoint was made after the last batch: metrics and the step's logs are in it.
            self._last_logs = self._restored_logs or self._model.get_metrics_result()
        logs = kc.epoch_logs(self._model, self._last_logs)
        if self._validation is not None and kc.should_validate(
            self._model, epoch, self._plan.settings["validation_freq"]
        ):
            # The bar is the epoch's.
            silent = Progress(0, 1, None)
            values = evaluate_source(
                self._model, self._validation, self._callbacks, silent, self.number, epoch
            )
            logs.update({f"val_{name}": value for name, value in values.items()})
        self._callbacks.on_epoch_end(epoch, logs)
        self._epoch_logs = logs
        self._progress.epoch_end(done, tap.logs)
        seconds = time.monotonic() - began
        self._observer.epoch(Epoch(epoch, self.step, tap.logs, seconds, self.step - first_step))

    def _train(self, epoch: int, skip: int) -> int:
        """Train the epoch's batches from number `skip` on; returns how many of them are trained then."""
        model, callbacks, observer = self._model, self._callbacks, self._observer
        chunks = Fused(model) if self._plan.settings.get("fused") else Single(model)
        self._unchanged.check()
        hooks = kc.has_batch_hook(callbacks, _BATCH_HOOKS)
        live = self._live = LiveState(model, TRAIN)
        done = skip
        for chunk in in_chunks(self._source.epoch(self.number, epoch, skip), model.steps_per_execution):
            if hooks:
                callbacks.on_train_batch_begin(done)
                self._unchanged.check(quick=True)
            if not self._announced:
                self._unchanged.check()
                # A batch that is at hand need not be loaded twice.
                is_first = not done and epoch == self._plan.initial_epoch
                self._announce(chunks, live.take(), chunk[0] if is_first else self._source.first())
                if observer.stopping:
                    # Nothing is trained yet that a checkpoint lacks.
                    observer.stop()
            self._last_logs = chunks.train(live, chunk, self._told)
            if not self._has_trained:
                self._has_trained = True
                self._state.python_state.note_compiled()
            self._chunk = len(chunk)
            done += self._chunk
            self._progress.batch_end(done, self._last_logs)
            if hooks:
                # Callbacks may look at the model from anywhere, through another model that holds it too.
                live.attach()
                callbacks.on_train_batch_end(done - 1, self._last_logs)
                self._unchanged.check(quick=True)
            if model.stop_training:
                break
            size = self._source.batches_in(epoch)
            if observer.stopping or (
                observer.wants_steps and done != size and observer.due(self.step, self._chunk)
            ):
                live.attach()
                kc.wait_for_callbacks(callbacks)
                # Without another step in the epoch, its logs are those of this one.
                logs = kc.pythonify(self._last_logs) if size in (None, done) else {}
                self._save(self._snapshot(epoch, done, {}, logs))
                if observer.stopping:
                    observer.stop()
        live.attach()
        self._unchanged.check()
        return done

    def _stop_without_data(self, epoch: int) -> None:
        if self._source.is_over and epoch < self._plan.epochs:
            # Keras trains on, with the two batches that it looked at first.
            warnings.warn(
                f"the generator ended with epoch {epoch} of {self._plan.epochs}, and so does the training: "
                "give an endless one and steps_per_epoch=, or a function f(epoch, batch) that returns one",
                stacklevel=2,
            )
            self._model.stop_training = True

    def _wanted(self, epochs_done: int) -> bool:
        observer = self._observer
        return observer.stopping or observer.due(self.step, self._chunk, epochs_done)

    def _told(self, count: int, logs: Any) -> None:
        self.step += count
        self._observer.step(self.step, logs, count)

    def _announce(self, chunks: Chunks, state: Any, first: Any) -> None:
        self._announced = True
        # Always the shapes of a first batch: a resumed epoch may begin with a smaller last one.
        self._observer.ready(lambda: chunks.program(state, first), self._uncaptured, self._changes)

    def _end(self, epoch: int, logs: dict[str, Any]) -> None:
        model = self._model
        if self._live is not None:
            self._live.close()
        before = self._snapshot(epoch, 0, logs)
        if self._plan.epochs > 0 and model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._callbacks.on_train_end(logs=self._epoch_logs)
        self._unchanged.check()
        last = self._state.with_end(before, stopped=model.stop_training)
        self._save(replace(last, pinned=True))

    def _snapshot(
        self, epoch: int, batch: int, metrics: dict[str, Any], logs: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        self._state.forget_last()
        self._observer.make_room()
        return self._state.snapshot(self.number, epoch, batch, self.step, metrics, logs)

    def _save(self, snapshot: Any) -> None:
        self._observer.save(snapshot, self._uncaptured)

    @property
    def _uncaptured(self) -> list[str]:
        validation = () if self._validation is None else self._validation.uncaptured
        return [
            *self._state.uncaptured,
            *self._source.uncaptured,
            *shared_with(self._source, self._validation),
            *(f"{name} (validation)" for name in validation),
        ]
