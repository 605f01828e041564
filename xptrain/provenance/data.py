"""Fingerprint of the training data: every byte of every array, under its place in the structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import blake3
import numpy as np

from xptrain.provenance.data_walk import Leaf, walk
from xptrain.state.digest import digest_mapping

LIMIT_BYTES: Final = 16 << 30
_CHUNK: Final = 64 << 20
_BLOCK: Final = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """What is known of the data of a fit.

    Args:
        digest: 64 hexadecimal digits over all leaves and their names.
        leaves: Per name: `kind`, `shape`, `dtype`, `bytes` and `digest`.
        samples: Length of the first array (0 when there is none).
        bytes: Bytes of all arrays.
        sampled: True when there were more bytes than the limit, and only some blocks of rows were read.
        opaque: Names whose content is not covered (generators and the like).
        note: What the reader must know about the digest, empty if it covers everything.
    """

    digest: str
    leaves: Mapping[str, Mapping[str, Any]]
    samples: int
    bytes: int
    sampled: bool = False
    opaque: tuple[str, ...] = ()
    note: str = ""

    @property
    def profile(self) -> str:
        """One line for people, such as `1437 samples; x float32 (1437, 64), y int64 (1437,)`."""
        parts = [
            f"{name} {leaf['dtype']} {tuple(leaf['shape'])}"
            if leaf["kind"] == "array"
            else f"{name} {leaf['kind']}"
            for name, leaf in self.leaves.items()
        ]
        shown = ", ".join(parts[:8]) + (f", and {len(parts) - 8} more" if len(parts) > 8 else "")
        return f"{self.samples} samples; {shown}" if shown else "no data"

    def as_json(self) -> dict[str, Any]:
        """Return the fingerprint as JSON, for the manifest."""
        return {
            "digest": self.digest,
            "leaves": {name: dict(leaf) for name, leaf in self.leaves.items()},
            "samples": self.samples,
            "bytes": self.bytes,
            "sampled": self.sampled,
            "opaque": list(self.opaque),
            "note": self.note,
            "profile": self.profile,
        }


def fingerprint(data: Mapping[str, Any], *, limit_bytes: int = LIMIT_BYTES) -> Fingerprint:
    """Fingerprint arbitrarily nested data.

    Args:
        data: Structures by name, such as `{"x": x, "y": y}`: nested dicts, lists and tuples of NumPy, JAX or
            other arrays of any shape, pandas frames and series, SciPy sparse matrices, scalars and None.
        limit_bytes: Above this total, evenly spaced blocks of rows of each array are read, about this many
            bytes in all, always the same ones; `sampled` and `note` say so.

    Returns:
        The fingerprint. Order of dict keys, memory layout and byte alignment do not matter; names, shapes,
        dtypes and values do. Nothing is iterated that could be used up: such leaves are `opaque`.

    Example:
        >>> a = np.arange(6.0).reshape(2, 3)
        >>> fingerprint({"x": a}).digest == fingerprint({"x": np.asfortranarray(a)}).digest
        True
    """
    found = dict(item for name, value in data.items() for item in walk(name, value))
    total = sum(leaf.nbytes for leaf in found.values())
    fraction = min(1.0, limit_bytes / total) if total else 1.0
    leaves: dict[str, dict[str, Any]] = {}
    for name, leaf in found.items():
        leaves[name] = {**leaf.describe(), "digest": _digest_leaf(leaf, fraction)}
    sampled = fraction < 1.0
    opaque = tuple(name for name, leaf in found.items() if leaf.kind == "opaque")
    notes = (
        [f"digest of a sample: {fraction:.2%} of {total} bytes, in evenly spaced blocks of rows"]
        if sampled
        else []
    )
    notes += [f"not covered by the digest: {', '.join(opaque)}"] if opaque else []
    first = next((leaf.shape[0] for leaf in found.values() if leaf.kind == "array" and leaf.shape), 0)
    digest = digest_mapping({name: _identity(leaf) for name, leaf in leaves.items()})
    return Fingerprint(digest, leaves, int(first), total, sampled, opaque, "; ".join(notes))


def _identity(leaf: Mapping[str, Any]) -> str:
    return f"{leaf['kind']} {leaf['dtype']} {leaf['shape']} {leaf['digest']}"


def _digest_leaf(leaf: Leaf, fraction: float) -> str:
    """Digest a leaf in the format of `state.digest.digest_array`, without copying all of it."""
    if leaf.kind != "array":
        return blake3.blake3(f"{leaf.kind}:{leaf.text}".encode("utf-8", "surrogatepass")).hexdigest()
    array = leaf.value
    hasher = blake3.blake3(f"{np.dtype(leaf.dtype).name}{leaf.shape}".encode())
    if fraction >= 1.0 or leaf.nbytes <= _BLOCK:
        for piece in _pieces(array):
            hasher.update(piece)
        return hasher.hexdigest()
    for start, stop in sample_rows(leaf.shape[0], leaf.nbytes, fraction):
        for piece in _pieces(array[start:stop]):
            hasher.update(piece)
    return hasher.hexdigest()


def sample_rows(rows: int, nbytes: int, fraction: float) -> list[tuple[int, int]]:
    """Return evenly spaced blocks of rows, the first and the last row included.

    Args:
        rows: Rows of the array, at least 1.
        nbytes: Bytes of the array.
        fraction: Part of the rows wanted, between 0 and 1.

    Returns:
        Ranges (start, stop), ascending, that do not overlap.

    Example:
        >>> sample_rows(100, 100 << 20, 0.03)
        [(0, 1), (50, 51), (99, 100)]
    """
    height = max(1, _BLOCK * rows // nbytes)
    blocks = max(1, min(round(rows * fraction / height), -(-rows // height)))
    if blocks == 1:
        starts = [0] if rows <= height else [0, rows - height]
    else:
        starts = [round(i * (rows - height) / (blocks - 1)) for i in range(blocks)]
    ranges: list[tuple[int, int]] = []
    for start in starts:
        begin = max(start, ranges[-1][1] if ranges else 0)
        if begin < min(start + height, rows):
            ranges.append((begin, min(start + height, rows)))
    return ranges


def _pieces(array: Any) -> Iterator[Any]:
    """Yield the bytes of an array in C order; only arrays of another layout are copied, piece by piece."""
    host = array if isinstance(array, np.ndarray) else None
    if host is None:
        if array.ndim and array.nbytes > _CHUNK and not hasattr(array, "sharding"):
            # Such as an HDF5 dataset: read by rows, never as a whole.
            yield from (
                p for start, stop in _row_ranges(array) for p in _pieces(np.asarray(array[start:stop]))
            )
            return
        host = np.asarray(array)
    if not host.size:
        return
    if host.flags.c_contiguous:
        yield host.reshape(-1).view(np.uint8).data
    elif host.nbytes <= _CHUNK or host.ndim == 0:
        yield _tight(host).reshape(-1).view(np.uint8).data
    else:
        yield from (
            piece for start, stop in _row_ranges(host) for piece in _pieces(_drop_unit(host[start:stop]))
        )


def _tight(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy a block into C order by tiles that fit the cache: six times as fast for a transposed array."""
    tight = np.empty(block.shape, block.dtype)
    axis = int(np.argmax(block.shape)) if block.ndim else 0
    length = block.shape[axis] if block.ndim else 1
    tile = max(256, (1 << 15) * length // max(1, block.nbytes))
    for start in range(0, length, tile):
        part = (slice(None),) * axis + (slice(start, start + tile),) if block.ndim else ()
        tight[part] = block[part]
    return tight


def _drop_unit(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Take away a leading dimension of one, so that a single huge row is cut along the next one."""
    return block[0] if block.shape[0] == 1 else block


def _row_ranges(array: Any) -> Iterator[tuple[int, int]]:
    rows = int(array.shape[0])
    height = max(1, _CHUNK * rows // max(1, int(array.nbytes)))
    for start in range(0, rows, height):
        yield start, min(start + height, rows)
