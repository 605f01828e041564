"""Checkpoints through Orbax: written where nobody looks, published by a rename, verified when read.

A step's folder holds three Orbax items: `state` (a flat dict of arrays by readable key), `host` and `receipt`
(JSON). Plain Orbax reads them:

    ocp.StandardCheckpointer().restore(f"{directory}/000000001200/state")

    names = ocp.path.step.standard_name_format(step_format_fixed_length=12)
    manager = ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(step_name_format=names))
    manager.restore(1200, args=ocp.args.Composite(state=ocp.args.StandardRestore()))

This is the only module that imports Orbax; its exceptions leave here as CheckpointErrors.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from xptrain.checkpoint.files import hash_tree, sync_tree
from xptrain.checkpoint.folder import HOST_FILE, RECEIPT_FILE, Folder
from xptrain.checkpoint.leaves import Array, is_key, key_kind, to_host, to_stored
from xptrain.checkpoint.ledger import Files
from xptrain.checkpoint.problems import write_error
from xptrain.checkpoint.receipts import LeafReceipt, Loaded, Receipt, plain, position, seal
from xptrain.checkpoint.recovery import Recovery
from xptrain.checkpoint.verify import verified
from xptrain.errors import CheckpointError, CheckpointWriteError, RestoreMismatchError
from xptrain.state.snapshot import Snapshot

T = TypeVar("T")


@dataclass(frozen=True)
class Staged:
    """A checkpoint that is durable on disk but not visible yet."""

    path: Path
    receipt: Receipt
    files: Files


class Store:
    """The checkpoints of one run.

    Args:
        directory: The run's checkpoint folder; it need not exist before the first save.

    Attributes:
        folder: The same folder for listing, without arrays.
        notices: What the user should know, in sentences, oldest first.

    Example:
        >>> Store("nowhere").newest_good() is None
        True
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.folder = Folder(directory)
        self.notices: list[str] = []

    def write(self, snapshot: Snapshot, receipt: Receipt) -> Staged:
        """Write a snapshot durably into a hidden folder.

        Args:
            snapshot: What to save; its arrays must not change or be donated meanwhile.
            receipt: What `make_receipt` says of it.

        Returns:
            What `commit` publishes.

        Raises:
            CheckpointWriteError: It could not be written, or would go back behind what is there.
        """
        self._check_goes_forward(receipt)
        try:
            staged = self.folder.stage(receipt.step)
        except OSError as error:
            raise write_error(receipt.step, self.folder.path, error) from error
        try:
            _save(staged, snapshot, receipt)
            sync_tree(staged)
            files = hash_tree(staged)
            if not self.folder.is_still_there(staged) or not {RECEIPT_FILE, HOST_FILE} <= set(files):
                raise FileNotFoundError(errno.ENOENT, "files vanished while they were written", str(staged))
            return Staged(staged, receipt, files)
        except BaseException as error:
            shutil.rmtree(staged.parent, ignore_errors=True)
            if isinstance(error, Exception) and not isinstance(error, CheckpointError):
                raise write_error(receipt.step, self.folder.path, error) from error
            raise

    def commit(self, staged: Staged) -> None:
        """Make a written checkpoint visible, atomically and durably.

        Raises:
            CheckpointWriteError: The folder is gone or cannot be written.
        """
        try:
            self.folder.publish(staged.path, staged.receipt.step)
        except OSError as error:
            raise write_error(staged.receipt.step, self.folder.path, error) from error

    def record(self, staged: Staged) -> None:
        """Add a committed checkpoint to the ledger, durably.

        Raises:
            CheckpointWriteError: The ledger cannot be written.
        """
        try:
            self.folder.ledger.append(staged.receipt, staged.files)
        except OSError as error:
            raise write_error(staged.receipt.step, self.folder.path, error) from error

    def delete(self, step: int) -> None:
        """Delete a checkpoint; its receipt stays in the ledger.

        Raises:
            CheckpointWriteError: The folder cannot be written.
        """
        try:
            self.folder.ledger.gone(step, "deleted")
            self.folder.discard(step)
        except OSError as error:
            raise write_error(step, self.folder.path, error) from error

    def load(self, step: int, shardings: Mapping[str, Any] | None = None) -> Loaded:
        """Read and verify a checkpoint; changes nothing on disk.

        Args:
            step: Which one.
            shardings: By leaf key, the `jax.sharding.Sharding` or device to place it on. Leaves that are not
                named come back as NumPy arrays (typed JAX keys always as JAX arrays).

        Returns:
            Receipt, leaves and host state; no leaf shares memory with another.

        Raises:
            CheckpointNotFoundError: There is no checkpoint of that step.
            CheckpointDamagedError: Bytes differ from what was written.
            RestoreMismatchError: JAX here cannot hold a leaf's dtype (64 bits without x64).
            CheckpointError: It cannot be read for another reason.
        """
        receipt, arrays, host = verified(self.folder, step, _restore)
        targets = shardings or {}
        if unknown := sorted(set(targets) - set(arrays)):
            raise RestoreMismatchError(
                f"the checkpoint of step {step} does not have every leaf that was asked for",
                expected=", ".join(unknown[:10]),
                found=f"{len(arrays)} leaves without them",
            )
        leaves = {leaf.path: _placed(arrays.pop(leaf.path), leaf, targets) for leaf in receipt.leaves}
        return Loaded(receipt, leaves, host)

    def newest_good(self, shardings: Mapping[str, Any] | None = None) -> Loaded | None:
        """Load the newest checkpoint that is whole; move damaged ones aside and say so.

        Cleans up after killed processes and brings the ledger up to date, so call it only while holding the
        run's lock and with no save in flight.

        Args:
            shardings: As for `load`.

        Returns:
            The checkpoint, or None when the run has none yet.

        Raises:
            CheckpointDamagedError: There were checkpoints, and none is whole.
            CheckpointWriteError: The folder could not be put in order.
        """
        return self._recover(lambda recovery: recovery.newest_good(lambda step: self.load(step, shardings)))

    def repair(self) -> list[int]:
        """Check every checkpoint that the ledger does not know, add the good ones, move the others aside.

        Returns:
            The steps that were added.
        """
        before = self.folder.ledger.entries()
        self._recover(Recovery.repair)
        return [step for step in self.folder.ledger.entries() if step not in before]

    def _recover(self, work: Callable[[Recovery], T]) -> T:
        recovery = Recovery(self.folder, lambda step: verified(self.folder, step, _restore)[0], self.notices)
        try:
            return work(recovery)
        except OSError as error:
            raise CheckpointWriteError(
                "the checkpoint folder could not be put in order",
                expected=f"a folder that can be written: {self.folder.path}",
                found=str(error),
                remedy="make the folder writable, then resume the run",
            ) from error

    def _check_goes_forward(self, receipt: Receipt) -> None:
        newest = max(self.folder.steps(), default=-1)
        if receipt.step > newest:
            return
        there = self.folder.receipt_in(newest)
        if receipt.step == newest and position(receipt.cursor) >= position(there.cursor):
            return
        raise CheckpointWriteError(
            f"the checkpoint of step {receipt.step} would go back behind the one of step {newest}",
            expected=f"a step after {newest}, or a later position at it",
            found=f"{receipt.cursor} at step {receipt.step}, and {there.cursor} by attempt {there.attempt}",
            remedy="resume from the newest checkpoint, or start a new run",
        )


