"""The errors that several modules of this room raise, in one wording."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from xptrain.errors import CheckpointDamagedError, CheckpointWriteError


def damaged(step: int, reasons: list[str]) -> CheckpointDamagedError:
    """Return the error for a checkpoint whose bytes are not those that were written."""
    listed = reasons[:10] + [f"and {len(reasons) - 10} more"] * (len(reasons) > 10)
    return CheckpointDamagedError(
        f"the checkpoint of step {step} is damaged",
        expected="the bytes that its receipt states",
        found="; ".join(listed),
        remedy="resume from an earlier checkpoint, or put a good copy of its folder back",
    )


def write_error(step: int, folder: Path, error: BaseException) -> CheckpointWriteError:
    """Return the error that says why a checkpoint could not be written, and what to do."""
    text = str(error).strip().partition("\n")[0] or "no message"
    found, remedy = f"{type(error).__name__}: {text}", "make the folder writable, then resume the run"
    # TensorStore's own exceptions carry the error number in their text only.
    for number in (errno.ENOSPC, errno.EDQUOT):
        if getattr(error, "errno", None) == number or os.strerror(number) in text:
            found, remedy = os.strerror(number), "free some space, then resume the run"
    return CheckpointWriteError(
        f"the checkpoint of step {step} could not be written",
        expected=f"a folder that can be written: {folder}",
        found=found,
        remedy=remedy,
    )
