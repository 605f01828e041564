"""Copies of files to be uploaded, taken before the call that logs them returns."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xptrain.errors import TrackerError, UsageError
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.names import readable


def keep_file(folder: RunFolder, source: Path, path: str = "") -> dict[str, Any]:
    """Copy a file or folder into the run's folder.

    Args:
        folder: The run.
        source: What to copy (no hard link: it would change with the original). The home of all runs in
            it is left out.
        path: Folder in the artifact store, "" for the top.

    Returns:
        The fields of the `artifact` record: `writer.append("artifact", **keep_file(...))`.

    Raises:
        UsageError: There is no such file, it contains the copy, or `path` leaves the artifact store.
        TrackerError: The copy cannot be made.
    """
    if not source.exists():
        raise UsageError("there is no such artifact", found=str(source))
    if folder.artifacts.resolve().is_relative_to(source.resolve()) and not _holds(source, folder.home):
        raise UsageError("an artifact cannot contain the run's own artifacts", found=str(source))
    target = _place(folder, source.resolve().name, path)
    try:
        if source.is_dir():
            shutil.copytree(source, target, ignore=_but(folder.home))
        else:
            shutil.copy2(source, target)
    except (OSError, shutil.Error) as error:
        raise TrackerError(f"the artifact {source} cannot be copied", found=str(error)[:500]) from error
    return {"file": str(target.relative_to(folder.path)), "path": path}


def keep_bytes(folder: RunFolder, data: bytes, name: str, path: str = "") -> dict[str, Any]:
    """Write an artifact's bytes into the run's folder.

    Args:
        folder: The run.
        data: The content.
        name: File name, without folders.
        path: Folder in the artifact store, "" for the top.

    Returns:
        The fields of the `artifact` record.

    Raises:
        UsageError: `name` or `path` leaves the artifact store.
        TrackerError: The file cannot be written.
    """
    target = _place(folder, name, path)
    try:
        target.write_bytes(data)
    except OSError as error:
        raise TrackerError(f"the artifact {name} cannot be written", found=error.strerror) from error
    return {"file": str(target.relative_to(folder.path)), "path": path}


def _holds(source: Path, home: Path) -> bool:
    return home.resolve().is_relative_to(source.resolve()) and home.resolve() != source.resolve()


def _but(home: Path) -> Callable[[str, list[str]], list[str]]:
    """Leave the home of all runs out: a project's folder holds it, and the copy would contain itself."""

    def ignored(inside: str, entries: list[str]) -> list[str]:
        return [name for name in entries if (Path(inside) / name).resolve() == home.resolve()]

    return ignored


def _place(folder: RunFolder, name: str, path: str) -> Path:
    name = readable(name)
    if name != Path(name).name or name in ("", ".."):
        raise UsageError("an artifact's name must be a plain file name", found=repr(name))
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise UsageError("an artifact's path must lie within the run's artifacts", found=repr(path))
    try:
        folder.artifacts.mkdir(exist_ok=True)
        # A folder of its own: the same name may be logged again before the first copy is uploaded.
        return Path(tempfile.mkdtemp(dir=folder.artifacts)) / name
    except OSError as error:
        raise TrackerError(
            f"the run's folder {folder.path} cannot be written",
            found=error.strerror,
            remedy="free disk space or make it writable",
        ) from error
