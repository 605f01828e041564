"""Records whose files the artifact store does not take now: told again later, nothing else waits for them."""

from __future__ import annotations

from typing import Final

from xptrain.tracking import journal
from xptrain.tracking.folder import RunFolder
from xptrain.tracking.records import Record
from xptrain.tracking.refusals import FilesFailed

# An artifact store that cannot be reached may take long to say so, and metrics wait meanwhile.
AGAIN_S: Final = 60.0
_TAG: Final = "xptrain.files_waiting"
_LONGEST: Final = 1000


def record_at(folder: RunFolder, offset: int) -> Record | None:
    """Return the record of a run's journal that begins at a position, if it is sound."""
    found = next(journal.scan(folder.journal, offset, damaged=lambda _: None), None)
    return found[0] if found else None


def tags(count: int, error: FilesFailed | None) -> dict[str, str]:
    """Return the tag that says how many records wait, and why."""
    return {_TAG: "none" if error is None else f"{count}: {error.what} ({error.found})"[:_LONGEST]}
