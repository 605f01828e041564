"""How each kind of record is told to a tracker (the table in docs/design/rooms.md); points go in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from xptrain.tracking.folder import Delivered, RunFolder
from xptrain.tracking.records import Record
from xptrain.tracking.tracker import Dataset, Tracker

T = TypeVar("T")
_KEY_TAG = "xptrain.key"
_log = logging.getLogger(__name__)


class Use(Protocol):
    """Calls the tracker, and turns what it raises into a TrackerError."""

    def __call__(self, call: Callable[[Tracker], T], /) -> T:
        """Return what the call returned."""


def tell(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    """Tell one record that is not of the kind `metrics`.

    Args:
        record: The record.
        folder: The run, which holds its artifacts.
        told: What the store has been told before.
        use: Calls the tracker.

    Returns:
        What it has been told now.

    Raises:
        TrackerError: The store cannot be used now, or refuses the record.
    """
    teller = _TELLERS.get(record.kind)
    if teller is None:
        _log.error("a record of the unknown kind %r was left out (a newer xptrain wrote it)", record.kind)
        return told
    return teller(record, folder, told, use)


def set_tags(use: Use, values: Mapping[str, Any]) -> None:
    """Set tags, if there are any."""
    texts = _texts(values)
    if texts:
        use(lambda tracker: tracker.set_tags(texts))


def _attempt(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    fields = record.fields
    head = f"xptrain.attempt.{fields['attempt']}"
    tags = {"xptrain.attempt": fields["attempt"], **{f"{head}.{k}": fields[k] for k in ("host", "pid")}}
    if fields.get("resumed_from") is not None:
        tags[f"{head}.resumed_from"] = fields["resumed_from"]
    use(lambda tracker: tracker.set_status("RUNNING", None))
    set_tags(use, {**tags, f"{head}.ms": record.ms})
    return replace(told, status="RUNNING")


def _params(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    values = _texts(record.fields["values"])
    changed = use(lambda tracker: tracker.log_params(values))
    set_tags(use, {f"xptrain.changed.{key}": values[key] for key in changed})
    return told


def _tags(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    values = dict(record.fields["values"])
    if _KEY_TAG in values:  # the run is found by it
        values[f"user.{_KEY_TAG}"] = values.pop(_KEY_TAG)
    if told.diverged and "xptrain.grade" in values:
        values["xptrain.grade"] = "approximate"
    set_tags(use, values)
    return told


def _artifact(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    file = folder.path / record.fields["file"]
    if file.exists():
        use(lambda tracker: tracker.log_artifact(file, record.fields["path"]))
    else:
        _log.error("the artifact %s is gone; it was not uploaded", file)
        set_tags(use, {f"xptrain.missing.{file.name}": record.fields["file"]})
    return told


def _dataset(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    names = ("name", "digest", "source", "profile", "context")
    dataset = Dataset(**{name: _text(record.fields.get(name) or "") for name in names})
    use(lambda tracker: tracker.log_dataset(dataset))
    return told


def _divergence(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    fields = record.fields
    text = f"{fields['metric']} at step {fields['step']}: {fields['first']}, then {fields['second']}"
    if fields.get("again"):
        set_tags(use, {"xptrain.logged_twice": text})
    elif not told.diverged:
        set_tags(use, {"xptrain.divergence": text, "xptrain.grade": "approximate"})
        return replace(told, diverged=True)
    return told


def _status(record: Record, folder: RunFolder, told: Delivered, use: Use) -> Delivered:
    status, reason = record.fields["status"], record.fields.get("reason")
    set_tags(use, {"xptrain.reason": reason} if reason else {})
    use(lambda tracker: tracker.set_status(status, record.ms))
    return replace(told, status=status)


_TELLERS: dict[str, Callable[[Record, RunFolder, Delivered, Use], Delivered]] = {
    "attempt": _attempt,
    "params": _params,
    "tags": _tags,
    "artifact": _artifact,
    "dataset": _dataset,
    "divergence": _divergence,
    "status": _status,
}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in values.items()}
