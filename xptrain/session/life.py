"""The life of a run in one process: opened, closed once, and left to whoever took it over."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from xptrain.checkpoint.receipts import Loaded, Receipt
from xptrain.errors import FencedError, UsageError, XptrainError
from xptrain.provenance import devices, flags
from xptrain.provenance.grade import Grade
from xptrain.session import at_exit, backend, compile_cache, identity, opening, readable, replay, view
from xptrain.session.checkpoints import Checkpoints
from xptrain.session.config import Config
from xptrain.session.delivery import Delivery
from xptrain.session.ending import as_before, fetch, outcome, refusal, tell_the_end
from xptrain.session.forked import Fork
from xptrain.session.manifests import Manifests
from xptrain.session.preemption import Preempted, Preemption
from xptrain.session.recorded import Recorded, RunState
from xptrain.session.settings import Settings
from xptrain.state.rng import seed_everything
from xptrain.tracking import processes
from xptrain.tracking.journal import Journal
from xptrain.tracking.names import user_tags
from xptrain.tracking.points import PointIndex
from xptrain.tracking.recording import PointWriter

if TYPE_CHECKING:
    from xptrain.session.own_loop import OwnLoop


class Life(Recorded):
    """What opens a run and closes it; `Run` adds what is done in between.

    Args:
        settings: The checked arguments of `run()`.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.config = Config(settings.config or {})
        self.seed = settings.seed or 0
        self.attempt = 0
        self.grade: Grade | None = None
        self.step = 0
        self.next_epoch = 0
        self.resumed_from: int | None = None
        self.manifest: dict[str, Any] = {}
        self.hazards: list[dict[str, Any]] = []
        self.manifests: Manifests
        self.checkpoints: Checkpoints
        self.compile_cache = compile_cache.CompileCache("none")
        self.replay: replay.Replay | None = None
        self.fork: Fork | None = None
        self._fits = 0
        self.loop: OwnLoop | None = None
        self.status = "RUNNING"
        # Why this attempt was not let train, if it was not: then the run stays what it was.
        self.refused: str | None = None
        self.preemption = Preemption(self, settings.preempt_on, settings.grace_s)
        self._opened_writer = False
        self._owner = 0

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
        backend.check()
        if self.settings.deterministic:
            flags.make_deterministic(devices.backend_started())
        found = opening.find_or_create(self.settings)
        self.folder, self.fork = found.folder, found.fork
        self.replay = replay.of_run(found.folder.key)
        self.manifests = Manifests(found.folder.path)
        self.checkpoints = Checkpoints(
            Path(found.folder.info.checkpoint_dir),
            self.settings.policy,
            self._make_durable,
            self._tell_checkpoint,
            readable.say,
            replay=self.replay,
            is_fork=found.fork is not None,
        )
        self.attempt = self.checkpoints.acquire(above=found.attempts)
        try:
            self._open(found)
        except BaseException as error:
            if self._opened_writer:
                tell_the_end(self, *outcome(error), None)
            self.checkpoints.lock.release()
            raise
        self.preemption.install()
        return self

    def _open(self, found: opening.Found) -> None:
        static, told = opening.capture(found, self.settings, self.attempt, self.manifests)
        # After the flags are set, which a compiled program depends on.
        kept = self.replay.orders.compiled if self.replay is not None else None
        self.compile_cache = compile_cache.use(Path(kept or found.folder.home), readable.say)
        static.record["compile_cache"] = self.compile_cache.as_json()
        self.config, self.seed, self.manifest = Config(found.config), found.seed, static.record
        journal = Journal(found.folder.journal)
        self.journal = journal
        position = self.checkpoints.journal_position() if found.resumed else 0
        index = PointIndex.from_journal(found.folder.journal, position)
        self.writer = PointWriter(
            journal, index, fetch=fetch, attempt=self.attempt, fenced=self.checkpoints.fenced
        )
        self._opened_writer = True
        pid, started = processes.own()
        self.writer.append(
            "attempt",
            attempt=self.attempt,
            pid=pid,
            pid_started=started,
            host=processes.hostname(),
            resumed_from=None,
        )
        # Whatever kills this process from now on, the attempt is known.
        self.writer.flush()
        self.manifests.write(static.record, self.attempt)
        self.writer.append("params", values=opening.first_params(found.config, found.seed))
        git = static.record["code"]["git"]
        tags = {
            "mlflow.source.git.commit": git.get("commit") or "none",
            "xptrain.commit": git.get("commit") or "none",
            "xptrain.dirty": str(bool(git.get("dirty"))).lower(),
            **user_tags(self.settings.tags),
            **({} if found.fork is None else found.fork.tags()),
        }
        self.writer.append("tags", values=tags)
        if not found.attempts:
            config_text = opening.config_text(found.config)
            self.keep_text(config_text, "config.json", "")
        for path, text in static.artifacts.items():
            parent, _, file = path.rpartition("/")
            target = parent if self.attempt == 1 else f"attempt-{self.attempt}/{parent}".rstrip("/")
            self.keep_text(text, file, target)
        self.delivery = Delivery(found.folder, found.uri, is_on=replay.ordered() is None)
        self.delivery.start()
        seed_everything(self.seed)
        identity.PROCESS.count()
        self._state, self._owner = RunState.OPEN, os.getpid()
        at_exit.call_at_exit(self._at_exit)
        if told:
            readable.say("changed since the run was started:\n" + told)

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
        # A first signal waits now: the process has said how the run ended in a moment.
        self.preemption.enter(self)
        try:
            self._close(status, reason)
        finally:
            self.preemption.uninstall()
        self.delivery.wait()
        late = self.preemption.pending()
        if late is not None:
            raise late

    def _close(self, status: str, reason: str | None) -> None:
        failed: XptrainError | None = None
        if status == "FINISHED":
            try:
                self._end_loop()
            except XptrainError as error:
                failed = error
                status, reason = outcome(error)
            if self._did_nothing():
                if self.attempt > 1:
                    status, reason = as_before(self)
                readable.say(
                    f"run {self.key}: nothing was trained or measured under it; "
                    "train with run.fit(model, …), not with model.fit(…)"
                )
        self._state = RunState.CLOSED
        at_exit.forget(self._at_exit)
        try:
            failure = self.checkpoints.close() or failed
            if self.checkpoints.fenced.is_set():
                self._leave_to_the_other(failure)
            self.preemption.disarm()
            if status == "KILLED" and failure is None:
                self.preemption.say_stopped()
            try:
                failure = tell_the_end(self, status, reason, failure)
            except FencedError as error:
                self._leave_to_the_other(error)
        finally:
            # Last: nobody else may open the journal while this process still writes to it.
            self.checkpoints.lock.release()
        if failure is not None:
            self.delivery.wait()
            raise failure

    def next_fit(self) -> int:
        """Return the number of the fit, or loop, that begins now, and count it."""
        self.check_open()
        self._end_loop()
        self._fits += 1
        return self._fits - 1

    def give_back(self, fit: int, loaded: Loaded | None) -> None:
        """Take back that a fit began: the next one has its number, and its checkpoint."""
        self._fits = fit
        if loaded is not None:
            self.checkpoints.give_back(loaded)

    def _end_loop(self) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            self.preemption.leave(loop)
            loop.end()

    def _leave_to_the_other(self, failure: XptrainError | None) -> None:
        """End without another word: a later attempt has the run, and its journal."""
        self.status = "KILLED"
        self.writer.close()
        raise failure or FencedError(
            "another attempt took this run over; this process wrote nothing more",
            expected=f"attempt {self.attempt}",
            found="a later attempt in the lock",
            remedy="let the later attempt go on",
        )

    def __enter__(self) -> Self:
        return self.start() if self._state is RunState.NEW else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, reason = outcome(error)
        self.refused = refusal(self, error)
        try:
            self.finish(status, reason)
        except (XptrainError, Preempted, KeyboardInterrupt) as failure:
            if error is None:
                raise
            # The user's own error goes first; this one must not hide it.
            if not isinstance(failure, KeyboardInterrupt):
                readable.say(failure.reason if isinstance(failure, Preempted) else str(failure))

    @property
    def key(self) -> str:
        """The run's key: names its folder, and the tag `xptrain.key` in MLflow."""
        self._check_started()
        return self.folder.key

    @property
    def id(self) -> str:
        """The MLflow run id; waits up to a minute for MLflow to give it."""
        self._check_started()
        found = self.folder.wait_run_id(60.0)
        if found is None:
            raise UsageError(
                "MLflow has not given this run an id yet",
                found=f"no answer from {self.folder.info.tracking_uri}",
                remedy="use run.key, or start the tracking server; `xptrain sync` delivers what waits",
            )
        return found

    def __repr__(self) -> str:
        key = "" if self._state is RunState.NEW else f" {self.folder.key}"
        return f"<xptrain.Run{key} of {self.settings.experiment!r}: {self.status}, attempt {self.attempt}>"

    def _repr_html_(self) -> str:
        return view.html(self, self._state)

    def _make_durable(self, step: int) -> None:
        self.writer.sync()

    def _tell_checkpoint(self, receipt: Receipt) -> None:
        tag = f"step {receipt.step}, {receipt.digest[:16]}"
        self.writer.append("tags", values={"xptrain.checkpoint": tag})
        self.delivery.keep()

    def _check_started(self) -> None:
        if self._state is RunState.NEW:
            raise UsageError("this run has no identity yet", found=self._state.value)

    def _did_nothing(self) -> bool:
        return not self._fits and not self.has_metrics

    def _at_exit(self) -> None:
        # Forked workers inherit this; only the process that opened the run may close it.
        if os.getpid() != self._owner or self._state is not RunState.OPEN:
            return
        raised = self.preemption.raised
        status, reason = outcome(raised)
        if raised is None:
            readable.say(f"run {self.key}: the process ends without run.finish()")
            status, reason = "FAILED", "the process ended without finish()"
            if self.attempt > 1 and self._did_nothing():
                # Opened to look at it, say: it is what it was.
                status, reason = as_before(self)
        try:
            self.finish(status, reason)
        except XptrainError as error:
            readable.say(str(error))
        except KeyboardInterrupt:
            # Of a wait that said so itself; the process ends anyway.
            return
