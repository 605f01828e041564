"""BLAKE3 digests of arrays and JSON values, independent of how an array is sharded.

An array's digest covers its dtype name, its shape and its logical bytes in C order.
Format: 64 hexadecimal digits (https://github.com/BLAKE3-team/BLAKE3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import blake3
import numpy as np


def digest_array(array: Any) -> str:
    """Return the digest of a NumPy or fully addressable JAX array.

    Args:
        array: Anything `numpy.asarray` accepts, of any shape and dtype (bfloat16 included).

    Returns:
        64 hexadecimal digits.

    Example:
        >>> import numpy as np
        >>> digest_array(np.zeros(3)) == digest_array(np.zeros(3, "float32"))
        False
    """
    host = np.asarray(array)
    hasher = blake3.blake3(f"{host.dtype.name}{host.shape}".encode())
    # ascontiguousarray would make a 0-d array 1-d; the bytes are the same, the header above is not.
    hasher.update(np.ascontiguousarray(host).view(np.uint8).reshape(-1).data if host.size else b"")
    return hasher.hexdigest()


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True, ensure_ascii=False)


def digest_json(value: Any) -> str:
    """Return the digest of a JSON-serialisable value; the order of dict keys does not matter."""
    return blake3.blake3(canonical_json(value).encode()).hexdigest()


def digest_mapping(digests: Mapping[str, str]) -> str:
    """Return one digest for named digests: equal exactly when all names and digests are equal."""
    return digest_json(dict(digests))
