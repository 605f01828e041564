"""Nested Python values as JSON plus arrays, and back, without pickle.

JSON's own types stay as they are. Everything else becomes `{"!": <kind>, ...}`; arrays are set aside in a
mapping of their own, so that a checkpoint stores them like any other array. Decoding builds only the kinds
listed here: it imports nothing and calls nothing that the stored value names.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

_KIND = "!"


class Unencodable(TypeError):
    """A value that cannot be stored; the message names the place and the type."""


def encode(value: Any, arrays: MutableMapping[str, Any], where: str = "value") -> Any:
    """Return `value` as JSON-serialisable data; arrays go into `arrays` under keys `host/<n>`.

    Args:
        value: None, bool, int, float, str, bytes, complex, NumPy scalars, NumPy or JAX arrays, Keras
            comparison functions (`keras.ops.less` and `greater`), and lists, tuples, sets and dicts of these.
        arrays: Receives the arrays; NumPy ones are copied, since their owner may go on writing to them.
        where: Name of the place, for the error.

    Returns:
        Data that `json.dumps` accepts.

    Raises:
        Unencodable: If something in `value` is of another type.

    Example:
        >>> arrays = {}
        >>> encode((1, float("nan")), arrays)
        {'!': 'tuple', 'v': [1, {'!': 'float', 'v': 'nan'}]}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_KIND: "float", "v": repr(value)}
    if isinstance(value, bytes):
        return {_KIND: "bytes", "v": base64.b64encode(value).decode()}
    if type(value) is complex:
        return {_KIND: "complex", "v": [repr(value.real), repr(value.imag)]}
    if isinstance(value, np.generic):
        return {_KIND: "scalar", "v": _set_aside(np.asarray(value), arrays)}
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise Unencodable(f"{where}: an array of Python objects")
        return {_KIND: "array", "v": _set_aside(value.copy(), arrays)}
    if _is_jax_array(value):
        return {_KIND: "jax", "v": _set_aside(value, arrays)}
    if isinstance(value, Mapping):
        return _encode_mapping(value, arrays, where)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _encode_sequence(value, arrays, where)
    name = _comparison_name(value)
    if name:
        return {_KIND: "comparison", "v": name}
    raise Unencodable(f"{where}: {type(value).__module__}.{type(value).__qualname__}")


def decode(data: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value that `encode` was given.

    Args:
        data: What `encode` returned.
        arrays: The arrays it set aside, by the same keys.

    Raises:
        ValueError: If `data` names a kind that is not known here.
    """
    if isinstance(data, list):
        return [decode(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    if _KIND not in data:
        return {key: decode(item, arrays) for key, item in data.items()}
    kind, stored = data[_KIND], data["v"]
    if kind == "float":
        return float(stored)
    if kind == "bytes":
        return base64.b64decode(stored)
    if kind == "complex":
        return complex(float(stored[0]), float(stored[1]))
    if kind == "scalar":
        return np.asarray(arrays[stored])[()]
    if kind == "array":
        return np.array(arrays[stored])
    if kind == "jax":
        import jax.numpy as jnp

        return jnp.array(arrays[stored], copy=True)
    if kind == "dict":
        return {decode(key, arrays): decode(item, arrays) for key, item in stored}
    if kind == "comparison":
        import keras

        return {"less": keras.ops.less, "greater": keras.ops.greater}[stored]
    containers = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in containers:
        raise ValueError(f"unknown kind of stored value: {kind!r}")
    return containers[kind](decode(item, arrays) for item in stored)


def _set_aside(array: Any, arrays: MutableMapping[str, Any]) -> str:
    key = f"host/{len(arrays)}"
    arrays[key] = array
    return key


def _encode_mapping(value: Mapping[Any, Any], arrays: MutableMapping[str, Any], where: str) -> Any:
    if type(value).__name__ not in ("dict", "TrackedDict", "OrderedDict", "defaultdict"):
        raise Unencodable(f"{where}: {type(value).__module__}.{type(value).__qualname__}")
    if all(type(key) is str for key in value) and _KIND not in value:
        return {key: encode(item, arrays, f"{where}.{key}") for key, item in value.items()}
    pairs = [
        [encode(key, arrays, where), encode(item, arrays, f"{where}[{key!r}]")] for key, item in value.items()
    ]
    return {_KIND: "dict", "v": pairs}


def _encode_sequence(value: Any, arrays: MutableMapping[str, Any], where: str) -> Any:
    base = {"TrackedList": "list", "TrackedSet": "set"}.get(type(value).__name__, type(value).__name__)
    if base not in ("list", "tuple", "set", "frozenset"):
        raise Unencodable(f"{where}: {type(value).__module__}.{type(value).__qualname__}")
    items = sorted(value, key=repr) if base in ("set", "frozenset") else value
    encoded = [encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(items)]
    return encoded if base == "list" else {_KIND: base, "v": encoded}


def _is_jax_array(value: Any) -> bool:
    import jax

    return isinstance(value, jax.Array)


def _comparison_name(value: Any) -> str | None:
    # Keras's callbacks keep the direction of their monitor as one of these two functions.
    import keras

    return {keras.ops.less: "less", keras.ops.greater: "greater"}.get(value) if callable(value) else None
