"""Receipts: what a checkpoint holds, leaf by leaf, with the digests that prove it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from xptrain.errors import CheckpointError, CheckpointWriteError
from xptrain.state.digest import digest_array, digest_json, digest_mapping
from xptrain.state.snapshot import Cursor, Snapshot

FORMAT: Final = 1


@dataclass(frozen=True)
class LeafReceipt:
    """What one leaf is.

    Args:
        path: Key of the leaf in its snapshot.
        shape: Logical shape.
        dtype: NumPy or ml_dtypes name; `key<impl>` for typed JAX keys.
        sharding: JSON: "host" (NumPy), "single", or `{"mesh": {axis: size}, "spec": [...]}`.
        digest: `xptrain.state.digest.digest_array` of it (of the key data for typed keys).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    sharding: Any
    digest: str

    @property
    def is_stored(self) -> bool:
        """Whether Orbax was given this leaf; a zero-size array is made from the receipt alone."""
        return 0 not in self.shape


@dataclass(frozen=True)
class Receipt:
    """What one checkpoint is.

    Args:
        step: Train steps done since the run began.
        attempt: Number of the process execution that saved it.
        created_ms: Wall clock when the snapshot was handed over, milliseconds since the epoch.
        cursor: Where the next batch lies.
        metrics: Logs of the epoch that ended at this step; empty inside an epoch.
        pinned: True for the last snapshot of a fit.
        leaves: One receipt per leaf, sorted by path.
        host_digest: Digest of the host state.
        digest: Digest of all leaf digests by path: the digest of the state.
    """

    step: int
    attempt: int
    created_ms: int
    cursor: Cursor
    metrics: Mapping[str, float]
    pinned: bool
    leaves: tuple[LeafReceipt, ...]
    host_digest: str
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values: metrics that are no finite number become "nan", "inf" or "-inf"."""
        record = asdict(self)
        record["metrics"] = {name: _encode(value) for name, value in self.metrics.items()}
        record["leaves"] = [{**asdict(leaf), "shape": list(leaf.shape)} for leaf in self.leaves]
        return {"format": FORMAT, **record}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Receipt:
        """Return the receipt that `to_json` described.

        Raises:
            CheckpointError: A newer xptrain wrote it.
            ValueError: It is no receipt.
        """
        if record.get("format") != FORMAT:
            raise CheckpointError(
                "this checkpoint has a format that this version does not know",
                expected=f"format {FORMAT}",
                found=f"format {record.get('format')!r}",
                remedy="install the xptrain version that wrote it, or a newer one",
            )
        try:
            fields = {name: value for name, value in record.items() if name != "format"}
            fields["cursor"] = Cursor(**record["cursor"])
            fields["metrics"] = {name: float(value) for name, value in record["metrics"].items()}
            fields["leaves"] = tuple(
                LeafReceipt(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in record["leaves"]
            )
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no receipt: {error!r}") from error


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read and verified.

    Args:
        receipt: Its receipt.
        leaves: Arrays by key; none shares memory with another or with anything else.
        host: The host state.
    """

    receipt: Receipt
    leaves: Mapping[str, Any]
    host: Mapping[str, Any]


def make_receipt(snapshot: Snapshot, attempt: int, created_ms: int) -> Receipt:
    """Return the receipt of a snapshot; computes all digests, so it waits for the arrays.

    Args:
        snapshot: What is to be saved.
        attempt: Number of this process execution of the run.
        created_ms: Wall clock, milliseconds since the epoch.

    Returns:
        The receipt, leaves sorted by path.

    Raises:
        CheckpointWriteError: A leaf or the host state cannot be stored.

    Example:
        >>> import numpy as np
        >>> snapshot = Snapshot(5, Cursor(0, 1, 0), {"w": np.zeros(2, "float32")}, {})
        >>> make_receipt(snapshot, 1, 0).leaves[0].dtype
        'float32'
    """
    leaves = tuple(_leaf_receipt(path, snapshot.leaves[path]) for path in sorted(snapshot.leaves))
    return Receipt(
        step=int(snapshot.step),
        attempt=int(attempt),
        created_ms=int(created_ms),
        cursor=snapshot.cursor,
        metrics={str(name): float(value) for name, value in snapshot.metrics.items()},
        pinned=bool(snapshot.pinned),
        leaves=leaves,
        host_digest=digest_json(plain(snapshot.host)),
        digest=digest_mapping({leaf.path: leaf.digest for leaf in leaves}),
    )


def plain(host: Mapping[str, Any]) -> Any:
    """Return the host state as JSON gives it back: a copy of our own, tuples as lists, keys in their order.

    Raises:
        CheckpointWriteError: It is not JSON, or a mapping has keys that are not text (JSON would turn
            them into text, and a resumed run would not find them).
    """
    try:
        _check_keys(host)
        # Keys stay in their order: a callback may go by it.
        text = json.dumps(host, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointWriteError(
            "the host state cannot be saved",
            expected="JSON values with text as keys; arrays belong among the leaves",
            found=str(error),
            remedy="let get_state() return JSON, bytes or a pytree of arrays",
        ) from error


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with a digest of itself under "check"."""
    return {**record, "check": digest_json(record)}


def unseal(text: str | bytes) -> dict[str, Any]:
    """Return the record of a sealed JSON text, without its check.

    Raises:
        ValueError: It is no JSON, or its check does not fit.
    """
    record = json.loads(text)
    if not isinstance(record, dict) or "check" not in record:
        raise ValueError("no sealed record")
    if record.pop("check") != digest_json(record):
        raise ValueError("the record does not fit its check")
    return record


def _check_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is a {type(key).__name__}")
            _check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_keys(inner)


def _leaf_receipt(path: str, leaf: Any) -> LeafReceipt:
    # ml_dtypes takes more than a second to import, and who reads a ledger does not need it.
    from xptrain.checkpoint.leaves import describe_sharding, to_host

    host, dtype, shape = to_host(path, leaf)
    return LeafReceipt(path, shape, dtype, describe_sharding(leaf), digest_array(host))


def _encode(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def position(cursor: Cursor) -> tuple[int, bool, int, int]:
    """Return what orders the checkpoints of one step: the end of a fit comes after everything in it."""
    return cursor.fit, cursor.done, cursor.epoch, cursor.batch
