"""Where a callback keeps what it knows: its attributes, and what its functions close over."""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xptrain.state.python.functions import cells_of, is_own, names_used, own_classes
from xptrain.state.values.anchors import OPAQUE
from xptrain.state.values.codec import SCALARS
from xptrain.state.values.containers import container_of
from xptrain.state.values.held import kind_of

_CSV_OWN = frozenset({"csv_file", "writer", "append_header"})
_FIT_PARAMS = frozenset({"verbose", "epochs", "steps"})
# What only code can reach is looked at in every save: larger values are data, which the script makes again.
_LIGHT_BYTES = 1 << 20
_LIGHT_ITEMS = 1_000
_LIGHT_DEPTH = 4
_ABSENT: Any = object()


@dataclass(frozen=True)
class Slot:
    """One place that holds a value.

    Args:
        name: Name of the attribute; `function{variable}` for a variable that a function closes over,
            `function.attribute`.
        owner: What holds it: a callback, a cell, or a function.
        is_setting: Whether the script gave the first value: constructor arguments and closures.
        is_near: Whether the callback holds it itself. What its code can reach otherwise is named only if it
            is seen to change and cannot be stored.
        key: Its name there, if it is not the same.
    """

    name: str
    owner: Any
    is_setting: bool
    is_near: bool = True
    key: str = ""

    @property
    def variable(self) -> str:
        """The bare name of what is held."""
        return self.key or self.name

    @property
    def place(self) -> tuple[int, str]:
        """What identifies it: the owner's identity and the name there."""
        return id(self.owner), "" if isinstance(self.owner, types.CellType) else self.variable

    def get(self) -> Any:
        """Return the value."""
        return value_of(self.owner, self.variable)

    def put(self, value: Any) -> None:
        """Put a value in, unless it is there already."""
        if isinstance(self.owner, types.CellType):
            self.owner.cell_contents = value
        elif value_of(self.owner, self.variable) is not value:
            setattr(self.owner, self.variable, value)


def slots_of(callback: Any) -> list[Slot]:
    """Return every slot of a callback, without those that Keras fills or that are bound to this process."""
    settings = parameters(type(callback))
    found: dict[tuple[int, str], Slot] = {}
    for name in attribute_names(callback):
        found[id(callback), name] = Slot(name, callback, name in settings)
    functions = list(_functions(callback))
    used = frozenset().union(*(names_used(function.__code__) for _, function, _ in functions))
    for path, function, is_near in functions:
        for slot in _used_by(path, function, is_near):
            if slot.is_near or (slot.variable in used and _is_light(slot.get())):
                found.setdefault(slot.place, slot)
    return list(found.values())


def slot_named(callback: Any, name: str) -> Slot | None:
    """Return the slot of that name, also if nothing was put in it yet; None where no code uses one."""
    if is_attribute(name):
        return Slot(name, callback, False)
    path, _, key = name.rpartition(".")
    for where, function, is_near in _functions(callback):
        for slot in _used_by(where, function, is_near):
            if slot.name == name:
                return slot
        if where == path:
            return Slot(name, function, True, False, key)
    return None


def is_attribute(name: str) -> bool:
    """Say whether a slot of that name is an attribute of the callback itself."""
    return "{" not in name and "." not in name


def parameters(cls: type) -> set[str]:
    """Return the names of all constructor arguments of a class."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            names.update(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return names - {"self", "args", "kwargs"}


def is_csv_logger(callback: Any) -> bool:
    """Say whether a callback appends rows to a file."""
    import keras

    return isinstance(callback, keras.callbacks.CSVLogger)


def is_stock(callback: Any) -> bool:
    """Say whether a callback is one of Keras's own."""
    return type(callback).__module__.startswith("keras.")


def slot_names(value: Any) -> list[str]:
    """Return the names in the `__slots__` of an object's classes that hold something."""
    names: list[str] = []
    for cls in type(value).__mro__:
        here = vars(cls).get("__slots__", ())
        names += [here] if isinstance(here, str) else [*here]
    return [name for name in names if not name.startswith("__") and hasattr(value, name)]


def attribute_names(callback: Any) -> list[str]:
    """Return the names of what a callback holds itself, without what Keras fills for each fit or process."""
    # A copy, since threads may go on.
    names = [name for name, value in dict(vars(callback)).items() if not _is_of_the_fit(name, value)]
    is_csv = is_csv_logger(callback)
    return [*(name for name in names if not (is_csv and name in _CSV_OWN)), *slot_names(callback)]


def value_of(owner: Any, name: str) -> Any:
    """Return what an object, a function or a cell holds under a name."""
    if isinstance(owner, types.CellType):
        return owner.cell_contents
    if name in vars(owner):
        return vars(owner)[name]
    is_slotted = not isinstance(owner, types.FunctionType)
    return getattr(owner, name, _ABSENT) if is_slotted else _ABSENT


def _is_of_the_fit(name: str, value: Any) -> bool:
    is_params = name == "params" and (
        value is None or (isinstance(value, dict) and value.keys() <= _FIT_PARAMS)
    )
    return name == "_model" or is_params


def _functions(callback: Any) -> Iterator[tuple[str, types.FunctionType, bool]]:
    """Return the functions among a callback's attributes and methods, and those that these use, by their
    paths, with whether the callback holds them itself."""
    waiting: deque[tuple[str, Any, bool]] = deque()
    waiting += [(name, value_of(callback, name), True) for name in attribute_names(callback)]
    waiting += [(n, value, False) for cls in own_classes(callback) for n, value in vars(cls).items()]
    seen: set[int] = set()
    while waiting:
        path, value, is_near = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            yield path, value, is_near
            for slot in _used_by(path, value, is_near):
                inner = value_of(slot.owner, slot.variable)
                near = is_near and isinstance(slot.owner, types.CellType)
                waiting.append((slot.name, inner, near))
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            waiting.append((path, value.__func__, is_near))
        elif isinstance(value, property):
            waiting += [(path, part, is_near) for part in (value.fget, value.fset)]
        elif isinstance(value, functools.partial):
            waiting += [(path, part, is_near) for part in (value.func, *value.args, *value.keywords.values())]
        elif isinstance(value, (list, tuple, dict)) and len(value) <= _LIGHT_ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{path}[{key!r}]", item, is_near) for key, item in items if callable(item)]


def _used_by(path: str, function: types.FunctionType, is_near: bool) -> Iterator[Slot]:
    for variable, cell in cells_of(function).items():
        yield Slot(f"{path}{{{variable}}}", cell, True, is_near, variable)
    if not is_own(function.__module__):
        return
    for name in vars(function).keys() - {"__wrapped__"}:
        yield Slot(f"{path}.{name}", function, True, False, name)


def _is_light(value: Any, depth: int = 0) -> bool:
    """Say whether a value is one that code counts and collects with, rather than data or an object."""
    if type(value) in SCALARS:
        return True
    if isinstance(value, np.ndarray):
        return value.nbytes <= _LIGHT_BYTES
    container, kind = container_of(value), kind_of(value)
    if (container and container.name in OPAQUE) or kind == "variables":
        return True
    if isinstance(value, (tuple, frozenset)) or container is not None or kind is not None:
        inside = vars(value) if kind is not None else value
        items = inside.values() if isinstance(inside, dict) else inside
        if len(items) > _LIGHT_ITEMS:
            return SCALARS.issuperset(map(type, items))
        return depth < _LIGHT_DEPTH and all(_is_light(item, depth + 1) for item in items)
    return False
