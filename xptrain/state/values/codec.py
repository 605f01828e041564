"""Nested Python values as JSON plus arrays, and back, without pickle.

JSON's own types stay as they are. Everything else becomes `{"!": <kind>, ...}`; arrays are set aside in a
mapping of their own, so that a checkpoint stores them like any other array. Decoding builds only the kinds
listed here and in `containers`: it imports nothing and calls nothing that the stored value names.
"""

from __future__ import annotations

import base64
import datetime
import math
import pathlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np

from xptrain.state.capture import own_copy
from xptrain.state.snapshot import HOST
from xptrain.state.values.containers import CONTAINERS, container_of

KIND = "!"
SCALARS = frozenset({type(None), bool, int, float, str})
_DATES: dict[str, Callable[[str], Any]] = {
    kind.__name__: kind.fromisoformat for kind in (datetime.datetime, datetime.date, datetime.time)
}


class Unencodable(TypeError):
    """A value that cannot be stored; the message names the place and the type."""


class Encoder:
    """Encodes values; see `encode`.

    Args:
        arrays: Receives the arrays.
        around: Asked first about every value, with its place; returns its data, or None to leave it to the
            encoder.
    """

    def __init__(
        self, arrays: MutableMapping[str, Any], around: Callable[[Any, str], Any] | None = None
    ) -> None:
        self._arrays = arrays
        self._around = around

    def encode(self, value: Any, where: str) -> Any:
        """Return the data of a value and of everything in it."""
        ask = self._around is not None and type(value) not in SCALARS
        data = self._around(value, where) if ask and self._around else None
        return self.plain(value, where) if data is None else data

    def plain(self, value: Any, where: str) -> Any:
        """Return the data of a value without asking `around` about the value itself."""
        data = _encode_scalar(value)
        if data is not _NO:
            return data
        if isinstance(value, (np.generic, np.ndarray)):
            return self._encode_array(value, where)
        if _is_jax_array(value):
            return self._encode_jax(value)
        if type(value) in (tuple, frozenset):
            items = sorted(value, key=repr) if type(value) is frozenset else value
            return {KIND: type(value).__name__, "v": self.items(items, where)}
        container = container_of(value)
        if container is None:
            raise Unencodable(f"{where}: {type(value).__module__}.{type(value).__qualname__}")
        if container.name == "dict" and all(type(key) is str for key in value) and KIND not in value:
            return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
        encoded = [self.encode(item, where + place) for place, item in container.items(value)]
        if container.name == "list":
            return encoded
        return {KIND: container.name, "head": container.head(value), "v": encoded}

    def items(self, values: Any, where: str) -> list[Any]:
        """Return the data of each of `values`."""
        return [self.encode(value, f"{where}[{i}]") for i, value in enumerate(values)]

    def _encode_array(self, value: Any, where: str) -> Any:
        array = np.array(value)
        if array.dtype.hasobject or type(value) not in (np.ndarray, array.dtype.type):
            raise Unencodable(f"{where}: {type(value).__name__} of dtype {array.dtype}")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        if array.dtype.kind not in "USMm" and array.dtype.type is not np.void and array.dtype.isnative:
            return {KIND: kind, "v": self._set_aside(array)}
        # A checkpoint's arrays are numbers: of text, dates and records it gets the bytes.
        raw = np.frombuffer(array.tobytes(), np.uint8)
        described = np.lib.format.dtype_to_descr(array.dtype)
        return {KIND: kind, "v": self._set_aside(raw), "dtype": described, "shape": list(array.shape)}

    def _encode_jax(self, value: Any) -> Any:
        import jax

        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = jax.random.key_data(value)
            return {KIND: "key", "impl": str(jax.random.key_impl(value)), "v": self._set_aside(data)}
        # Whoever holds it may donate it to a step of his own.
        return {KIND: "jax", "v": self._set_aside(own_copy(value))}

    def _set_aside(self, array: Any) -> str:
        key = f"{HOST}{len(self._arrays)}"
        self._arrays[key] = array
        return key


