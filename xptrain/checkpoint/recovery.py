"""After a crash: find the newest checkpoint that is whole, and put the folder and its ledger in order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from xptrain.checkpoint.files import hash_tree
from xptrain.checkpoint.folder import Folder
from xptrain.checkpoint.receipts import Loaded, Receipt, position
from xptrain.errors import CheckpointDamagedError


@dataclass(frozen=True)
class Recovery:
    """Works on one checkpoint folder while its run's lock is held.

    Args:
        folder: The folder.
        verify: Returns the receipt of a step's checkpoint, or raises CheckpointDamagedError.
        notices: Gets a sentence for everything the user should know.
        bad: What was found wrong, by step.
    """

    folder: Folder
    verify: Callable[[int], Receipt]
    notices: list[str]
    bad: dict[int, str] = field(default_factory=dict)

    def newest_good(self, load: Callable[[int], Loaded]) -> Loaded | None:
        """Return the newest whole checkpoint; None when the run never had one.

        Raises:
            CheckpointDamagedError: There were checkpoints, and none is whole.
        """
        for sentence in self.folder.tidy():
            self._say(sentence, loud=False)
        self.repair()
        for step in reversed(self.folder.steps()):
            try:
                loaded = load(step)
            except CheckpointDamagedError as error:
                self._set_aside(step, error)
                continue
            if max(self.bad, default=-1) > step:
                self._say(f"The checkpoint of step {step} is used instead.")
            return loaded
        lost = {**self.folder.ledger.lost(), **self.bad}
        if lost or self.folder.aside():
            raise CheckpointDamagedError(
                "no checkpoint of this run is whole",
                expected=f"at least one good checkpoint in {self.folder.path}",
                found="; ".join(f"step {step}: {why}" for step, why in lost.items())
                or f"only damaged/{', damaged/'.join(self.folder.aside())}",
                remedy="put a good copy of a step's folder back, or start a new run",
            )
        return None

    def repair(self) -> None:
        """Bring the ledger and the step folders together again."""
        for _ in self.folder.ledger.repair():
            self._say("An unreadable line was taken out of the ledger; the step folders say what is there.")
        known, present = self.folder.ledger.entries(), self.folder.steps()
        for step in present:
            if step in known and self._was_replaced(step, known[step].receipt):
                # Killed between the rename of the later checkpoint of this step and its ledger entry.
                self.folder.ledger.gone(step, "deleted")
                self._admit(step)
            elif step not in known:
                self._admit(step)
        for step in sorted(set(known) - set(present)):
            self.folder.ledger.gone(step, "missing")
            self.bad[step] = "its folder is gone"
            self._say(f"The checkpoint of step {step} is gone: {self.folder.folder_of(step)} is missing.")

    def _was_replaced(self, step: int, listed: Receipt) -> bool:
        try:
            there = self.folder.receipt_in(step)
        except CheckpointDamagedError:
            return False
        return position(there.cursor) > position(listed.cursor)

    def _admit(self, step: int) -> None:
        try:
            receipt = self.verify(step)
        except CheckpointDamagedError as error:
            self._set_aside(step, error)
            return
        self.folder.ledger.append(receipt, hash_tree(self.folder.folder_of(step)))
        sentence = f"The checkpoint of step {step} was not in the ledger; it was checked and added."
        self._say(sentence, loud=False)

    def _set_aside(self, step: int, error: CheckpointDamagedError) -> None:
        place = self.folder.set_aside(step)
        self.folder.ledger.gone(step, "damaged")
        self.bad[step] = error.found or error.what
        self._say(f"The checkpoint of step {step} is damaged ({error.found}); it was moved to {place}.")

    def _say(self, sentence: str, *, loud: bool = True) -> None:
        self.notices.append(sentence)
        if loud:
            warnings.warn(sentence, stacklevel=2)
