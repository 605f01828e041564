"""What changes in a dataset although nobody will change it again when its run is resumed."""

from __future__ import annotations

from typing import Any

from xptrain.state.python.reach import GENERATORS, are_read, changed, look, name_of


class Changes:
    """Sees what changes between two looks at an object of the script.

    Args:
        owner: For example a dataset whose `__getitem__` counts.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._name = type(owner).__qualname__
        self.look()

    def look(self) -> None:
        """Take what is there now as it should be."""
        # Random generators are given a state for each batch.
        self._notes, _ = look({self._name: self._owner}, but=GENERATORS)

    def seen(self) -> list[str]:
        """Return what is different from when it was last looked at."""
        now, owners = look({self._name: self._owner}, but=GENERATORS)
        found = list(changed(self._notes, now))
        is_read = are_read(owners) if found else None
        return [
            f"{name_of(place, part)} (loading or a callback changes it)"
            for place, part in found
            if is_read and is_read(name_of(place, part), owners[place])
        ]
