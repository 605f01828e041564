"""`run()` and `Run`: one experiment run, from its start or from where it stopped."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from xptrain.checkpoint.policies import every, keep
from xptrain.errors import UsageError, XptrainError
from xptrain.provenance.grade import Grade
from xptrain.session import identity, opening, readable
from xptrain.session.checkpoints import Checkpoints
from xptrain.session.config import Config
from xptrain.session.fitting import RunObserver
from xptrain.session.manifests import Manifests
from xptrain.session.settings import Settings, check
from xptrain.state.rng import seed_everything
from xptrain.tracking import artifacts, processes, recorder
from xptrain.tracking.journal import Journal
from xptrain.tracking.points import PointIndex
from xptrain.tracking.recording import PointWriter
from xptrain.tracking.stores import unmask
from xptrain.training.keras_backend.checks import check_backend
from xptrain.training.trainer import Trainer

_WAIT_FOR_RECORDER_S = 15.0


class RunState(Enum):
    """Where a run object is in its life; the value says what that means."""

    NEW = "it has not been started: use `with run:` or `run.start()`"
    OPEN = "it is open"
    CLOSED = "it is finished; open it again with run(resume=…)"


def run(
    experiment: str,
    *,
    key: str | None = None,
    name: str | None = None,
    config: Any = None,
    seed: int | None = None,
    resume: str = "never",
    exactness: str = "same-topology",
    allow: str | Iterable[str] = (),
    checkpoint: Any = (every(epochs=1), keep(3)),
    tags: Mapping[str, Any] | None = None,
    description: str | None = None,
    tracking_uri: str | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> Run:
    """Describe an experiment run; `with` (or `.start()`) opens it.

    Args:
        experiment: Name of the MLflow experiment.
        key: Name of the run's folder; drawn when None.
        name: Name shown in MLflow; MLflow draws one when None.
        config: Mapping, dataclass or pydantic model of plain values; read back as `run.config`.
        seed: Seed of everything random, 0 to 2**32 - 1; drawn and recorded when None.
        resume: "never" starts a run, an id resumes that one, "auto" resumes the unfinished run with this
            key (or job id, or experiment + config + script) and starts it when there is none.
        exactness: Lowest grade to train with: "exact", "same-topology" or "any".
        allow: What may differ on a resume although it moves bits: code, config, data, packages, devices,
            topology, epochs, callbacks, hazards.
        checkpoint: When to save and what to keep: `every(...)`, `keep(...)`, `best(...)`.
        tags: MLflow tags.
        description: Text on the run's page.
        tracking_uri: MLflow tracking URI; `MLFLOW_TRACKING_URI`, else a SQLite store in the home of all runs.
        checkpoint_dir: Folder for checkpoints; the run's own folder when None.

    Returns:
        A `Run`, a context manager.

    Raises:
        UsageError: If an argument cannot be used.
        ConfigError: If the config cannot be recorded.
        BackendError: If Keras does not run on JAX.

    Example:
        >>> with xptrain.run("digits", seed=0, config={"lr": 1e-3}) as run:  # doctest: +SKIP
        ...     model.compile(keras.optimizers.Adam(run.config.lr), "mse")
        ...     run.fit(model, x, y, epochs=20)
    """
    readable.install()
    return Run(
        check(
            experiment,
            key=key,
            name=name,
            config=config,
            seed=seed,
            resume=resume,
            exactness=exactness,
            allow=[allow] if isinstance(allow, str) else list(allow),
            checkpoint=checkpoint,
            tags=tags,
            description=description,
            tracking_uri=tracking_uri,
            checkpoint_dir=checkpoint_dir,
        )
    )


class Run:
    """One experiment run in this process; made by `run()`.

    Args:
        settings: The checked arguments of `run()`.

    Attributes:
        config: The recorded config, read with attributes.
        seed: The run's seed.
        attempt: Number of this process execution of the run, from 1.
        grade: How exact the run is; known at the first fit.

    Example:
        >>> run = xptrain.run("digits").start()  # doctest: +SKIP
        >>> run.fit(model, x, y)  # doctest: +SKIP
        >>> run.finish()  # doctest: +SKIP
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config = Config(settings.config or {})
        self.seed = settings.seed or 0
        self.attempt = 0
        self.grade = Grade("exact")
        self.step = 0
        self.next_epoch = 0
        self.resumed_from: int | None = None
        self.manifest: dict[str, Any] = {}
        self.manifests: Manifests
        self.checkpoints: Checkpoints
        self.writer: PointWriter
        self._state = RunState.NEW
        self._fits = 0
        self._status = "RUNNING"
        self._owner = 0

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Open the run: take its lock, begin its journal, seed everything, start the recorder.

        Returns:
            This run.

        Raises:
            RunNotFoundError: If the run to resume does not exist.
            RunLiveError: If another process trains it.
            ChangedError: If something that moves bits changed and is not allowed.
            TrackerError: If the tracking store cannot be used.

        Example:
            >>> run = xptrain.run("digits").start()  # doctest: +SKIP
        """
        if self._state is not RunState.NEW:
            raise UsageError("this run cannot be started", found=self._state.value)
        check_backend()
        found = opening.find_or_create(self.settings)
        self._folder = found.folder
        self.manifests = Manifests(found.folder.path)
        self.checkpoints = Checkpoints(
            Path(found.folder.info.checkpoint_dir), self.settings.policy, self._make_durable, self.say
        )
        self.attempt = self.checkpoints.acquire(above=found.attempts)
        try:
            self._open(found)
        except BaseException:
            self.checkpoints.lock.release()
            raise
        return self

    def _open(self, found: opening.Found) -> None:
        static, told = opening.capture(found, self.settings, self.attempt, self.manifests)
        self.config, self.seed, self.manifest = Config(found.config), found.seed, static.record
        journal = Journal(found.folder.journal)
        self._journal = journal
        index = PointIndex.from_journal(found.folder.journal) if found.resumed else PointIndex(found.folder.journal)
        self.writer = PointWriter(journal, index, fetch=_fetch)
        pid, started = processes.own()
        self.writer.append(
            "attempt",
            attempt=self.attempt,
            pid=pid,
            pid_started=started,
            host=processes.hostname(),
            resumed_from=None,
        )
        self.manifests.write(static.record, self.attempt)
        self.writer.append("params", values=opening.first_params(found.config, found.seed))
        git = static.record["code"]["git"]
        tags = {
            "xptrain.checkpoints": str(self.checkpoints.folder),
            "xptrain.commit": git.get("commit") or "none",
            "xptrain.dirty": str(bool(git.get("dirty"))).lower(),
            **self.settings.tags,
        }
        self.writer.append("tags", values=tags)
        if not found.resumed:
            config_text = opening.config_text(found.config)
            self.keep_text(config_text, "config.json", "")
        for path, text in static.artifacts.items():
            parent, _, file = path.rpartition("/")
            target = parent if self.attempt == 1 else f"attempt-{self.attempt}/{parent}".rstrip("/")
            self.keep_text(text, file, target)
        self._uri = unmask(found.folder.info.tracking_uri)
        recorder.spawn(found.folder, self._uri)
        seed_everything(self.seed)
        identity.PROCESS.count()
        self._state, self._owner = RunState.OPEN, os.getpid()
        atexit.register(self._at_exit)
        if told:
            self.say("changed since the run was started:\n" + told)

    def finish(self, status: str = "FINISHED", reason: str | None = None) -> None:
        """Close the run: wait for its saves, write its status, give it back.

        Args:
            status: FINISHED, FAILED or KILLED.
            reason: Why, in one line.

        Raises:
            CheckpointWriteError: If a save failed; the run is then marked FAILED.
            UsageError: If the status is not one of the three.

        Example:
            >>> run.finish()  # doctest: +SKIP
        """
        if status not in ("FINISHED", "FAILED", "KILLED"):
            raise UsageError("unknown status", expected="FINISHED, FAILED or KILLED", found=repr(status))
        if self._state is not RunState.OPEN:
            return
        self._state = RunState.CLOSED
        atexit.unregister(self._at_exit)
        failure = self.checkpoints.close()
        if failure is not None and status == "FINISHED":
            status, reason = "FAILED", failure.what
        self._status = status
        try:
            self.note_progress(self.step)
            self.writer.flush()
            if self.writer.divergences:
                self.grade = self.grade.lower("approximate", f"{self.writer.divergences} points came out differently")
                self.writer.append("tags", values={"xptrain.grade": str(self.grade)})
            self.writer.append("status", status=status, reason=reason)
        finally:
            self.writer.close()
        self._wait_for_recorder()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self.start() if self._state is RunState.NEW else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, reason = _outcome(error)
        try:
            self.finish(status, reason)
        except XptrainError as failure:
            if error is None:
                raise
            # The user's own error goes first; this one must not hide it.
            self.say(str(failure))

    # --- training --------------------------------------------------------------------------------

    def trainer(self, model: Any) -> Trainer:
        """Return a trainer whose next fit belongs to this run.

        Args:
            model: A compiled Keras model.

        Returns:
            A `Trainer`; make a new one for each fit.

        Example:
            >>> run.trainer(model).fit(x, y)  # doctest: +SKIP
        """
        self._check_open()
        recorder.ensure(self._folder, self._uri)
        observer = RunObserver(self, self._fits)
        self._fits += 1
        return Trainer.observed(model, observer, self.seed)

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

    # --- recording -------------------------------------------------------------------------------

    def log_metrics(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Record values of your own.

        Args:
            values: Numbers by name.
            step: Their step; the number of train steps done when None.

        Raises:
            UsageError: If a value is not a number.

        Example:
            >>> run.log_metrics({"bleu": 0.31}, step=3)  # doctest: +SKIP
        """
        self._check_open()
        self.writer.log(self.step if step is None else step, values)

    def log_text(self, text: str, path: str) -> None:
        """Record a text file.

        Args:
            text: Its content.
            path: Its path in the run's artifacts.

        Example:
            >>> run.log_text("all good", "notes/today.txt")  # doctest: +SKIP
        """
        self._check_open()
        folder, _, name = path.rpartition("/")
        self.keep_text(text, name, folder)

    def log_table(self, table: Any, path: str) -> None:
        """Record a table as CSV.

        Args:
            table: A pandas DataFrame, or anything `pandas.DataFrame` accepts.
            path: Its path in the run's artifacts, ending in .csv.

        Example:
            >>> run.log_table({"class": [0, 1], "recall": [0.9, 0.8]}, "recall.csv")  # doctest: +SKIP
        """
        import pandas as pd

        self.log_text(pd.DataFrame(table).to_csv(index=False), path)

    def log_figure(self, figure: Any, path: str) -> None:
        """Record a Matplotlib figure (or anything with `savefig`).

        Args:
            figure: The figure.
            path: Its path in the run's artifacts; the ending decides the format.

        Example:
            >>> run.log_figure(figure, "confusion.png")  # doctest: +SKIP
        """
        import io

        self._check_open()
        buffer = io.BytesIO()
        folder, _, name = path.rpartition("/")
        figure.savefig(buffer, format=name.rpartition(".")[2] or "png")
        self.writer.append("artifact", **artifacts.keep_bytes(self._folder, buffer.getvalue(), name, folder))

    def log_artifact(self, file: str | os.PathLike[str], path: str = "") -> None:
        """Record a file or folder; it is copied before this returns.

        Args:
            file: What to record.
            path: Folder in the run's artifacts.

        Raises:
            UsageError: If there is no such file.

        Example:
            >>> run.log_artifact("labels.txt")  # doctest: +SKIP
        """
        self._check_open()
        self.writer.append("artifact", **artifacts.keep_file(self._folder, Path(file), path))

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set MLflow tags.

        Args:
            tags: Values by name.

        Example:
            >>> run.set_tags({"stage": "baseline"})  # doctest: +SKIP
        """
        self._check_open()
        self.writer.append("tags", values={str(name): str(value) for name, value in tags.items()})

    # --- what it is ------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The run's key: names its folder, and the tag `xptrain.key` in MLflow."""
        self._check_started()
        return self._folder.key

    @property
    def id(self) -> str:
        """The MLflow run id; waits up to a minute for MLflow to give it."""
        self._check_started()
        found = self._folder.wait_run_id(60.0)
        if found is None:
            raise UsageError(
                "MLflow has not given this run an id yet",
                found=f"no answer from {self._folder.info.tracking_uri}",
                remedy="use run.key, or start the tracking server; `xptrain sync` delivers what waits",
            )
        return found

    @property
    def status(self) -> str:
        """RUNNING, FINISHED, FAILED or KILLED."""
        return self._status

    def __repr__(self) -> str:
        key = "" if self._state is RunState.NEW else f" {self._folder.key}"
        return f"<xptrain.Run{key} of {self.settings.experiment!r}: {self._status}, attempt {self.attempt}>"

    # --- used by the rest of the session ---------------------------------------------------------

    def say(self, text: str) -> None:
        """Tell the user something, on stderr."""
        print(f"xptrain: {text}", file=sys.stderr, flush=True)

    def keep_text(self, text: str, name: str, path: str) -> None:
        """Keep a text in the run's folder and queue it for the artifact store."""
        self.writer.append("artifact", **artifacts.keep_bytes(self._folder, text.encode(), name, path))

    def journal_end(self) -> int:
        """Return the journal's position now; points after it belong to later steps, or are repeated."""
        return self._journal.end

    def note_start(self, step: int) -> None:
        """Record the step that this attempt goes on from."""
        self.resumed_from = step
        self.writer.append("tags", values={f"xptrain.attempt.{self.attempt}.from_step": str(step)})

    def note_progress(self, step: int) -> None:
        """Record how far this attempt has trained."""
        self.writer.append("tags", values={f"xptrain.attempt.{self.attempt}.to_step": str(step)})

    def _make_durable(self, step: int) -> None:
        self.writer.sync()

    def _check_open(self) -> None:
        if self._state is not RunState.OPEN:
            raise UsageError("this run cannot be used now", expected="an open run", found=self._state.value)

    def _check_started(self) -> None:
        if self._state is RunState.NEW:
            raise UsageError("this run has no identity yet", found=self._state.value)

    def _at_exit(self) -> None:
        # Forked workers inherit this; only the process that opened the run may close it.
        if os.getpid() == self._owner:
            self.finish("FAILED", "the process ended without finish()")

    def _wait_for_recorder(self) -> None:
        recorder.ensure(self._folder, self._uri)
        deadline = time.monotonic() + _WAIT_FOR_RECORDER_S
        end = self._journal_size()
        if not self._folder.wait_delivered(end, max(0.0, deadline - time.monotonic())):
            self.say(
                f"run {self.key}: the tracking store does not have everything yet; the recorder goes on, "
                "and `xptrain sync` delivers what is left"
            )

    def _journal_size(self) -> int:
        return self._folder.journal.stat().st_size


def _outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status and reason that an exception (or none) at the end of a run means."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "FINISHED", None
    if isinstance(error, KeyboardInterrupt):
        return "KILLED", "interrupted (Ctrl-C)"
    if isinstance(error, SystemExit):
        return "FAILED", f"exit code {error.code}"
    text = str(error).splitlines()[0] if str(error) else ""
    return "FAILED", f"{type(error).__name__}: {text}"[:500]


def _fetch(values: list[Any]) -> Any:
    import jax

    return jax.device_get(values)
