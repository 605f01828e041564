"""Objects that only the script can make: their contents are put back into those that are there.

Two kinds: what holds Keras variables (metrics, layers, models, optimizers, seed generators, variables), and
instances of dataclasses and namespaces.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from xptrain.state.capture import own_copy

SPACES = (types.SimpleNamespace, argparse.Namespace)


def kind_of(value: Any) -> str | None:
    """Return "variables", "dataclass" or None."""
    if variables_of(value) is not None:
        return "variables"
    is_plain = isinstance(value, SPACES) or dataclasses.is_dataclass(value)
    if is_plain and not isinstance(value, type) and hasattr(value, "__dict__"):
        return "dataclass"
    return None


def variables_of(value: Any) -> list[Any] | None:
    """Return the Keras variables that make up the state of an object, or None if it is no such object."""
    import keras

    if isinstance(value, keras.Variable):
        return [value]
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    if not isinstance(value, (keras.Layer, keras.metrics.Metric, keras.optimizers.Optimizer)):
        return None
    found = list(value.variables)
    optimizer = getattr(value, "optimizer", None) if isinstance(value, keras.Model) else None
    # A model counts its metrics' variables, not those of its optimizer.
    return found + (list(optimizer.variables) if optimizer is not None else [])


def seed_states_of(value: Any) -> list[Any]:
    """Return the seeds that an object of Keras draws with, a layer or a seed generator, as variables."""
    import keras

    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    if not isinstance(value, keras.Layer):
        return []
    return [variable for variable in value.non_trainable_variables if variable.name == "seed_generator_state"]


def has_value(variable: Any) -> bool:
    """Say whether a variable can be read now: a step that trains holds the values of its model."""
    try:
        value = variable.value
    except TypeError:  # from Keras, which has nothing to show then
        return False
    return not (hasattr(value, "is_deleted") and value.is_deleted())


def head_of(value: Any) -> Any:
    """Return what an object must have for contents to fit it: its class and its variables or fields."""
    found = variables_of(value)
    if found is None:
        return {"class": class_name(value)}
    return {"class": class_name(value), "variables": [_shape_and_type(v) for v in found]}


def contents(value: Any) -> list[tuple[str, Any]]:
    """Return the items of an object, each with its place."""
    found = variables_of(value)
    if found is None:
        return [(f".{name}", item) for name, item in vars(value).items()]
    return [(f".variables[{i}]", own_copy(v.value)) for i, v in enumerate(found)]


def fill(value: Any, names: list[str], items: list[Any]) -> None:
    """Give an object its contents.

    Args:
        value: The object.
        names: Names of a dataclass's attributes; empty for what holds variables.
        items: The contents, in the order of `contents`.
    """
    found = variables_of(value)
    if found is not None:
        for variable, array in zip(found, items, strict=True):
            _assign(variable, array)
        return
    for name in vars(value).keys() - set(names):
        object.__delattr__(value, name)
    for name, item in zip(names, items, strict=True):
        # A frozen dataclass refuses to be told by anybody else.
        object.__setattr__(value, name, item)


def empty_like(value: Any) -> Any:
    """Return a new, empty instance of the class of `value`, without running its code."""
    return object.__new__(type(value))


def class_name(value: Any) -> str:
    """Return the dotted name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _assign(variable: Any, array: Any) -> None:
    import jax.numpy as jnp

    now = variable.value
    # As in `restore`: what was free to move stays so.
    variable.assign(jnp.array(array, copy=True, device=now.sharding if now.committed else None))


def _shape_and_type(variable: Any) -> list[Any]:
    return [list(variable.shape), str(variable.dtype)]


def names_of(head: Mapping[str, Any], places: list[str]) -> list[str]:
    """Return the attribute names that the places of a dataclass's contents stand for."""
    return [] if "variables" in head else [place.removeprefix(".") for place in places]