class Decoder:
    """Decodes data; see `decode`.

    Args:
        arrays: The arrays that the encoder set aside.
        around: Asked first about every `{"!": ...}`; returns its value, or `NotImplemented` to leave it to
            the decoder.
    """

    def __init__(self, arrays: Mapping[str, Any], around: Callable[[Any], Any] | None = None) -> None:
        self._arrays = arrays
        self._around = around

    def decode(self, data: Any) -> Any:
        """Return the value of `data`."""
        if isinstance(data, list):
            return [self.decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        if KIND not in data:
            return {key: self.decode(item) for key, item in data.items()}
        value = self._around(data) if self._around else NotImplemented
        return self._special(data[KIND], data) if value is NotImplemented else value

    def _special(self, kind: str, data: Mapping[str, Any]) -> Any:
        stored = data["v"]
        if kind in _SCALARS:
            return _SCALARS[kind](stored)
        if kind in ("array", "scalar"):
            array = np.array(self._arrays[stored])
            if "dtype" in data:
                dtype = np.lib.format.descr_to_dtype(_descr(data["dtype"]))
                array = np.frombuffer(array.tobytes(), dtype).reshape(data["shape"]).copy()
            return array if kind == "array" else array[()]
        if kind == "jax":
            import jax.numpy as jnp

            return jnp.array(self._arrays[stored], copy=True)
        if kind == "key":
            import jax

            return jax.random.wrap_key_data(jax.numpy.array(self._arrays[stored]), impl=data["impl"])
        if kind in ("tuple", "frozenset"):
            return {"tuple": tuple, "frozenset": frozenset}[kind](self.decode(item) for item in stored)
        if kind not in CONTAINERS:
            raise ValueError(f"unknown kind of stored value: {kind!r}")
        value = CONTAINERS[kind].fresh(data["head"])
        CONTAINERS[kind].fill(value, [self.decode(item) for item in stored])
        return value


def is_flat(values: Any) -> bool:
    """Say whether values can stand in JSON as they are; a long history should not take long to save."""
    return SCALARS.issuperset(map(type, values)) and all(
        math.isfinite(value) for value in values if type(value) is float
    )


def encode(value: Any, arrays: MutableMapping[str, Any], where: str = "value") -> Any:
    """Return `value` as JSON-serialisable data; arrays go into `arrays` under keys `host/<n>`.

    Args:
        value: None, bool, int, float, str, bytes, complex, dates and times, paths, NumPy scalars, NumPy or
            JAX arrays (typed keys, text, dates and records included), Keras comparison functions
            (`keras.ops.less` and `greater`), and lists, tuples, sets, deques, dicts of the kinds in
            `collections`, and random generators of NumPy and Python.
        arrays: Receives the arrays; they are copied, since their owner may go on writing to them.
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
    return Encoder(arrays).encode(value, where)


def decode(data: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value that `encode` was given.

    Args:
        data: What `encode` returned.
        arrays: The arrays it set aside, by the same keys.

    Raises:
        ValueError: If `data` names a kind that is not known here.
    """
    return Decoder(arrays).decode(data)


_NO = object()


def _encode_scalar(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {KIND: "float", "v": repr(value)}
    if kind is bytes:
        return {KIND: "bytes", "v": base64.b64encode(value).decode()}
    if kind is complex:
        return {KIND: "complex", "v": [repr(value.real), repr(value.imag)]}
    if kind in (datetime.datetime, datetime.date, datetime.time) and _has_plain_zone(value):
        return {KIND: kind.__name__, "v": value.isoformat()}
    if kind is datetime.timedelta:
        return {KIND: "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if kind is type(pathlib.Path()):
        return {KIND: "path", "v": str(value)}
    name = _comparison_name(value)
    return {KIND: "comparison", "v": name} if name else _NO


def _has_plain_zone(value: Any) -> bool:
    # A named zone would come back as a fixed offset.
    return type(getattr(value, "tzinfo", None)) in (type(None), datetime.timezone)


def _descr(described: Any) -> Any:
    # JSON made lists of the tuples that NumPy wants in a record's description.
    if isinstance(described, list):
        return [tuple(_descr_field(part) for part in field) for field in described]
    return described


def _descr_field(part: Any) -> Any:
    if isinstance(part, list) and part and isinstance(part[0], list):
        return _descr(part)
    return tuple(part) if isinstance(part, list) else part


def _is_jax_array(value: Any) -> bool:
    import jax

    # What a compiled step left in an attribute is no array that anybody could use.
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def _comparison_name(value: Any) -> str | None:
    # Keras's callbacks keep the direction of their monitor as one of these two functions.
    import keras

    return "less" if value is keras.ops.less else "greater" if value is keras.ops.greater else None


def _comparison(name: str) -> Any:
    import keras

    return {"less": keras.ops.less, "greater": keras.ops.greater}[name]


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": base64.b64decode,
    "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "timedelta": lambda parts: datetime.timedelta(*parts),
    "path": pathlib.Path,
    "comparison": _comparison,
    **_DATES,
}
