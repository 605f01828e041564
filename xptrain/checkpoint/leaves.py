"""Leaves of a snapshot as plain NumPy arrays that Orbax can store, and back, bit for bit.

Three kinds need a detour: typed JAX keys are stored as their key data, dtypes that Orbax has no name for as
their bytes (one more axis at the end), and zero-size arrays not at all: their receipt says everything.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes  # noqa: F401  registers bfloat16, int4, float8_* as NumPy dtype names
import numpy as np
from numpy.typing import NDArray

from xptrain.errors import CheckpointWriteError

Array = NDArray[Any]

_FLOAT8: Final = ("e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz")
_STORED_AS_THEY_ARE: Final = frozenset(
    [
        *("bool", "int4", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *(f"float8_{kind}" for kind in _FLOAT8),
    ]
)
_KEY: Final = "key<"


def key_kind(dtype: str) -> str:
    """Return the implementation that a receipt's key dtype names, for example `threefry2x32`."""
    return dtype.removeprefix(_KEY).removesuffix(">")


def is_key(dtype: str) -> bool:
    """Return whether a receipt's dtype is that of typed JAX keys, for example `key<threefry2x32>`."""
    return dtype.startswith(_KEY)


def to_host(path: str, leaf: Any) -> tuple[Array, str, tuple[int, ...]]:
    """Return a leaf's host array, the dtype name and the shape that its receipt states.

    Args:
        path: The leaf's key, for the error.
        leaf: A JAX or NumPy array, or a scalar.

    Returns:
        The array (key data for typed keys), the dtype name and the logical shape.

    Raises:
        CheckpointWriteError: The leaf is no array of numbers, or not wholly on this process's devices.
    """
    if not isinstance(path, str) or path.endswith("/"):
        raise CheckpointWriteError(
            "a leaf has a key that cannot be saved",
            expected='text that does not end in "/" (TensorStore drops it, and "a/" would overwrite "a")',
            found=repr(path),
        )
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype):
        import jax

        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            data = to_host(path, jax.random.key_data(leaf))[0]
            return data, f"{_KEY}{jax.random.key_impl(leaf)}>", tuple(leaf.shape)
    if not getattr(leaf, "is_fully_addressable", True):
        raise CheckpointWriteError(
            f"{path} lies on devices of several processes",
            expected="arrays that this process's devices hold completely",
            remedy="save from a run with one process, or replicate the array",
        )
    host = np.asarray(leaf)
    if not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    if host.dtype.hasobject or not _has_a_name(host.dtype):
        raise CheckpointWriteError(
            f"{path} cannot be saved as an array",
            expected="an array of numbers, booleans or typed JAX keys",
            found=f"{type(leaf).__name__} of dtype {host.dtype}",
            remedy="keep text and objects in the JSON part of the state",
        )
    return host, host.dtype.name, host.shape


def to_stored(host: Array) -> Array | None:
    """Return the array that Orbax is given, or None for a zero-size array."""
    if host.size == 0:
        return None
    if host.dtype.name in _STORED_AS_THEY_ARE:
        return host
    return np.ascontiguousarray(host).view(np.uint8).reshape(*host.shape, host.dtype.itemsize)


def from_stored(stored: Array | None, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return the host array that `to_stored` was given (key data for typed keys).

    Raises:
        ValueError: The stored array does not have the shape or the dtype that the receipt states.
    """
    if is_key(dtype):
        words = _words(dtype)
        if stored is None:
            return np.zeros((*shape, words), np.uint32)
        if stored.dtype != np.uint32 or stored.shape != (*shape, words):
            raise ValueError(f"key data is {stored.dtype}{list(stored.shape)}")
        return stored
    if stored is None:
        return np.zeros(shape, np.dtype(dtype))
    if dtype not in _STORED_AS_THEY_ARE:
        if stored.dtype != np.uint8 or stored.ndim != len(shape) + 1:
            raise ValueError(f"stored bytes are {stored.dtype}{list(stored.shape)}")
        stored = np.ascontiguousarray(stored).view(np.dtype(dtype)).reshape(stored.shape[:-1])
    if stored.dtype != np.dtype(dtype) or stored.shape != shape:
        raise ValueError(f"stored array is {stored.dtype}{list(stored.shape)}")
    return stored


def describe_sharding(leaf: Any) -> Any:
    """Return how a leaf lies on the devices, as JSON: "host", "single", or a mesh and a partition spec.

    Example:
        >>> import numpy as np
        >>> describe_sharding(np.zeros(3))
        'host'
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return "host"
    if hasattr(sharding, "spec") and hasattr(sharding, "mesh"):
        spec = [_axes(part) for part in sharding.spec]
        return {"mesh": {str(name): int(size) for name, size in sharding.mesh.shape.items()}, "spec": spec}
    if len(sharding.device_set) == 1:
        return "single"
    return {"type": type(sharding).__name__, "devices": len(sharding.device_set)}


def _words(dtype: str) -> int:
    import jax

    return int(jax.random.key_data(jax.random.key(0, impl=key_kind(dtype))).shape[-1])


def _axes(part: Any) -> Any:
    if isinstance(part, tuple):
        return [str(axis) for axis in part]
    return None if part is None else str(part)


def _has_a_name(dtype: np.dtype[Any]) -> bool:
    try:
        return np.dtype(dtype.name) == dtype
    except TypeError:
        return False
