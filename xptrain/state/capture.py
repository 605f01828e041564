"""Copies of the train state that no later step can touch (law L4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xptrain.state.records import VariableRecord


def own_copy(array: Any) -> Any:
    """Return a copy of a JAX array in buffers of its own, in the same sharding, without waiting for it."""
    return array.copy()


def capture_variables(records: Iterable[VariableRecord]) -> dict[str, Any]:
    """Return owned copies of all variables by key.

    Args:
        records: The variables, with their values attached.

    Returns:
        JAX arrays by key, in buffers that no train step will donate.
    """
    return {record.key: own_copy(record.variable.value) for record in records}


def without_aliases(arrays: list[Any], seen: set[int] | None = None) -> list[Any]:
    """Return `arrays` with a copy in place of each one that shares its buffer with an earlier one.

    A buffer can be donated once only, and two variables may hold one array: after an EMA optimizer
    finished a fit, weights and averages do.

    Args:
        arrays: JAX arrays.
        seen: Identities met so far; share one set between several lists.
    """
    seen = set() if seen is None else seen
    result = []
    for array in arrays:
        identity = _identity(array)
        if identity in seen:
            array = own_copy(array)
            identity = _identity(array)
        seen.add(identity)
        result.append(array)
    return result


def _identity(array: Any) -> int:
    # Distinct array objects can share one device buffer; sharded arrays have no single pointer.
    try:
        return int(array.unsafe_buffer_pointer())
    except (ValueError, AttributeError, RuntimeError):
        return id(array)


def swap_averages(leaves: Mapping[str, Any], pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return `leaves` with each weight and its moving average exchanged.

    Args:
        leaves: Arrays by key.
        pairs: Key of a weight → key of its average.
    """
    swapped = dict(leaves)
    for weight, average in pairs.items():
        swapped[weight], swapped[average] = leaves[average], leaves[weight]
    return swapped
