"""Files that `CSVLogger` appends to: rows after a checkpoint are written again, so they are cut off first."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import blake3


def mark(path: str, offset: int | None = None) -> dict[str, Any] | None:
    """Return what identifies a file up to a place in it, or None for a file that is not on this machine.

    Args:
        path: Name of the file as the script gave it; it need not exist.
        offset: Bytes from its start; None for its end.

    Returns:
        `path`, `offset`, and `digest` of the bytes before the offset.
    """
    if "://" in path:
        return None
    head = Path(path).read_bytes() if Path(path).exists() else b""
    head = head if offset is None else head[:offset]
    return {
        "path": path,
        "absolute": str(Path(path).absolute()),
        "offset": len(head),
        "digest": _digest(head),
    }


def cut_back(path: str, known: Mapping[str, Any], *, is_shared: bool) -> bool:
    """Cut a file back to a mark; what cannot be ours is kept beside it.

    Args:
        path: Name of the file now.
        known: What `mark` returned.
        is_shared: Whether others may have written to it, too.

    Returns:
        Whether the file ends at the mark now. If it is not the file that was marked, it is left alone, and a
        warning says so.
    """
    if path != known["path"] and str(Path(path).absolute()) != known["absolute"]:
        _warn(f"{path} is another file than in the checkpoint ({known['path']}); the earlier rows stay there")
        return False
    data = Path(path).read_bytes() if Path(path).exists() else b""
    head, tail = data[: known["offset"]], data[known["offset"] :]
    if len(head) < known["offset"] or _digest(head) != known["digest"]:
        _warn(
            f"{path} is not as it was at the checkpoint; it is left alone, so rows may be missing or doubled"
        )
        return False
    if tail:
        if is_shared or not _goes_on(head, tail):
            aside = _aside(path, tail)
            _warn(f"{path} was cut back to where this attempt goes on; what was behind is in {aside}")
        with Path(path).open("r+b") as file:
            file.truncate(known["offset"])
    return True


def _goes_on(head: bytes, tail: bytes) -> bool:
    """Say whether the rows in `tail` are of the epochs that follow those in `head`."""
    before = [epoch for epoch in map(_epoch, head.splitlines()) if epoch is not None]
    lines = tail.splitlines(keepends=True)
    # A killed process may leave half a row.
    rows = [line for line in lines if line.endswith(b"\n")]
    if not before and rows and _epoch(rows[0]) is None:
        rows = rows[1:]
    epochs = [_epoch(row) for row in rows]
    first = before[-1] + 1 if before else (epochs[0] if epochs else 0)
    return first is not None and epochs == list(range(first, first + len(epochs)))


def _epoch(row: bytes) -> int | None:
    digits = row[: len(row) - len(row.lstrip(b"0123456789"))]
    return int(digits) if digits else None


def _aside(path: str, tail: bytes) -> Path:
    number = 1
    while True:
        aside = Path(f"{path}.cut-{number}")
        try:
            with aside.open("xb") as file:
                file.write(tail)
            return aside
        except FileExistsError:
            number += 1


def _digest(data: bytes) -> str:
    return blake3.blake3(data).hexdigest()


def _warn(text: str) -> None:
    warnings.warn(f"CSVLogger: {text}", stacklevel=2)
