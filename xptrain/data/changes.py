"""What changes in a dataset although nobody will change it again when its run is resumed."""

from __future__ import annotations

from typing import Any

from xptrain.state.python.reach import GENERATORS, Watch


class Changes:
    """Sees what changes between two looks at an object of the script.

    Args:
        owner: For example a dataset whose `__getitem__` counts.
    """

    def __init__(self, owner: Any) -> None:
        # Random generators are given a state for each batch.
        self._watch = Watch({type(owner).__qualname__: owner}, but=GENERATORS)
        self.look()

    def look(self) -> None:
        """Take what is there now as it should be."""
        self._watch.look()

    def seen(self) -> list[str]:
        """Return what is different from when it was last looked at."""
        return [f"{name} (loading or a callback changes it)" for name, _, _ in self._watch.changes()]
