"""Walks nested training data down to its leaves; imports none of the libraries whose objects it meets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Leaf:
    """One leaf of the data.

    Args:
        kind: `array`, `value` (number, text, None, empty container) or `opaque`.
        value: The array; None otherwise.
        shape: Its shape.
        dtype: Name of its dtype; with the byte order if that is not the machine's own.
        nbytes: Its bytes.
        text: What stands for a leaf that is no array.
    """

    kind: str
    value: Any = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    text: str = ""

    def describe(self) -> dict[str, Any]:
        """Return what the manifest says of this leaf, apart from its digest."""
        about = {"text": self.text} if self.kind == "opaque" else {}
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.nbytes,
            **about,
        }


def walk(name: str, data: Any) -> Iterator[tuple[str, Leaf]]:
    """Yield (name, leaf) for each leaf of nested data.

    Args:
        name: Name of the structure; the leaves' names begin with it.
        data: Any structure, see `data.fingerprint`.

    Yields:
        Names such as `x`, `x/image`, `x[0]/mask` with their leaves.
    """
    if data is None or isinstance(data, bool | int | float | complex | str | bytes):
        yield name, Leaf("value", text=f"{type(data).__name__}:{data!r}")
    elif isinstance(data, Mapping):
        yield from _container(name, "{}", [(f"/{_key(k)}", v) for k, v in data.items()])
    elif isinstance(data, list | tuple):
        yield from _container(name, "[]", [(f"[{i}]", v) for i, v in enumerate(data)])
    elif hasattr(data, "iloc") and hasattr(data, "columns"):
        # By position as well as by name: a model sees the order of the columns, and names may repeat.
        columns = [(f"[{i}]/{_key(c)}", data.iloc[:, i]) for i, c in enumerate(data.columns)]
        yield from _container(name, "frame", columns)
    elif hasattr(data, "iloc"):
        yield from _series(name, data)
    elif hasattr(data, "tocoo") and hasattr(data, "nnz"):
        yield from _sparse(name, data)
    elif hasattr(data, "shape") and hasattr(data, "dtype") and hasattr(data, "__array__"):
        yield name, _array(data)
    else:
        yield name, Leaf("opaque", text=f"{type(data).__module__}.{type(data).__qualname__}")


def _container(name: str, empty: str, items: list[tuple[str, Any]]) -> Iterator[tuple[str, Leaf]]:
    if not items:
        yield name, Leaf("value", text=f"empty {empty}")
    for part, value in items:
        yield from walk(name + part, value)


def _series(name: str, series: Any) -> Iterator[tuple[str, Leaf]]:
    if hasattr(series, "cat"):
        yield from walk(f"{name}/codes", np.asarray(series.cat.codes))
        yield from walk(f"{name}/categories", np.asarray(series.cat.categories))
    else:
        yield name, _array(np.asarray(series))


def _sparse(name: str, matrix: Any) -> Iterator[tuple[str, Leaf]]:
    form = str(getattr(matrix, "format", ""))
    parts = ("data", "indices", "indptr") if form in ("csr", "csc") else ("data", "row", "col")
    source = matrix if form in ("csr", "csc") else matrix.tocoo()
    yield f"{name}/{form}", Leaf("value", text=f"sparse {form} {tuple(matrix.shape)}")
    for part in parts:
        yield f"{name}/{form}/{part}", _array(np.asarray(getattr(source, part)))


def _array(array: Any) -> Leaf:
    shape = tuple(int(size) for size in array.shape)
    if not getattr(array, "is_fully_addressable", True):
        return Leaf("opaque", text=f"array of several processes {array.dtype} {shape}")
    try:
        dtype = np.dtype(array.dtype)
    except TypeError:
        # Types of other libraries (torch, JAX keys): their NumPy view has bytes.
        array = np.asarray(array)
        dtype = array.dtype
    if dtype.hasobject:
        return _objects(np.asarray(array), shape)
    name = dtype.name if dtype.isnative else dtype.str
    return Leaf("array", array, shape, name, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))


def _objects(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Leaf:
    """Fingerprint an object array of plain values by their text; anything else in it is not covered."""
    hasher = hashlib.blake2b(digest_size=32)
    for item in array.reshape(-1).tolist():
        plain = item is None or isinstance(item, bool | int | float | complex | str | bytes | np.generic)
        if not plain and type(item).__module__.partition(".")[0] not in ("pandas", "datetime", "decimal"):
            return Leaf(
                "opaque", shape=shape, dtype="object", text=f"objects of type {type(item).__qualname__}"
            )
        # The length first: ["ab", "c"] and ["a", "bc"] are not the same.
        text = f"{type(item).__name__}:{item!r}".encode("utf-8", "surrogatepass")
        hasher.update(f"{len(text)}:".encode() + text)
    return Leaf("value", shape=shape, dtype="object", text=hasher.hexdigest())


def _key(key: Any) -> str:
    return key.replace("~", "~0").replace("/", "~1") if isinstance(key, str) else f"({key!r})"
