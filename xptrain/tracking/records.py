"""The records of a journal: one JSON object a line, with a checksum, and which of them count."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CRC = b',"crc":'
_HEAD = b'{"kind":"'
_TEXT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal.

    Args:
        kind: What it tells (the table in docs/design/rooms.md).
        ms: When it happened, milliseconds since the epoch.
        fields: The rest of the line.
    """

    kind: str
    ms: int
    fields: Mapping[str, Any]


def plain(value: Any) -> Any:
    """Turn a value into what JSON can hold: NumPy scalars unwrapped, nan and infinities as text."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        return plain(value.item())
    raise TypeError(f"{type(value).__name__} cannot be journaled")


def encode(kind: str, ms: int, fields: Mapping[str, Any]) -> bytes:
    """Return the line of a record, with its CRC-32 and newline."""
    # `kind` stands first so that a reader can pick kinds out of a long journal without parsing it, and
    # find a record that stands behind a torn one on the same line.
    whole = {"kind": kind, "ms": int(ms), **fields}
    try:
        text = _TEXT.encode(whole)
    except (ValueError, TypeError):  # a NumPy scalar, nan or infinity: rare, and slow to look for first
        text = _TEXT.encode(plain(whole))
    body = text.encode()
    return b"%b%b%d}\n" % (body[:-1], _CRC, zlib.crc32(body))


def decode(line: bytes) -> Record | None:
    """Return the record in a line, or None when the line is torn or damaged."""
    cut = line.rfind(_CRC)
    digits = line[cut + len(_CRC) : -2]
    if cut < 0 or not line.endswith(b"}\n") or not digits.isdigit():
        return None
    begin = line.find(_HEAD)
    while 0 <= begin < cut:
        body = line[begin:cut] + b"}"
        if zlib.crc32(body) == int(digits):
            fields = json.loads(body)
            return Record(fields.pop("kind"), fields.pop("ms"), fields)
        begin = line.find(_HEAD, begin + 1)
    return None


class Hearing:
    """Tells the records that count from the late words of an attempt that another one has taken over from.

    A process that was suspended, or taken for dead from another host, may go on writing after a later attempt
    began. Records that name no attempt always count.

    Args:
        attempt: The newest attempt heard of before, 0 for none.
    """

    def __init__(self, attempt: int = 0) -> None:
        self.attempt = attempt

    def counts(self, record: Record) -> bool:
        """Take in the next record of a journal; False when a later attempt had begun before it."""
        attempt = record.fields.get("attempt")
        if not isinstance(attempt, int):
            return True
        self.attempt = max(self.attempt, attempt)
        return attempt == self.attempt
