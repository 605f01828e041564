"""What MLflow allows in names, values and requests, and how ours are made to fit."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from xptrain.tracking.points import Point

# From mlflow/utils/validation.py, 3.17.2.
MOST_METRICS = 1000
MOST_OTHERS = 100
MOST_BYTES = 900_000  # the limit is 1e6 for the whole request
LONGEST_NAME = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 8000
OURS = "xptrain."
_DIGEST = 4

T = TypeVar("T")


def digest(text: str) -> str:
    """Return the BLAKE2b-128 digest of a text as hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def readable(text: str) -> str:
    r"""Return text that every store takes: lone surrogates and NUL are written out.

    Example:
        >>> readable("bad\udc80name")
        'bad\\udc80name'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def user_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a user's tags; names that begin like ours get `user.` in front, so that they replace none.

    Example:
        >>> user_tags({"stage": "baseline", "xptrain.key": "mine"})
        {'stage': 'baseline', 'user.xptrain.key': 'mine'}
    """
    return {f"user.{name}" if name.startswith(OURS) else name: value for name, value in tags.items()}


def allowed(name: str) -> str:
    """Return a name that MLflow takes for a metric, param or tag; different names stay different.

    Args:
        name: Any text.

    Returns:
        The name itself when MLflow allows it; else its allowed part and 4 digits of its digest.

    Example:
        >>> allowed("val/accuracy"), allowed("acc@1")
        ('val/accuracy', 'acc_1-3bf6')
    """
    clean = re.sub(r"[^\w./\- :]", "_", name)
    clean = "/".join(
        part for part in posixpath.normpath(clean or "_").split("/") if part not in ("", ".", "..")
    )
    if clean.startswith(".."):  # MLflow takes it for a way out of its folder
        clean = "_" + clean.lstrip(".")
    if clean == name and len(name) <= LONGEST_NAME:
        return name
    return f"{clean[: LONGEST_NAME - _DIGEST - 1] or '_'}-{digest(name)[:_DIGEST]}"


def param_value(text: str) -> str:
    """Return a param value that fits; a longer one becomes its digest, so that a changed tail shows."""
    text = readable(text)
    if len(text) <= LONGEST_PARAM:
        return text
    return f"blake2b:{digest(text)} ({len(text)} characters)"


def tag_value(text: str) -> str:
    """Return a tag value that fits; a longer one is cut and says so."""
    text = readable(text)
    if len(text) <= LONGEST_TAG:
        return text
    note = f" … [cut: {len(text)} characters, blake2b:{digest(text)}]"
    return text[: LONGEST_TAG - len(note)] + note


def finite(value: float) -> float:
    """Return what MLflow stores for a value: infinities become the largest numbers, nan stays."""
    return max(-sys.float_info.max, min(sys.float_info.max, value)) if value == value else value


def size(item: object) -> int:
    """Estimate the bytes an item takes in a JSON request."""
    return len(json.dumps(item)) + 64


def chunks(items: Sequence[T], most: int, sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    """Cut a sequence into pieces that fit one request each.

    Args:
        items: What is to be sent.
        most: Most items in a request.
        sizes: Bytes of each item.

    Yields:
        Consecutive pieces, none empty.
    """
    begin = used = 0
    for end, bytes_ in enumerate(sizes):
        if end > begin and (end - begin == most or used + bytes_ > MOST_BYTES):
            yield items[begin:end]
            begin, used = end, 0
        used += bytes_
    if begin < len(items):
        yield items[begin:]


def point_sizes(points: Sequence[Point]) -> list[int]:
    """Estimate the bytes of each point in a JSON request."""
    names = {metric: size(metric) for metric in {point.metric for point in points}}
    return [names[point.metric] + 80 for point in points]
