"""The tracker interface: what a tracking store must be able to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xptrain.tracking.folder import RunInfo
from xptrain.tracking.points import Point


@dataclass(frozen=True)
class Dataset:
    """A data set that a run reads.

    Args:
        name: Its name.
        digest: Digest of its bytes.
        source: Where it is from, as JSON text or an address.
        profile: Sizes, shapes and dtypes, as JSON text.
        context: What it is used for, such as "train" or "validation".
    """

    name: str
    digest: str
    source: str = ""
    profile: str = ""
    context: str = ""


class Tracker(Protocol):
    """A store for one run. Every method may be called twice with the same arguments, which changes nothing.

    Methods raise TrackerError when the store cannot be used now; the caller tries again later. A method that
    sends files raises FilesFailed when everything else may go on.

    Example:
        >>> isinstance(MemoryTracker().tags, dict)
        True
    """

    def open(self, info: RunInfo, known_id: str | None = None) -> str:
        """Find the run by the id it had last time or by its key, or create it; return its id."""

    def log_points(self, points: Sequence[Point]) -> None:
        """Take points; the same point (metric, step, value, ms) sent twice is stored once."""

    def log_params(self, params: Mapping[str, str]) -> Mapping[str, str]:
        """Take params; those that are there with another value stay as they are and are returned."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, replacing older values."""

    def log_artifact(self, file: Path, path: str) -> None:
        """Take a file or folder into the folder `path` of the run's artifacts ("" for the top)."""

    def log_dataset(self, dataset: Dataset) -> None:
        """Note that the run reads a data set."""

    def set_status(self, status: str, end_ms: int | None) -> None:
        """Set RUNNING (end_ms None: the end time is cleared), FINISHED, FAILED or KILLED."""

    def close(self) -> None:
        """Let go of connections."""


class NullTracker:
    """A tracker that takes everything and keeps nothing."""

    def open(self, info: RunInfo, known_id: str | None = None) -> str:
        return info.key

    def log_points(self, points: Sequence[Point]) -> None:
        return None

    def log_params(self, params: Mapping[str, str]) -> Mapping[str, str]:
        return {}

    def set_tags(self, tags: Mapping[str, str]) -> None:
        return None

    def log_artifact(self, file: Path, path: str) -> None:
        return None

    def log_dataset(self, dataset: Dataset) -> None:
        return None

    def set_status(self, status: str, end_ms: int | None) -> None:
        return None

    def close(self) -> None:
        return None


@dataclass
class MemoryTracker:
    """A tracker that keeps everything in attributes, for tests.

    Args:
        info: Identity of the run that was opened.
        points: Points in the order in which they came.
        params: Values by name.
        tags: Values by name.
        artifacts: Files by their path in the store.
        datasets: Datasets in the order in which they came.
        statuses: (status, end time in milliseconds or None) in the order in which they came.

    Example:
        >>> tracker = MemoryTracker()
        >>> tracker.log_points([Point("loss", 1, 0.5, 0)])
        >>> tracker.history("loss")
        [(1, 0.5)]
    """

    info: RunInfo | None = None
    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    datasets: list[Dataset] = field(default_factory=list)
    statuses: list[tuple[str, int | None]] = field(default_factory=list)

    def open(self, info: RunInfo, known_id: str | None = None) -> str:
        self.info = info
        return f"memory-{info.key}"

    def log_points(self, points: Sequence[Point]) -> None:
        there = set(map(repr, self.points))  # by text: nan is not equal to itself
        self.points += [point for point in dict.fromkeys(points) if repr(point) not in there]

    def log_params(self, params: Mapping[str, str]) -> Mapping[str, str]:
        changed = {
            key: self.params[key] for key in params if self.params.get(key, params[key]) != params[key]
        }
        self.params = {**params, **self.params}
        return changed

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self.tags.update(tags)

    def log_artifact(self, file: Path, path: str) -> None:
        self.artifacts[f"{path}/{file.name}".lstrip("/")] = file

    def log_dataset(self, dataset: Dataset) -> None:
        if dataset not in self.datasets:
            self.datasets.append(dataset)

    def set_status(self, status: str, end_ms: int | None) -> None:
        self.statuses.append((status, end_ms))

    def close(self) -> None:
        return None

    @property
    def status(self) -> str | None:
        """The last status told."""
        return self.statuses[-1][0] if self.statuses else None

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Return the (step, value) pairs of a metric, by step."""
        return sorted((point.step, point.value) for point in self.points if point.metric == metric)
