"""The ledger: every receipt of a run in order, append-only, with a digest of each checkpoint's files.

One sealed JSON object a line: `{"kind": "saved", "receipt": {...}, "files": {path: [size, digest]}, "check"}`
or `{"kind": "deleted" | "damaged" | "missing", "step": n, "check"}`. The step folders carry their receipts
themselves, so a lost line costs nothing but a check of that folder.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xptrain.checkpoint.files import append_line, replace_text
from xptrain.checkpoint.receipts import Receipt, seal, unseal
from xptrain.state.digest import canonical_json

Files = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Entry:
    """One saved checkpoint: its receipt and, by relative path, size in bytes and digest of its files."""

    receipt: Receipt
    files: Files


class Ledger:
    """The receipts of one checkpoint folder; reads only what was appended since the last look.

    Args:
        path: The file; it need not exist yet.

    Example:
        >>> Ledger(Path("nowhere/ledger.jsonl")).history()
        []
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines: list[str] = []
        self._lock = threading.RLock()
        self._forget()

    def append(self, receipt: Receipt, files: Files) -> None:
        """Add a saved checkpoint, durably."""
        listed = {name: [size, digest] for name, (size, digest) in files.items()}
        self._append({"kind": "saved", "receipt": receipt.to_json(), "files": listed})

    def gone(self, step: int, why: Literal["deleted", "damaged", "missing"]) -> None:
        """Add that a checkpoint is not there any more, durably."""
        self._append({"kind": why, "step": step})

    def history(self) -> list[Receipt]:
        """Return every receipt in the order of saving, those of deleted checkpoints included."""
        with self._lock:
            self._read()
            return list(self._history)

    def entries(self) -> dict[int, Entry]:
        """Return the checkpoints that should be there, by step."""
        with self._lock:
            self._read()
            return dict(self._entries)

    def lost(self) -> dict[int, str]:
        """Return the steps whose checkpoint was found damaged or missing, and which of the two."""
        with self._lock:
            self._read()
            return dict(self._lost)

    def repair(self) -> list[str]:
        """Drop unreadable lines for good and return them; call only while holding the run's lock."""
        with self._lock:
            self._read(to_the_end=True)
            dropped, self.bad_lines = self.bad_lines, []
            if dropped:
                kept = [line for line in _lines(self.path.read_bytes()) if _is_sealed(line)]
                replace_text(self.path, "".join(f"{line.decode()}\n" for line in kept))
                self._forget()
            return dropped

    def _forget(self) -> None:
        self._offset = 0
        self._history: list[Receipt] = []
        self._entries: dict[int, Entry] = {}
        self._lost: dict[int, str] = {}

    def _append(self, record: dict[str, Any]) -> None:
        with self._lock:
            append_line(self.path, canonical_json(seal(record)))
            self._read()

    def _read(self, *, to_the_end: bool = False) -> None:
        if not self.path.exists():
            self._forget()
            return
        with self.path.open("rb") as stream:
            if stream.seek(0, 2) < self._offset:
                self._forget()
            stream.seek(self._offset)
            text = stream.read()
        # The last line may still be in the making, unless nobody else can be writing.
        whole = len(text) if to_the_end else text.rfind(b"\n") + 1
        for line in _lines(text[:whole]):
            self._take(line)
        self._offset += whole

    def _take(self, line: bytes) -> None:
        try:
            record = unseal(line)
        except ValueError as error:
            self.bad_lines.append(line.decode(errors="replace"))
            warnings.warn(f"{self.path}: a line is unreadable and ignored ({error})", stacklevel=2)
            return
        if record["kind"] == "saved":
            receipt = Receipt.from_json(record["receipt"])
            files = {name: (size, digest) for name, (size, digest) in record["files"].items()}
            self._history.append(receipt)
            self._entries[receipt.step] = Entry(receipt, files)
            self._lost.pop(receipt.step, None)
        else:
            self._entries.pop(record["step"], None)
            if record["kind"] != "deleted":
                self._lost[record["step"]] = record["kind"]


def _lines(text: bytes) -> Iterable[bytes]:
    return (line for line in text.split(b"\n") if line.strip())


def _is_sealed(line: bytes) -> bool:
    try:
        unseal(line)
    except ValueError:
        return False
    return True