def _save(path: Path, snapshot: Snapshot, receipt: Receipt) -> None:
    hosts = {key: to_stored(to_host(key, leaf)[0]) for key, leaf in snapshot.leaves.items()}
    state = {key: array for key, array in hosts.items() if array is not None}
    items: dict[str, Any] = {
        "host": ocp.args.JsonSave(plain(snapshot.host)),
        "receipt": ocp.args.JsonSave(seal(receipt.to_json())),
    }
    if state:  # Orbax refuses an empty tree
        items["state"] = ocp.args.PyTreeSave(state)
    handler = ocp.CompositeCheckpointHandler(
        state=ocp.PyTreeCheckpointHandler(use_compression=False),
        host=ocp.JsonCheckpointHandler(),
        receipt=ocp.JsonCheckpointHandler(),
    )
    with _one_report(), ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, args=ocp.args.Composite(**items))


@contextmanager
def _one_report() -> Iterator[None]:
    # Orbax prints the traceback of a failed write once per thread, and then raises it all the same.
    def is_news(record: logging.LogRecord) -> bool:
        return "_SignalingThread" not in str(record.msg)

    logger = logging.getLogger("absl")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def _restore(path: Path, keys: list[str]) -> dict[str, Array]:
    wanted = ocp.args.PyTreeRestore(
        item=dict.fromkeys(keys, 0),
        restore_args={key: ocp.RestoreArgs(restore_type=np.ndarray) for key in keys},
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restored: dict[str, Array] = checkpointer.restore(path, args=wanted)
    return restored


def _placed(array: Array, leaf: LeafReceipt, targets: Mapping[str, Any]) -> Any:
    if is_key(leaf.dtype):
        keys = jax.random.wrap_key_data(jnp.array(array, copy=True), impl=key_kind(leaf.dtype))
        return jax.device_put(keys, targets.get(leaf.path))
    if leaf.path not in targets:
        return array
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise RestoreMismatchError(
            f"{leaf.path} cannot be placed on a device without changing it",
            expected=leaf.dtype,
            found=f"{jax.dtypes.canonicalize_dtype(array.dtype)}, since JAX runs without 64-bit types",
            remedy="set JAX_ENABLE_X64=1 as in the run that saved it",
        )
    # On a CPU device_put lets all replicas share the NumPy buffer, whatever its may_alias says.
    return jnp.array(array, copy=True, device=targets[leaf.path])
