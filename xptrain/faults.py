"""Named moments at which tests let a process die; nothing happens here in a real run.

The save path announces the moments that lie between two durable writes, so that a test can kill the
process exactly there. `xptrain.testing` puts hooks in; without one a moment costs a truth test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOMENTS: Final = (
    "save-started",  # the snapshot is taken, nothing is on disk yet
    "journal-durable",  # the points up to this step are on disk, the checkpoint is not yet visible
    "committed",  # the checkpoint is visible, the ledger does not know it
    "ledger-written",  # the ledger knows it, the tracker does not
)
hooks: list[Callable[[str, int], None]] = []


def moment(name: str, step: int) -> None:
    """Announce a named moment of saving the checkpoint of `step`."""
    for hook in hooks:
        hook(name, step)
