"""Copies of a run that end at one of its checkpoints: for a replay, or for a fork."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from xptrain.analysis.reading import Reading, read
from xptrain.checkpoint.folder import Folder, step_name
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointNotFoundError
from xptrain.tracking.finding import all_runs
from xptrain.tracking.folder import Delivered, RunFolder, RunInfo


def lay_out(reading: Reading, home: Path, at: Receipt | None) -> RunFolder:
    """Lay out a home in which a run can be replayed from a checkpoint.

    The runs that its process opened before it are there, too, since its script opens them again.

    Args:
        reading: The run.
        home: The new home; it must not exist.
        at: The checkpoint, or None to begin at the beginning.

    Returns:
        The run's folder in it. Its journal is empty; its checkpoints are hard links where that is possible.

    Raises:
        CheckpointNotFoundError: The checkpoint went away meanwhile.
    """
    setup = reading.info.setup
    for folder in all_runs(reading.folder.home):
        other = folder.info.setup
        if (
            folder.key != reading.info.key
            and other.get("process") == setup.get("process")
            and other.get("place", 0) < setup.get("place", 0)
        ):
            earlier = read(folder)
            newest = max(earlier.receipts, key=lambda receipt: receipt.step, default=None)
            _lay_out_one(earlier, home, newest)
    return _lay_out_one(reading, home, at)


def _lay_out_one(reading: Reading, home: Path, at: Receipt | None) -> RunFolder:
    target = RunFolder(home / "runs" / reading.info.key)
    info = replace(reading.info, checkpoint_dir=str(target.path / "checkpoints"))
    make_run(target, info)
    manifests = reading.folder.path / "manifest"
    if manifests.is_dir():
        shutil.copytree(manifests, target.path / "manifest")
    if reading.run_id is not None:
        target.acknowledge(Delivered(run_id=reading.run_id))
    copy_checkpoints(reading, Path(info.checkpoint_dir), at)
    return target


def make_run(target: RunFolder, info: RunInfo) -> None:
    """Make the folder of a copy, with an identity and nothing else.

    Args:
        target: The folder.
        info: Its identity.
    """
    target.artifacts.mkdir(parents=True)
    info.write(target.run_json)


def copy_checkpoints(reading: Reading, place: Path, at: Receipt | None) -> None:
    """Copy a checkpoint, and the last ones of the fits before it, with their lines of the ledger.

    Args:
        reading: The run.
        place: The checkpoint folder of the copy.
        at: The checkpoint; nothing is copied for None.

    Raises:
        CheckpointNotFoundError: One of them is not there.
    """
    place.mkdir(parents=True, exist_ok=True)
    if at is None:
        return
    steps = {at.step} | {r.step for r in reading.receipts if r.cursor.done and r.cursor.fit < at.cursor.fit}
    source = reading.checkpoints
    for step in sorted(steps):
        try:
            shutil.copytree(source.folder_of(step), place / step_name(step), copy_function=_link)
        except (FileNotFoundError, shutil.Error) as error:
            raise CheckpointNotFoundError(
                f"run {reading.info.key} has no checkpoint of step {step} any more",
                expected=f"a folder {source.folder_of(step)}",
                found="it was deleted meanwhile",
                remedy="try again: a run that is being trained deletes its older checkpoints",
            ) from error
    entries, ledger = source.ledger.entries(), Folder(place).ledger
    for step in sorted(entries.keys() & steps):
        ledger.append(entries[step].receipt, entries[step].files)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copy2(source, target)
    return target
