"""The global random generators of Python and NumPy, and the seeding of all global ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from xptrain.state.values.codec import decode, encode


def capture_rng(arrays: MutableMapping[str, Any]) -> Any:
    """Return the states of the global Python and NumPy generators as JSON data.

    Args:
        arrays: Receives the arrays of the states, as in `codec.encode`.
    """
    return {
        "python": encode(random.getstate(), arrays, "random"),
        "numpy": encode(np.random.get_state(legacy=False), arrays, "numpy.random"),
    }


def restore_rng(data: Any, arrays: Mapping[str, Any]) -> None:
    """Put the global Python and NumPy generators back where `capture_rng` saw them."""
    random.setstate(decode(data["python"], arrays))
    np.random.set_state(decode(data["numpy"], arrays))


def global_states() -> tuple[Any, Any]:
    """Return the states of the global Python and NumPy generators, for `put_global_states`."""
    return random.getstate(), np.random.get_state(legacy=False)


def put_global_states(states: tuple[Any, Any]) -> None:
    """Put both generators where `global_states` saw them."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def are_equal(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    """Tell whether two of `global_states` are the same."""
    one, other = first[1]["state"], second[1]["state"]
    same_numpy = one["pos"] == other["pos"] and np.array_equal(one["key"], other["key"])
    return first[0] == second[0] and same_numpy


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and Keras from one integer.

    Uses `keras.utils.set_random_seed`, which starts no JAX backend.
    """
    import keras

    keras.utils.set_random_seed(seed)
