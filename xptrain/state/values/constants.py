"""What training cannot change: values that need not be in a checkpoint, since the script makes them again."""

from __future__ import annotations

import enum
import functools
import logging
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from xptrain.state.values.held import variables_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, re.Pattern)
_METHODS = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)


def is_constant(value: Any, is_known: Callable[[Any], bool], *, with_closure: bool = True) -> bool:
    """Say whether nothing that training does can change a value.

    Plain immutable values, modules, classes, loggers, parts of Keras that training does not change, and
    functions that close over nothing but these.

    Args:
        value: Any value.
        is_known: Says of an object whether its state is captured elsewhere.
        with_closure: False to leave aside what a function closes over.
    """

    def are_constant(values: Any) -> bool:
        return all(is_constant(item, is_known) for item in values)

    if isinstance(value, (*_PLAIN, type, types.ModuleType, logging.Logger)) or type(value) is object:
        return True
    if is_known(value):
        return True
    if isinstance(value, (tuple, frozenset)):
        return are_constant(value)
    if isinstance(value, types.FunctionType):
        if not are_constant([*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]):
            return False
        return not with_closure or all(_is_fixed_cell(cell, is_known) for cell in value.__closure__ or ())
    if isinstance(value, _METHODS):
        return are_constant([value.__self__, getattr(value, "__func__", None)])
    if isinstance(value, functools.partial):
        return are_constant([value.func, *value.args, *value.keywords.values()])
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):
        return True
    home = type(value).__module__.partition(".")[0]
    if home in ("jax", "jaxlib") and hasattr(value, "__wrapped__"):
        return is_constant(value.__wrapped__, is_known)
    if home == "numpy":
        return isinstance(value, (np.ufunc, np.dtype, np.generic))
    return home == "xptrain" or (home == "keras" and not _moves(value))


def _moves(value: Any) -> bool:
    """Say whether training changes a part of Keras: what has variables, and callbacks, which count."""
    import keras

    return variables_of(value) is not None or isinstance(value, keras.callbacks.Callback)


def _is_fixed_cell(cell: types.CellType, is_known: Callable[[Any], bool]) -> bool:
    try:
        content = cell.cell_contents
    except ValueError:
        return True
    # A function may give its own names other values: plain ones are not fixed.
    fixed = (type, types.ModuleType, types.FunctionType, logging.Logger)
    return (isinstance(content, fixed) or is_known(content)) and is_constant(content, is_known)
