"""The random numbers that loading draws: a function of (seed, fit, epoch, batch), and seen by nobody else.

While a batch is loaded, the global generators of Python and NumPy (and torch, where it is loaded) hold a
state of that batch's own; then they get back the state they had. What loading draws can therefore neither
depend on callbacks or the number of workers nor change what they draw (law L6).
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import blake3
import numpy as np

Names = tuple[int | str, ...]


def words(names: Names) -> list[int]:
    """Return four words of 32 bits that depend on `names` only.

    Example:
        >>> words(("x", 1)) == words(("x", 1)) != words(("x", 2))
        True
    """
    digest = blake3.blake3(repr(names).encode()).digest(16)
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]


def seed_globals(names: Names) -> None:
    """Put the global generators into the state of `names` and leave them there (for loader processes)."""
    chosen = words(names)
    random.seed(chosen[0] << 32 | chosen[1])
    np.random.seed(chosen)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(chosen[2] << 16 | chosen[3] & 0xFFFF)


@contextmanager
def drawing(names: Names) -> Iterator[None]:
    """Give the global generators the state of `names` for a while."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    other = torch.get_rng_state() if torch is not None and hasattr(torch, "get_rng_state") else None
    seed_globals(names)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None and other is not None:
            torch.set_rng_state(other)


def globals_now() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's global generators, to compare."""
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["key"].tobytes(), numpy["pos"]


class Held:
    """The generators that an object keeps in its attributes, also inside lists, dicts and further objects.

    Args:
        owner: For example a dataset with `self.rng = np.random.default_rng()`.
    """

    def __init__(self, owner: Any) -> None:
        self._found = dict(_generators(owner, "", set(), 0))

    def seed(self, names: Names) -> None:
        """Put each into the state of `names` and its own name."""
        for name, generator in self._found.items():
            chosen = words((*names, name))
            if isinstance(generator, np.random.Generator):
                kind: Any = type(generator.bit_generator)
                generator.bit_generator.state = kind(chosen).state
            elif isinstance(generator, np.random.RandomState):
                generator.seed(chosen)
            elif not isinstance(generator, random.Random):
                generator.manual_seed(chosen[0] << 31 | chosen[1] >> 1)
            else:
                generator.seed(chosen[0] << 32 | chosen[1])

    def now(self) -> list[str]:
        """Return their states, to compare."""
        return [_state(generator) for generator in self._found.values()]


def _state(generator: Any) -> str:
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=True))
    if not isinstance(generator, random.Random):
        return repr(generator.get_state().numpy().tobytes())
    return repr(generator.getstate())


def _is_of_torch(value: Any) -> bool:
    kind = getattr(sys.modules.get("torch"), "Generator", None)
    return kind is not None and isinstance(value, kind)


def _generators(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    # What a weak reference stands for may be gone.
    if id(value) in seen or depth > 4 or type(value) in weakref.ProxyTypes:
        return
    seen.add(id(value))
    if isinstance(value, np.random.Generator | np.random.RandomState):
        yield name, value
    elif isinstance(value, random.Random):
        if not isinstance(value, random.SystemRandom):
            yield name, value
    elif _is_of_torch(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in list(value.items())[:1000]:
            yield from _generators(inner, f"{name}[{key!r}]", seen, depth + 1)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value[:1000]):
            yield from _generators(inner, f"{name}[{i}]", seen, depth + 1)
    elif isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        for key, inner in list(attributes.items()):
            yield from _generators(inner, f"{name}.{key}", seen, depth + 1)
