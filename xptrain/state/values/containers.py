"""Mutable kinds of values: how each is taken apart, made anew, and filled in place.

A value consists of a head (JSON that says what to make) and items (values again). Filling an object that is
there already, rather than putting a new one in its place, keeps everybody who holds it in the picture.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# A set's order follows from the order of insertion only where hashes are the same in every process.
_STABLE_HASH = (bool, int, float)
_FACTORIES: Final[dict[str, Callable[[], Any]]] = {
    factory.__name__: factory for factory in (list, dict, set, tuple, int, float, str, bool, bytes, deque)
}
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


@dataclass(frozen=True)
class Container:
    """One mutable kind.

    Args:
        name: How stored data call it.
        head: Returns the head of a value.
        items: Returns its items, each with the name of its place within the value.
        fresh: Makes an empty value from a head.
        fill: Gives a value these items and no others.
    """

    name: str
    head: Callable[[Any], Any]
    items: Callable[[Any], list[tuple[str, Any]]]
    fresh: Callable[[Any], Any]
    fill: Callable[[Any, list[Any]], None]

    def fits(self, value: Any, head: Any) -> bool:
        """Say whether `value` can be filled with the items that belong to `head`."""
        return container_of(value) is self and self.head(value) == head


def container_of(value: Any) -> Container | None:
    """Return the kind of a value, or None if it is not one of those listed here."""
    kind = CONTAINERS.get(_NAMES.get(type(value).__name__, ""))
    if kind is None or type(value).__module__.partition(".")[0] not in _HOMES:
        return None
    if kind.name == "defaultdict" and not _is_known_factory(value.default_factory):
        return None
    if kind.name == "Generator" and type(value.bit_generator).__name__ not in _BIT_GENERATORS:
        return None
    return kind


def _places(values: Any) -> list[tuple[str, Any]]:
    return [(f"[{i}]", value) for i, value in enumerate(values)]


def _pairs(mapping: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [item for k, v in mapping.items() for item in ((f"[{k!r}].key", k), (f"[{k!r}]", v))]


def _elements(values: Any) -> list[tuple[str, Any]]:
    stable = all(type(value) in _STABLE_HASH for value in values)
    return _places(values if stable else sorted(values, key=repr))


def _fill_list(value: Any, items: list[Any]) -> None:
    value[:] = items


def _fill_mapping(value: Any, items: list[Any]) -> None:
    value.clear()
    for key, item in zip(items[::2], items[1::2], strict=True):
        # Not update(): a Counter would add.
        value[key] = item


def _fill_set(value: Any, items: list[Any]) -> None:
    value.clear()
    # One by one: the order of a set depends on how its table grew.
    for item in items:
        value.add(item)


def keeps_order(value: set[Any]) -> bool:
    """Say whether a set that is filled anew goes through its items in the order in which this one does.

    The order of texts is that of one process, so nothing that is to repeat itself depends on it.
    """
    again: set[Any] = set()
    _fill_set(again, list(value))
    return list(again) == list(value) or any(type(item) not in _STABLE_HASH for item in value)


def _fill_deque(value: Any, items: list[Any]) -> None:
    value.clear()
    value.extend(items)


def _is_known_factory(factory: Any) -> bool:
    return factory is None or factory in _FACTORIES.values()


def _none(value: Any) -> None:
    return None


def _bit_generator(name: str) -> Any:
    if name not in _BIT_GENERATORS:
        raise ValueError(f"unknown bit generator: {name!r}")
    return getattr(np.random, name)()


def _set_bit_state(value: Any, items: list[Any]) -> None:
    value.bit_generator.state = items[0]


CONTAINERS: Final[dict[str, Container]] = {
    kind.name: kind
    for kind in (
        Container("list", _none, _places, lambda head: [], _fill_list),
        Container("dict", _none, _pairs, lambda head: {}, _fill_mapping),
        Container("OrderedDict", _none, _pairs, lambda head: OrderedDict(), _fill_mapping),
        Container("Counter", _none, _pairs, lambda head: Counter(), _fill_mapping),
        Container(
            "defaultdict",
            lambda value: value.default_factory and value.default_factory.__name__,
            _pairs,
            lambda head: defaultdict(_FACTORIES[head] if head else None),
            _fill_mapping,
        ),
        Container("set", _none, _elements, lambda head: set(), _fill_set),
        Container("deque", lambda value: value.maxlen, _places, lambda head: deque(maxlen=head), _fill_deque),
        Container(
            "Generator",
            lambda value: type(value.bit_generator).__name__,
            lambda value: [(".state", value.bit_generator.state)],
            lambda head: np.random.Generator(_bit_generator(head)),
            _set_bit_state,
        ),
        Container(
            "RandomState",
            _none,
            lambda value: [(".state", value.get_state(legacy=False))],
            lambda head: np.random.RandomState(0),
            lambda value, items: value.set_state(items[0]),
        ),
        Container(
            "Random",
            _none,
            lambda value: [(".state", value.getstate())],
            lambda head: random.Random(0),
            lambda value, items: value.setstate(items[0]),
        ),
    )
}
# Keras wraps lists and dicts that are attributes of a layer.
_NAMES: Final = {name: name for name in CONTAINERS} | {
    "TrackedList": "list",
    "TrackedDict": "dict",
    "TrackedSet": "set",
}
_HOMES: Final = frozenset({"builtins", "collections", "keras", "numpy", "random"})
