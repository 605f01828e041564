"""The random numbers that loading draws: a function of (seed, fit, epoch, batch), and seen by nobody else.

While a batch is loaded, the global generators of Python and NumPy (and torch, where it is loaded) hold a
state of that batch's own; then they get back the state they had. What loading draws can therefore neither
depend on callbacks or the number of workers nor change what they draw (law L6).
"""

from __future__ import annotations

import functools
import random
import sys
import types
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np

from xptrain.state.python.functions import cells_of, own_classes
from xptrain.state.python.slots import slot_names
from xptrain.state.values.held import has_value, seed_states_of

Names = tuple[int | str, ...]
_DEPTH = 6
_OF_CLASS = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)


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
    """The generators that an object keeps: in its attributes, also inside lists, dicts and further objects.

    Args:
        owner: For example a dataset with `self.rng = np.random.default_rng()`, or with layers that augment.
    """

    def __init__(self, owner: Any) -> None:
        found = dict(_generators(owner, "", set(), 0))
        self._found = {name: one for name, one in found.items() if not isinstance(one, _States)}
        self._of_keras = {name: one.variables for name, one in found.items() if isinstance(one, _States)}
        self._ids = {id(generator) for generator in self._found.values()}

    def has(self, value: Any) -> bool:
        """Say whether an object is one of the generators."""
        return id(value) in self._ids

    def seed(self, names: Names) -> None:
        """Put each into the state of `names` and its own name, but for those of Keras."""
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

    def seed_keras(self, names: Names) -> None:
        """Put the seeds of Keras's layers into the state of `names`, and leave them there."""
        for name, variables in self._of_keras.items():
            for number, variable in enumerate(variables):
                if has_value(variable):
                    variable.assign(np.array(words((*names, name, number))[:2], "uint32"))

    @contextmanager
    def drawing(self, names: Names) -> Iterator[None]:
        """Give the global generators, for a while, and these the state of `names`."""
        with self.drawing_keras(names):
            self.seed(names)
            yield

    @contextmanager
    def drawing_keras(self, names: Names) -> Iterator[None]:
        """Give the global generators and those of Keras the state of `names` for a while.

        A layer may be one of the model that trains, whose numbers must not depend on loading.
        """
        held = [v for found in self._of_keras.values() for v in found]
        before = {id(v): (v, v.value) for v in held if has_value(v)}
        with drawing(names):
            self.seed_keras(names)
            try:
                yield
            finally:
                for variable, value in before.values():
                    variable.assign(value)

    def now(self) -> list[str]:
        """Return their states, to compare."""
        held = [v for found in self._of_keras.values() for v in found if has_value(v)]
        return [*map(_state, self._found.values()), *(repr(np.asarray(v.value)) for v in held)]


@dataclass(frozen=True)
class _States:
    variables: list[Any]


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
    if id(value) in seen or depth > _DEPTH or type(value) in weakref.ProxyTypes:
        return
    seen.add(id(value))
    if isinstance(value, np.random.Generator | np.random.RandomState) or _is_of_torch(value):
        yield name, value
    elif isinstance(value, random.Random):
        if not isinstance(value, random.SystemRandom):
            yield name, value
    else:
        if states := seed_states_of(value):
            yield f"{name}!", _States(states)
        for inner_name, inner in _inside(value):
            yield from _generators(inner, name + inner_name, seen, depth + 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items())[:1000])
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(value[:1000]))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, types.FunctionType):
        yield from ((f"{{{name}}}", cell.cell_contents) for name, cell in cells_of(value).items())
        yield from ((".__defaults__", value.__defaults__), (".__kwdefaults__", value.__kwdefaults__))
    elif isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
        yield from ((f".{name}", inner) for name, inner in list(attributes.items()))
        yield from ((f".{name}", getattr(value, name)) for name in slot_names(value))
        for cls in own_classes(value):
            yield from ((f".{n}", v) for n, v in list(vars(cls).items()) if not isinstance(v, _OF_CLASS))
    elif not isinstance(value, type) and (slots := slot_names(value)):
        yield from ((f".{name}", getattr(value, name)) for name in slots)
