"""Strict restore: every key, shape and dtype matches, or nothing is written (law L3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xptrain.errors import RestoreMismatchError
from xptrain.state.records import VariableRecord

_SHOWN = 12


def check_match(records: Sequence[VariableRecord], leaves: Mapping[str, Any]) -> None:
    """Raise unless `leaves` are exactly the variables in `records`.

    Args:
        records: The variables of the model as built now.
        leaves: Stored arrays (or anything with `shape` and `dtype`) by key, train state only.

    Raises:
        RestoreMismatchError: Lists each mismatch: key, expected, found.
    """
    problems = []
    known = {record.key: record for record in records}
    for key, record in known.items():
        if key not in leaves:
            problems.append(f"{key} ({record.path}): the model has it, the checkpoint does not")
            continue
        expected = _shape_and_type(record.variable.shape, record.variable.dtype)
        found = _shape_and_type(leaves[key].shape, leaves[key].dtype)
        if expected != found:
            problems.append(f"{key} ({record.path}): the model has {expected}, the checkpoint {found}")
    problems += [f"{key}: the checkpoint has it, the model does not" for key in leaves if key not in known]
    if problems:
        more = [f"… and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise RestoreMismatchError(
            "the checkpoint does not fit this model; nothing was written",
            expected=f"{len(known)} variables of the model, each with its key, shape and dtype",
            found="\n            ".join([*problems[:_SHOWN], *more]),
            remedy="build and compile the model (layers, optimizer, metrics) as the run did, "
            "or start a new run for the new model",
        )


def restore_variables(records: Sequence[VariableRecord], leaves: Mapping[str, Any]) -> None:
    """Write stored arrays into the model's variables, all or none.

    Args:
        records: The variables of the model as built now.
        leaves: Arrays by key; each is copied into a buffer of its own, in its variable's sharding.

    Raises:
        RestoreMismatchError: If a key, shape or dtype differs; then nothing was written.
    """
    import jax.numpy as jnp

    check_match(records, leaves)
    for record in records:
        now = record.variable.value
        # An array bound to its device where the run's was free to move makes JAX lower another program.
        place = now.sharding if now.committed else None
        # device_put would take over an aligned NumPy buffer, that somebody else may write to.
        record.variable.assign(jnp.array(leaves[record.key], copy=True, device=place))


def _shape_and_type(shape: Any, dtype: Any) -> str:
    name = getattr(dtype, "name", None) or str(dtype)
    return f"{name}[{', '.join(str(size) for size in shape)}]"
