"""Reading a checkpoint and holding every byte of it against its receipt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xptrain.checkpoint.files import differences
from xptrain.checkpoint.folder import HOST_FILE, Folder
from xptrain.checkpoint.leaves import Array, from_stored
from xptrain.checkpoint.problems import damaged
from xptrain.checkpoint.receipts import Receipt
from xptrain.errors import CheckpointError, CheckpointNotFoundError
from xptrain.state.digest import digest_array, digest_json

Restore = Callable[[Path, list[str]], dict[str, Array]]


def verified(folder: Folder, step: int, restore: Restore) -> tuple[Receipt, dict[str, Array], Any]:
    """Read a checkpoint; what is returned has the digests that its receipt states.

    Args:
        folder: The run's checkpoint folder.
        step: Which checkpoint.
        restore: Reads the named arrays from a folder.

    Returns:
        The receipt, a host array per leaf (key data for typed keys), and the host state.

    Raises:
        CheckpointNotFoundError: There is none of that step.
        CheckpointDamagedError: Bytes differ from what was written.
        CheckpointError: It cannot be read though it seems whole.
    """
    path = folder.folder_of(step)
    if not path.is_dir():
        raise CheckpointNotFoundError(
            f"there is no checkpoint of step {step}",
            expected=f"one of the steps {folder.steps()}",
            found=f"no folder {path}",
        )
    entry = folder.ledger.entries().get(step)
    try:
        if entry and (wrong := differences(path, entry.files)):
            raise damaged(step, wrong)
        receipt = folder.receipt_in(step)
        if entry and entry.receipt.to_json() != receipt.to_json():  # NaN equals NaN as JSON text
            raise damaged(step, ["its receipt is not the one in the ledger"])
        host = _host(path, receipt)
        return receipt, _arrays(path, receipt, restore, is_intact=entry is not None), host
    except PermissionError as error:
        raise CheckpointError(f"the checkpoint of step {step} may not be read", found=str(error)) from error
    except OSError as error:
        raise damaged(step, [str(error)]) from error


def _host(path: Path, receipt: Receipt) -> Any:
    try:
        host = json.loads((path / HOST_FILE).read_bytes())
    except ValueError as error:
        raise damaged(receipt.step, [f"its host state cannot be read: {error}"]) from error
    if digest_json(host) != receipt.host_digest:
        raise damaged(receipt.step, ["its host state is not what was written"])
    return host


def _arrays(path: Path, receipt: Receipt, restore: Restore, *, is_intact: bool) -> dict[str, Array]:
    stored = [leaf.path for leaf in receipt.leaves if leaf.is_stored]
    try:
        state = restore(path / "state", stored) if stored else {}
    except MemoryError:
        raise
    except Exception as error:
        if not is_intact:
            raise damaged(receipt.step, [f"Orbax cannot read it: {error}"]) from error
        raise CheckpointError(
            f"Orbax cannot read the checkpoint of step {receipt.step}, though its files are what was written",
            found=f"{type(error).__name__}: {error}",
            remedy="use the orbax-checkpoint version that wrote it (see the run's manifest)",
        ) from error
    arrays, wrong = {}, []
    for leaf in receipt.leaves:
        try:
            arrays[leaf.path] = from_stored(state.pop(leaf.path, None), leaf.dtype, leaf.shape)
        except ValueError as error:
            wrong.append(f"{leaf.path}: {error} instead of {leaf.dtype}{list(leaf.shape)}")
            continue
        if digest_array(arrays[leaf.path]) != leaf.digest:
            wrong.append(f"{leaf.path} does not have the values that were saved")
    if wrong:
        raise damaged(receipt.step, wrong)
    return arrays
