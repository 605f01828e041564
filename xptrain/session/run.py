"""`Run`: one experiment run, from its start or from where it stopped."""

from __future__ import annotations

from typing import Any

from xptrain.errors import UsageError
from xptrain.session.fitting import RunObserver
from xptrain.session.life import Life
from xptrain.session.own_loop import OwnLoop
from xptrain.training.trainer import Trainer


class Run(Life):
    """One experiment run in this process; made by `run()`.

    Args:
        settings: The checked arguments of `run()`.

    Attributes:
        config: The recorded config, read with attributes.
        seed: The run's seed.
        attempt: Number of this process execution of the run, from 1.
        grade: How exact the run is; None before the first fit.
        status: RUNNING, FINISHED, FAILED or KILLED.

    Example:
        >>> run = xptrain.run("digits").start()  # doctest: +SKIP
        >>> run.fit(model, x, y)  # doctest: +SKIP
        >>> run.finish()  # doctest: +SKIP
    """

    def trainer(self, model: Any) -> Trainer:
        """Return a trainer whose fits belong to this run.

        Args:
            model: A compiled Keras model.

        Returns:
            A `Trainer`.

        Example:
            >>> run.trainer(model).fit(x, y)  # doctest: +SKIP
        """
        self.check_open()
        self.delivery.keep()
        return Trainer.observed(model, RunObserver(self), self.seed)

    def fit(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Train a model under this run; arguments after the model are those of `keras.Model.fit`.

        Args:
            model: A compiled Keras model.
            *args: As for `Trainer.fit`.
            **kwargs: As for `Trainer.fit`.

        Returns:
            `keras.callbacks.History` of the whole fit, the epochs before a stop included.

        Raises:
            InexactError: If the run would be less exact than `exactness=` asks for.
            ChangedError: If something that moves bits changed since the run was started.
            RestoreMismatchError: If the checkpoint is of another model.

        Example:
            >>> run.fit(model, x, y, epochs=20, batch_size=64)  # doctest: +SKIP
        """
        return self.trainer(model).fit(*args, **kwargs)

    def restore(self, *trainers: Trainer) -> int:
        """Begin a loop of your own: put the run's newest checkpoint, if there is one, into the trainers.

        Call it once the models are built, and before the loop. Which batch belongs to which step is the
        loop's own affair; Python's, NumPy's and Keras's generators are restored.

        Args:
            *trainers: What the loop trains, from `run.trainer(model)`; always the same, in the same order.

        Returns:
            How many steps of the loop are done: where it goes on.

        Raises:
            UsageError: If a model is not built.
            RestoreMismatchError: If the checkpoint is of other models; then nothing was written.

        Example:
            >>> trainer = run.trainer(model)  # doctest: +SKIP
            >>> for step in range(run.restore(trainer), 1000):  # doctest: +SKIP
            ...     trainer.train_on_batch(*batch(step))
            ...     if step % 100 == 99:
            ...         run.checkpoint(trainer)
        """
        loop = OwnLoop(self, trainers)
        try:
            start = loop.restore()
        finally:
            loop.stopped()
        self.loop = loop
        self.preemption.enter(loop)
        return start

    def checkpoint(self, *trainers: Trainer, step: int | None = None) -> None:
        """Save the state of a loop of your own, in the background; the loop can go on at once.

        Args:
            *trainers: Those given to `restore`.
            step: How many steps of the loop are done; None for those that the first trainer has trained.

        Raises:
            UsageError: If `restore` was not called with these trainers.
            CheckpointWriteError: If an earlier save failed.

        Example:
            >>> run.checkpoint(trainer)  # doctest: +SKIP
        """
        if self.loop is None or self.loop.trainers != trainers:
            raise UsageError(
                "these trainers are not those of the loop that is running",
                expected="run.restore(…) before the loop, with the same trainers",
                found="no loop" if self.loop is None else "other trainers",
                remedy="call start = run.restore(trainer) first, also in a new run",
            )
        self.loop.save(step)

    def evaluate(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate a model; arguments as for `Trainer.evaluate`. Nothing is recorded.

        Args:
            model: A compiled Keras model.
            *args: As for `Trainer.evaluate`.
            **kwargs: As for `Trainer.evaluate`.

        Returns:
            The loss, or a list or dict of loss and metrics.

        Example:
            >>> run.evaluate(model, x, y, return_dict=True)  # doctest: +SKIP
        """
        return Trainer(model, seed=self.seed).evaluate(*args, **kwargs)

    def predict(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict with a model; arguments as for `Trainer.predict`. Nothing is recorded.

        Args:
            model: A Keras model.
            *args: As for `Trainer.predict`.
            **kwargs: As for `Trainer.predict`.

        Returns:
            NumPy arrays in the structure of the outputs.

        Example:
            >>> run.predict(model, x)  # doctest: +SKIP
        """
        return Trainer(model, seed=self.seed).predict(*args, **kwargs)
