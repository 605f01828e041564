"""The checkpoint folder: its step folders, what is moved in and out of sight, and its ledger."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from secrets import token_hex
from typing import Final

from xptrain.checkpoint.files import sync
from xptrain.checkpoint.ledger import Ledger
from xptrain.checkpoint.problems import damaged
from xptrain.checkpoint.receipts import Receipt, unseal
from xptrain.errors import CheckpointDamagedError, CheckpointWriteError

STEP_DIGITS: Final = 12
RECEIPT_FILE: Final = "receipt/metadata"  # where Orbax's JSON items keep their text
HOST_FILE: Final = "host/metadata"
_MARK: Final = "here"
_STAGED, _REPLACED, _DISCARDED = ".tmp-", ".old-", ".bin-"


def step_name(step: int) -> str:
    """Return the name of a step's folder.

    Example:
        >>> step_name(1200)
        '000000001200'
    """
    return f"{step:0{STEP_DIGITS}d}"


class Folder:
    """The checkpoint folder of one run; reading it loads neither JAX nor Orbax.

    Args:
        directory: The folder; it need not exist before the first save.

    Example:
        >>> Folder("nowhere").steps()
        []
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory).absolute()
        self.ledger = Ledger(self.path / "ledger.jsonl")
        self._identity: tuple[int, int] | None = None

    def steps(self) -> list[int]:
        """Return the steps that have a folder, in order."""
        if not self.path.is_dir():
            return []
        names = (path.name for path in self.path.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if len(name) == STEP_DIGITS and name.isdecimal())

    def receipts(self) -> list[Receipt]:
        """Return the receipts of the checkpoints on disk by step, unverified; damaged ones are left out."""
        entries = self.ledger.entries()
        found = []
        for step in self.steps():
            try:
                found.append(entries[step].receipt if step in entries else self.receipt_in(step))
            except CheckpointDamagedError:
                continue  # newest_good() says so and moves it aside; a listing has nothing to show for it
        return found

    def receipt_in(self, step: int) -> Receipt:
        """Return the receipt that a step's folder itself carries.

        Raises:
            CheckpointDamagedError: It is missing or not what was written.
        """
        try:
            receipt = Receipt.from_json(unseal((self.folder_of(step) / RECEIPT_FILE).read_bytes()))
            if receipt.step != step:
                raise ValueError(f"it belongs to step {receipt.step}")
            return receipt
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise damaged(step, [f"its receipt cannot be read: {error}"]) from error

    def folder_of(self, step: int) -> Path:
        """Return where the checkpoint of a step lies, or would lie."""
        return self.path / step_name(step)

    def stage(self, step: int) -> Path:
        """Return a hidden folder's child, named like the step, that does not exist yet."""
        if self._identity is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._identity = _identity(self.path)
        self._check_still_there()
        staging = self.path / f"{_STAGED}{step_name(step)}-{token_hex(4)}"
        staging.mkdir()
        (staging / _MARK).touch()
        return staging / step_name(step)

    def is_still_there(self, staged: Path) -> bool:
        """Return whether a hidden folder is the one that `stage` made.

        Orbax makes a folder again that was taken away while it writes, with only a part of the files; the
        inode number does not tell, for it is given to the next folder.
        """
        return (staged.parent / _MARK).exists()

    def publish(self, staged: Path, step: int) -> None:
        """Make a staged checkpoint visible at once; an earlier one of that step steps aside."""
        self._check_still_there()
        if not self.is_still_there(staged):
            raise FileNotFoundError(errno.ENOENT, "the hidden folder of the save vanished", str(staged))
        final, replaced = self.folder_of(step), None
        if final.exists():
            replaced = self.path / f"{_REPLACED}{step_name(step)}-{token_hex(4)}"
            final.rename(replaced)
        staged.rename(final)
        sync(self.path)
        shutil.rmtree(staged.parent)
        if replaced:
            shutil.rmtree(replaced)

    def discard(self, step: int) -> None:
        """Delete a checkpoint; it is out of sight before its first file is deleted."""
        hidden = self.path / f"{_DISCARDED}{step_name(step)}-{token_hex(4)}"
        self.folder_of(step).rename(hidden)
        sync(self.path)
        shutil.rmtree(hidden)

    def set_aside(self, step: int) -> Path:
        """Move a damaged checkpoint to `damaged/` and return where it is now."""
        place = self.path / "damaged"
        place.mkdir(exist_ok=True)
        target, n = place / step_name(step), 1
        while target.exists():
            target, n = place / f"{step_name(step)}.{n}", n + 1
        self.folder_of(step).rename(target)
        sync(self.path)
        return target

    def aside(self) -> list[str]:
        """Return the names of the checkpoints in `damaged/`."""
        place = self.path / "damaged"
        return sorted(path.name for path in place.iterdir()) if place.is_dir() else []

    def tidy(self) -> list[str]:
        """Clean up after a killed process and return what was done, one sentence each."""
        if self._identity is not None or not self.path.is_dir():
            return []  # what is hidden here now may be a save of this process
        done = []
        for path in sorted(self.path.iterdir()):
            step = path.name[5 : 5 + STEP_DIGITS]
            if path.name.startswith(_REPLACED) and not (self.path / step).exists():
                path.rename(self.path / step)
                done.append(f"The checkpoint of step {int(step)} was put back: its replacement had not come.")
            elif path.name.startswith((_STAGED, _REPLACED, _DISCARDED)):
                shutil.rmtree(path)
                done.append(f"Left over from a killed process and removed: {path.name}.")
        return done

    def _check_still_there(self) -> None:
        # Orbax and TensorStore would make a vanished folder again, and the save would look like a success.
        if not self.path.is_dir() or _identity(self.path) != self._identity:
            raise CheckpointWriteError(
                "the checkpoint folder was taken away while the run was going on",
                expected=f"the folder that the run began with: {self.path}",
                found="no folder, or another one, at that path",
                remedy="put it back, then resume the run",
            )


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
