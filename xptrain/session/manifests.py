"""The manifests of a run's attempts: written, found again, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xptrain.tracking.durable import write_atomic


def train_program(manifest: Mapping[str, Any]) -> str | None:
    """Return the digest of the compiled train step, whatever its name is, or None when there is none."""
    return next(iter((manifest.get("program") or {}).values()), None)


class Manifests:
    """Manifest files of one run, one per attempt and fit.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "manifest"

    def write(self, record: Mapping[str, Any], attempt: int, fit: int = 0) -> Path:
        """Write a manifest, atomically; a later one of the same attempt and fit replaces it."""
        self._folder.mkdir(exist_ok=True)
        path = self._path(attempt, fit)
        write_atomic(path, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
        return path

    def last(self, before: int, fit: int = 0) -> dict[str, Any] | None:
        """Return the manifest to compare with: that of the newest earlier attempt that trained.

        An attempt that ended before its first step says nothing of the compiled step; it counts only when
        no attempt trained yet.

        Args:
            before: Number that the attempt must be below.
            fit: Number of the fit.
        """
        found = None
        for attempt in range(before - 1, 0, -1):
            path = self._path(attempt, fit)
            if path.is_file():
                record: dict[str, Any] = json.loads(path.read_text())
                if "program" in record:
                    return record
                found = found or record
        return found

    def _path(self, attempt: int, fit: int) -> Path:
        return self._folder / (f"attempt-{attempt}.json" if fit == 0 else f"attempt-{attempt}-fit-{fit}.json")
