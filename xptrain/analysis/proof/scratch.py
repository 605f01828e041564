"""The folder that a replay works in; one whose owner was killed is deleted by the next replay."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from xptrain.tracking import processes

_PREFIX: Final = "replay-"
_OWNER: Final = "owner.json"


@contextmanager
def scratch_in(home: Path) -> Iterator[Path]:
    """Give a folder beside the runs, where checkpoints can be hard links, for the time of a replay.

    Args:
        home: The home of all runs; where it cannot be written, the system's own place must do.

    Yields:
        The folder, empty but for a note whose it is.
    """
    _sweep(home)
    place = home if os.access(home, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / _OWNER).write_text(json.dumps([*processes.own(), processes.hostname()]))
        yield folder


def _sweep(home: Path) -> None:
    for folder in home.glob(f"{_PREFIX}*"):
        # One without a note is being made right now, or is not ours.
        with suppress(OSError, ValueError):
            pid, started, host = json.loads((folder / _OWNER).read_text())
            if host == processes.hostname() and not processes.alive(pid, started):
                shutil.rmtree(folder, ignore_errors=True)
