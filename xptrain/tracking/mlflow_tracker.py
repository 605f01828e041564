"""MLflow as a tracker, by explicit run ids only: the one module that imports mlflow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, RunTag, ViewType
from mlflow.entities.run_status import RunStatus
from mlflow.exceptions import MlflowException

from xptrain.errors import TrackerError
from xptrain.tracking import names
from xptrain.tracking.durable import exclusive
from xptrain.tracking.folder import RunInfo
from xptrain.tracking.points import Point
from xptrain.tracking.refusals import Failed, Refused, explained, files_failed
from xptrain.tracking.stores import check_sqlite, mask, sqlite_path
from xptrain.tracking.tracker import Dataset

# Their tracebacks of database errors would precede our one readable block.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("alembic").setLevel(logging.WARNING)
_log = logging.getLogger(__name__)
_OPEN_LOCK_S = 120.0
_MOST_REFUSED = 10
_LONGEST_DATASET_DIGEST = 36
_LONGEST_DATASET_TEXT = 65_535

T = TypeVar("T")


class MlflowTracker:
    """The tracker that writes to an MLflow store.

    Args:
        uri: Complete tracking URI (see `stores.resolve_store`). Nothing is opened yet.

    Example:
        >>> tracker = MlflowTracker("sqlite:////data/.xptrain/mlflow.db")  # doctest: +SKIP
        >>> run_id = tracker.open(folder.info)  # doctest: +SKIP
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None
        self._run_id = ""
        self._location = ""
        self._params: dict[str, str] = {}

    def open(self, info: RunInfo, known_id: str | None = None) -> str:
        """Find the run by its id or its tag `xptrain.key`, or create it.

        Args:
            info: The run's identity.
            known_id: The run id it had last time (its experiment may have been renamed since).

        Returns:
            The MLflow run id.

        Raises:
            TrackerError: The store cannot be used, or the experiment or run was deleted in it.
        """
        with self._translated():
            self._connect()
            run = self._known(known_id) or self._found_or_created(info)
        if run.info.lifecycle_stage != "active":
            raise TrackerError(
                f"the run {info.key} was deleted in MLflow",
                found=f"run id {run.info.run_id}",
                remedy=f"restore it: mlflow runs restore --run-id {run.info.run_id}",
            )
        self._run_id = run.info.run_id
        self._location = run.info.artifact_uri or ""
        self._params = dict(run.data.params)
        return self._run_id

    def log_points(self, points: Sequence[Point]) -> None:
        """Send points with their own timestamps, 1,000 a call at most."""
        metrics = [Metric(names.allowed(p.metric), names.finite(p.value), p.ms, int(p.step)) for p in points]
        for chunk in names.chunks(metrics, names.MOST_METRICS, names.point_sizes(points)):
            self._each(chunk, lambda some: self._client.log_batch(self._run_id, metrics=some))

    def log_params(self, params: Mapping[str, str]) -> Mapping[str, str]:
        """Send params that are new; a value over 6,000 characters goes as digest and as text artifact."""
        fitting = {names.allowed(key): (key, names.param_value(text)) for key, text in params.items()}
        new = [Param(name, value) for name, (_, value) in fitting.items() if name not in self._params]
        sizes = [names.size([param.key, param.value]) for param in new]
        for chunk in names.chunks(new, names.MOST_OTHERS, sizes):
            self._each(chunk, lambda some: self._client.log_batch(self._run_id, params=some))
        if new:
            with self._translated():
                self._params = dict(self._client.get_run(self._run_id).data.params)
        with self._translated(files=True):
            for key, text in params.items():
                if len(text) > names.LONGEST_PARAM:
                    file = f"params/{names.allowed(key).replace('/', '.')}.txt"
                    self._client.log_text(self._run_id, names.readable(text), file)
        there = {key: self._params.get(name, value) for name, (key, value) in fitting.items()}
        return {key: there[key] for key, value in fitting.values() if there[key] != value}

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; a value over 8,000 characters is cut and says so."""
        fitting = [RunTag(names.allowed(key), names.tag_value(text)) for key, text in tags.items()]
        sizes = [names.size([tag.key, tag.value]) for tag in fitting]
        for chunk in names.chunks(fitting, names.MOST_OTHERS, sizes):
            self._each(chunk, lambda some: self._client.log_batch(self._run_id, tags=some))

    def log_artifact(self, file: Path, path: str) -> None:
        """Upload a file or folder."""
        path = names.readable(path)
        with self._translated(files=True):
            if file.is_dir():
                self._client.log_artifacts(self._run_id, str(file), f"{path}/{file.name}".lstrip("/"))
            else:
                self._client.log_artifact(self._run_id, str(file), path or None)

    def log_dataset(self, dataset: Dataset) -> None:
        """Add a data set to the run's inputs (MLflow keeps 36 characters of its digest)."""
        entity = MlflowDataset(
            names.readable(dataset.name)[:500],
            names.readable(dataset.digest)[:_LONGEST_DATASET_DIGEST],
            "xptrain",
            names.readable(dataset.source)[:_LONGEST_DATASET_TEXT] or "{}",
            profile=names.readable(dataset.profile) or None,
        )
        used_for = names.tag_value(dataset.context)
        context = [InputTag("mlflow.data.context", used_for)] if used_for else []
        with self._translated():
            self._client.log_inputs(self._run_id, [DatasetInput(entity, context)])

    def set_status(self, status: str, end_ms: int | None) -> None:
        """Set the status with the true end time; None clears the end time."""
        with self._translated():
            # The client has no call that clears an end time. 0 is how MLflow's protocol writes "none", so a
            # server reads it back as none; a database opened directly would give 0, so there NULL is written.
            store = self._client._tracking_client.store
            store.update_run_info(self._run_id, RunStatus.from_string(status), end_ms or 0, None)
            if end_ms is None and hasattr(store, "ManagedSessionMaker"):
                from mlflow.store.tracking.dbmodels.models import SqlRun

                with store.ManagedSessionMaker(read_only=False) as session:
                    session.query(SqlRun).filter(SqlRun.run_uuid == self._run_id).update({"end_time": None})

    def close(self) -> None:
        """Let go of the client."""
        self._client = None

    def _connect(self) -> None:
        if self._client is not None:
            return
        lock: AbstractContextManager[None] = nullcontext()
        if self._uri.startswith("sqlite:"):
            path = sqlite_path(self._uri)
            check_sqlite(path)
            # Several processes that create one SQLite store at once leave it unusable.
            lock = exclusive(path.with_name(f"{path.name}.lock"), _OPEN_LOCK_S)
        with lock:
            client = MlflowClient(tracking_uri=self._uri)
            client.search_experiments(max_results=1)
        self._client = client

    def _known(self, run_id: str | None) -> Any:
        if run_id is None:
            return None
        try:
            return self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _found_or_created(self, info: RunInfo) -> Any:
        experiment_id = self._experiment(info)
        tagged = f"tags.`xptrain.key` = '{info.key}'"
        found = self._client.search_runs([experiment_id], tagged, ViewType.ALL, max_results=1)
        return found[0] if found else self._create(experiment_id, info)

    def _experiment(self, info: RunInfo) -> str:
        name = names.readable(info.experiment)
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                created: str = self._client.create_experiment(name, info.artifact_location)
                return created
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)
        if found.lifecycle_stage != "active":
            raise TrackerError(
                f"the experiment {info.experiment!r} was deleted in MLflow",
                remedy=f"use another name, or: mlflow experiments restore -x {found.experiment_id}",
            )
        return str(found.experiment_id)

    def _create(self, experiment_id: str, info: RunInfo) -> Any:
        tags = {
            "xptrain.key": info.key,
            "xptrain.checkpoint_dir": info.checkpoint_dir,
            "xptrain.host": info.host,
            "mlflow.user": info.user,
            "mlflow.source.type": "LOCAL" if info.script else "NOTEBOOK",
            "mlflow.source.name": info.script or "",
            "mlflow.note.content": info.description or "",
        }
        fitting = {key: names.tag_value(text) for key, text in tags.items() if text}
        name = names.readable(info.name) if info.name else None
        return self._client.create_run(experiment_id, info.created_ms, fitting, name)

    def _each(self, items: Sequence[T], call: Callable[[list[T]], object]) -> None:
        """Send items in one call; when MLflow refuses some of them, send all the others.

        Raises:
            TrackerError: The store failed, or refuses so much that something else must be wrong.
        """
        refused: list[tuple[T, Refused]] = []
        parts = [list(items)]
        while parts:
            part = parts.pop()
            try:
                with self._translated():
                    call(part)
            except Refused as error:
                half = len(part) // 2
                if half:
                    parts += [part[half:], part[:half]]
                    continue
                refused.append((part[0], error))
                if len(refused) > _MOST_REFUSED:
                    raise Failed(error.what, found=error.found, remedy="see recorder.log") from error
        for item, refusal in refused:
            _log.error("MLflow refuses %s: %s", item, refusal)
        if refused and not isinstance(refused[0][0], RunTag):
            self.set_tags({"xptrain.refused": f"{refused[0][0]}: {refused[0][1].found}"})

    @contextmanager
    def _translated(self, files: bool = False) -> Iterator[None]:
        try:
            yield
        except TrackerError:
            raise
        except Exception as error:  # artifact stores raise their own libraries' errors
            code = getattr(error, "error_code", "")
            told = explained(mask(self._uri), str(error) or repr(error), code)
            if files and not isinstance(told, Refused):
                told = files_failed(mask(self._location), str(error) or repr(error))
            raise told from error
