"""Where a callback keeps what it knows: its attributes, and the variables that its functions close over."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_CSV_OWN = frozenset({"csv_file", "writer", "append_header"})
_FIT_PARAMS = frozenset({"verbose", "epochs", "steps"})


@dataclass(frozen=True)
class Slot:
    """One place that holds a value.

    Args:
        name: Name of the attribute, or `attribute{variable}` for a variable of a closure.
        owner: The callback, or the cell.
        is_setting: Whether the script gave the first value: constructor arguments and closures.
    """

    name: str
    owner: Any
    is_setting: bool

    @property
    def variable(self) -> str:
        """The bare name of what is held."""
        return self.name.rstrip("}").rpartition("{")[2]

    def get(self) -> Any:
        """Return the value."""
        return (
            self.owner.cell_contents
            if isinstance(self.owner, types.CellType)
            else vars(self.owner)[self.name]
        )

    def put(self, value: Any) -> None:
        """Put a value in, unless it is there already."""
        if isinstance(self.owner, types.CellType):
            self.owner.cell_contents = value
        elif self.name not in vars(self.owner) or vars(self.owner)[self.name] is not value:
            setattr(self.owner, self.name, value)


def slots_of(callback: Any) -> list[Slot]:
    """Return every slot of a callback, without those that Keras fills or that are bound to this process."""
    settings = parameters(type(callback))
    found: list[Slot] = []
    for name, value in vars(callback).items():
        if name == "_model" or (name == "params" and _is_of_the_fit(value)):
            continue
        if name in _CSV_OWN and is_csv_logger(callback):
            continue
        found.append(Slot(name, callback, name in settings))
        found += _cells(name, value, set())
    return found


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


def _is_of_the_fit(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.keys() <= _FIT_PARAMS)


def _cells(name: str, value: Any, seen: set[int]) -> Iterator[Slot]:
    if not isinstance(value, types.FunctionType) or id(value) in seen:
        return
    seen.add(id(value))
    for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        slot = Slot(f"{name}{{{variable}}}", cell, True)
        yield slot
        yield from _cells(slot.name, content, seen)
