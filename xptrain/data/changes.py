"""What changes in a dataset although nobody will change it again when its run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xptrain.state.python.reach import Watch

# What a batch does not depend on can be told apart by nothing but its name.
_REASON = "(loading or a callback changes it; {remedy})"
_BY_STATE = "if batches depend on it, give the dataset get_state and set_state; if not, name it …cache…"
_BY_NAME = "if batches do not depend on it, name it …cache…"


class Changes:
    """Sees what changes between two looks at an object of the script.

    Args:
        owner: For example a dataset whose `__getitem__` counts.
        seeded: Says of a random generator whether it is given a state for each batch.
        can_speak: Whether `get_state` and `set_state` of its own would be used.
    """

    def __init__(self, owner: Any, seeded: Callable[[Any], bool], *, can_speak: bool = False) -> None:
        # Random generators are given a state for each batch.
        self._watch = Watch({type(owner).__qualname__: owner}, but=seeded)
        self._first = Watch({type(owner).__qualname__: owner}, but=seeded)
        self._first.look()
        self._reason = _REASON.format(remedy=_BY_STATE if can_speak else _BY_NAME)
        self.look()

    def look(self) -> None:
        """Take what is there now as it should be."""
        self._watch.look()

    def seen(self) -> list[str]:
        """Return what is different from when it was last looked at."""
        return [f"{name} {self._reason}" for name, _, _ in self._watch.changes()]

    def since_begin(self) -> str:
        """Return a digest of what is different from when this was made."""
        return self._first.digest()
