"""The trainer: Keras's `fit`, `evaluate` and `predict`, with a loop of our own behind them."""

from __future__ import annotations

import operator
import secrets
from functools import partial
from typing import Any

from xptrain.data.source import Source
from xptrain.training import on_batch
from xptrain.training.describe import describe_model
from xptrain.training.evaluation import evaluate_source, predict_source
from xptrain.training.keras_backend import arrays, checks, variables
from xptrain.training.keras_backend import callbacks as kc
from xptrain.training.keras_backend.sources import source_of
from xptrain.training.loop import Fit
from xptrain.training.observer import NoObserver, Observer, Plan
from xptrain.training.progress import Progress


class Trainer:
    """Trains, evaluates and predicts with a Keras model on JAX, in a loop of its own.

    `fit` takes the arguments of `keras.Model.fit`, calls the same callbacks, and with the same order of the
    batches it returns the same bits.

    Args:
        model: A compiled Keras model.
        seed: Seed of the order of the data; drawn when None.

    Example:
        >>> trainer = xptrain.Trainer(model, seed=0)  # doctest: +SKIP
        >>> history = trainer.fit(x, y, epochs=3)  # doctest: +SKIP
    """

    def __init__(self, model: Any, *, seed: int | None = None) -> None:
        checks.check_backend()
        self.model = model
        self._seed = secrets.randbits(32) if seed is None else int(seed)
        self._fits = 0
        self._step = 0
        self._observer: Observer | None = None
        self.rescue: on_batch.Rescue | None = None

    @classmethod
    def observed(cls, model: Any, observer: Observer, seed: int) -> Trainer:
        """Return a trainer whose fits are watched by `observer` (a run does this)."""
        trainer = cls(model, seed=seed)
        trainer._observer = observer
        return trainer

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | list[int] = 1,
        *,
        fused: bool = False,
    ) -> Any:
        """Train the model; the arguments are those of `keras.Model.fit`, and `fused`.

        Args:
            x: Inputs: arrays of shape (samples, …), or nested lists and dicts of them.
            y: Targets, in the structure of the outputs.
            batch_size: Samples per step; 32 when None.
            epochs: Where the epochs end (not how many more).
            verbose: 0 silent, 1 or "auto" a progress bar, 2 one line per epoch.
            callbacks: `keras.callbacks.Callback` objects, or a `CallbackList`.
            validation_split: Fraction of the samples, the last ones, to hold out for validation.
            validation_data: `(x, y)` or `(x, y, sample_weight)` to evaluate on after an epoch.
            shuffle: True to permute the samples each epoch, "batch" to permute inside batches, or False.
            class_weight: Weight by class index.
            sample_weight: Weights of shape (samples,), or one array per output.
            initial_epoch: Where the epochs begin.
            steps_per_epoch: Batches in an epoch when it is not one pass over the data.
            validation_steps: Batches of validation; all when None.
            validation_batch_size: Samples per validation step; `batch_size` when None.
            validation_freq: Validate every so many epochs, or in the listed ones (counted from 1).
            fused: Train each chunk of `steps_per_execution` steps as one compiled program (`lax.scan`). It is
                faster for small models, and a program of its own: its last bits may differ from single steps.

        Returns:
            `keras.callbacks.History`. Of a resumed fit it covers all epochs, those before the stop too.

        Raises:
            NotCompiledError: If `model.compile` was not called.
            UsageError: If the data are of a kind that is not supported.
            RestoreMismatchError: If the checkpoint to resume from is of another model.

        Example:
            >>> trainer.fit(x, y, epochs=2, validation_split=0.1)  # doctest: +SKIP
        """
        model = self.model
        checks.check_compiled(model, "fit")
        if fused:
            checks.check_fusable(model)
        epochs = checks.capped("max_epochs", operator.index(epochs)) or 0
        initial_epoch = operator.index(initial_epoch)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = arrays.split_validation(
                x, y, sample_weight, validation_split
            )
        source = source_of(
            *(x, y, sample_weight),
            batch_size=batch_size,
            steps=steps_per_epoch,
            steps_per_execution=model.steps_per_execution,
            shuffle=shuffle,
            class_weight=class_weight,
            seed=self._seed,
            first_epoch=initial_epoch,
        )
        validation = None
        if validation_data is not None:
            validation = source_of(
                *arrays.unpack(validation_data),
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
                steps_per_execution=model.steps_per_execution,
                seed=self._seed,
                first_epoch=initial_epoch,
                role="validation",
            )
        variables.build(model, source.first)
        checks.check_layouts(model)
        # What was asked for, also where whole chunks make more of it.
        steps = min(filter(None, (steps_per_epoch, source.num_batches)), default=None)
        called = kc.callback_list(model, callbacks, history=True, verbose=verbose, epochs=epochs, steps=steps)
        observer = self._observer or NoObserver(self._seed, self._fits, self._step)
        if observer.files is not None:
            kc.write_elsewhere(called, observer.files)
        plan = Plan(
            epochs=epochs,
            initial_epoch=initial_epoch,
            source=source.describe(),
            validation=None if validation is None else validation.describe(),
            settings={
                "validation_freq": validation_freq
                if isinstance(validation_freq, int)
                else list(validation_freq),
                "class_weight": {str(k): float(v) for k, v in (class_weight or {}).items()},
                "steps_per_execution": model.steps_per_execution,
                "run_eagerly": bool(model.run_eagerly),
                "jit_compile": bool(model.jit_compile),
                **({"fused": True} if fused else {}),
            },
            callbacks=[type(callback).__qualname__ for callback in called.callbacks],
            model=describe_model(model),
            data={"x": x, "y": y, "sample_weight": sample_weight, "validation": validation_data},
        )
        fit = Fit(
            model=model,
            plan=plan,
            source=source,
            validation=validation,
            callbacks=called,
            observer=observer,
            progress=Progress(0 if kc.has_progress_bar(called) else verbose, epochs, source.num_batches),
        )
        fit.run()
        self._fits, self._step = fit.number + 1, fit.step
        return model.history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Return loss and metrics on data; the arguments are those of `keras.Model.evaluate`.

        Args:
            x: Inputs, arrays of shape (samples, …) or nested.
            y: Targets.
            batch_size: Samples per step; 32 when None.
            verbose: 0 silent, 1 or "auto" a progress bar, 2 one line.
            sample_weight: Weights of shape (samples,).
            steps: Batches to evaluate; all when None.
            callbacks: Callbacks for `on_test_*`.
            return_dict: Return a dict by name.

        Returns:
            The loss, or a list of loss and metrics, or a dict.

        Raises:
            NotCompiledError: If `model.compile` was not called.

        Example:
            >>> trainer.evaluate(x, y, return_dict=True)  # doctest: +SKIP
        """
        model = self.model
        checks.check_compiled(model, "evaluate")
        source = source_of(
            *(x, y, sample_weight),
            batch_size=batch_size,
            steps=steps,
            steps_per_execution=model.steps_per_execution,
        )
        variables.build(model, source.first)
        called, progress = self._called(callbacks, verbose, source)
        with progress:
            logs = evaluate_source(model, source, called, progress)
        return logs if return_dict else kc.flatten_logs(model, logs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Return the model's outputs as NumPy arrays; the arguments are those of `keras.Model.predict`.

        Args:
            x: Inputs, arrays of shape (samples, …) or nested.
            batch_size: Samples per step; 32 when None.
            verbose: 0 silent, 1 or "auto" a progress bar, 2 one line.
            steps: Batches to predict; all when None.
            callbacks: Callbacks for `on_predict_*`.

        Returns:
            Arrays of shape (samples, …) in the structure of the outputs.

        Example:
            >>> trainer.predict(x).shape  # doctest: +SKIP
        """
        source = source_of(
            x, batch_size=batch_size, steps=steps, steps_per_execution=self.model.steps_per_execution
        )
        variables.build_for_prediction(self.model, source.first)
        called, progress = self._called(callbacks, verbose, source)
        with progress:
            return predict_source(self.model, source, called, progress)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Train one step; the arguments are those of `keras.Model.train_on_batch`.

        Args:
            x: Inputs of one batch, arrays of shape (samples, …) or nested.
            y: Targets.
            sample_weight: Weights of shape (samples,); not together with `class_weight`.
            class_weight: Weight by class index.
            return_dict: Return a dict by name.

        Returns:
            The batch's loss, or a list of loss and metrics, or a dict.

        Raises:
            NotCompiledError: If `model.compile` was not called.

        Example:
            >>> trainer.train_on_batch(x, y, return_dict=True)  # doctest: +SKIP
        """
        checks.check_compiled(self.model, "train_on_batch")
        before = None if self._observer is None else partial(self._observer.before_step, self)
        logs = on_batch.train(self.model, x, y, sample_weight, class_weight, before, self.rescue)
        self._step += 1
        if self._observer is not None:
            self._observer.trained()
        return logs if return_dict else kc.flatten_logs(self.model, logs)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Return loss and metrics of one batch; the arguments are those of `keras.Model.test_on_batch`.

        Args:
            x: Inputs of one batch, arrays of shape (samples, …) or nested.
            y: Targets.
            sample_weight: Weights of shape (samples,).
            return_dict: Return a dict by name.

        Returns:
            The loss, or a list of loss and metrics, or a dict.

        Raises:
            NotCompiledError: If `model.compile` was not called.

        Example:
            >>> trainer.test_on_batch(x, y)  # doctest: +SKIP
        """
        checks.check_compiled(self.model, "test_on_batch")
        logs = on_batch.test(self.model, x, y, sample_weight)
        return logs if return_dict else kc.flatten_logs(self.model, logs)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the model's outputs for one batch as NumPy arrays.

        Args:
            x: Inputs of one batch, arrays of shape (samples, …) or nested.

        Returns:
            Arrays of shape (samples, …) in the structure of the outputs.

        Example:
            >>> trainer.predict_on_batch(x).shape  # doctest: +SKIP
        """
        return on_batch.predict(self.model, x)

    @property
    def steps(self) -> int:
        """Steps trained so far, those before a checkpoint that was restored included."""
        return self._step

    def begin_at(self, steps: int) -> None:
        """Go on counting from a checkpoint that was restored.

        Args:
            steps: Steps that were trained before it.

        Example:
            >>> trainer.begin_at(500)  # doctest: +SKIP
        """
        self._step = steps

    def _called(self, callbacks: Any, verbose: Any, source: Source) -> tuple[Any, Progress]:
        """Return the callbacks of one pass over a source, and what shows how far it is."""
        steps = source.num_batches
        called = kc.callback_list(
            self.model, callbacks, history=False, verbose=verbose, epochs=1, steps=steps
        )
        # Whoever brings a list has decided on a progress bar.
        return called, Progress(0 if called is callbacks else verbose, 1, steps)
