"""Python attributes of a model and its parts: what callbacks, eager layers or a `train_step` change there.

The script sets them up again; what still is as it was when the fit began is left to the script.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from xptrain.secrets.names import holds_secret
from xptrain.state.python.functions import attributes_read, own_classes, remembered
from xptrain.state.python.known import Known
from xptrain.state.python.notes import note_of
from xptrain.state.python.settings import Setting, as_setting
from xptrain.state.python.slots import Slot
from xptrain.state.values.anchors import Anchors, kind_of
from xptrain.state.values.codec import KIND, SCALARS, Unencodable
from xptrain.state.values.decoder import GraphDecoder
from xptrain.state.values.encoder import GraphEncoder

_APART = frozenset({"__init__", "build", "get_config", "compile"})
# The loop's own: each build, fit or evaluation sets them as it needs them.
_OF_THE_LOOP = frozenset(
    {"built", "stop_training", "stop_evaluating", "stop_predicting"}
    | {"train_function", "test_function", "predict_function", "history", "_jax_state"}
)


@dataclass(frozen=True)
class _First:
    """An attribute as the script gave it.

    Args:
        value: Its value.
        setting: For comparing its contents, or None where they cannot be compared.
        inside: The same for the attributes of an object of a class of the user's.
    """

    value: Any
    setting: Setting | None
    inside: Setting | None

    def is_still(self, value: Any, known: Known) -> bool:
        if type(value) in SCALARS:
            return type(value) is type(self.value) and (value is self.value or value == self.value)
        if self.setting is not None:
            return self.setting.is_still(value)
        if value is not self.value or kind_of(value, known) is not None or hasattr(value, "__next__"):
            return False
        return self.inside is None or self.inside.is_still(vars(value))


class Parts:
    """Captures and restores the Python attributes of a model, its layers, its optimizer and its metrics.

    Args:
        owners: These objects by a name that is the same in every attempt, before `on_train_begin`.
        known: What is captured elsewhere.
    """

    def __init__(self, owners: Mapping[str, Any], known: Known) -> None:
        self._owners = dict(owners)
        self._known = known
        self._model: Any = next(iter(self._owners.values()), None)
        self._first = {name: dict(self._firsts(owner)) for name, owner in self._owners.items()}
        self._begun: dict[str, set[str]] = {}
        # What steps were compiled with, of the attributes that their code reads.
        self._baked_in: dict[tuple[str, str], Any] | None = None
        self._read: frozenset[str] = frozenset()

    def begin(self, anchors: Anchors) -> None:
        """Note what is there right after `on_train_begin`."""
        for name, owner in self._owners.items():
            slots = list(slots_of_part(owner))
            self._begun[name] = {slot.name for slot in slots}
            for slot in slots:
                anchors.add(f"{name}:{slot.name}", slot.get())

    def note_compiled(self) -> None:
        """Note what the train step was compiled with; called after the first one."""
        if self._is_compiled:
            self._read = _read_when_traced(self._owners.values())
            self._baked_in = {}
            for name, owner in self._owners.items():
                read = [slot for slot in slots_of_part(owner) if slot.name in self._read]
                self._baked_in |= {(name, slot.name): note_of(slot.get()) for slot in read}

    @property
    def _is_compiled(self) -> bool:
        return bool(self._model is not None and not self._model.run_eagerly and self._model.jit_compile)

    def _is_baked_in(self, name: str, slot: Slot) -> bool:
        """Say whether a compiled step goes on with another value than the attribute has now."""
        if self._baked_in is None or slot.name not in self._read:
            return False
        return self._baked_in.get((name, slot.name)) != note_of(slot.get())

    def capture(self, encoder: GraphEncoder, report: Callable[[str], None]) -> dict[str, Any]:
        """Return what has changed as JSON data, by owner; owners that have not changed are left out.

        Args:
            encoder: One for everything in the capture.
            report: Receives a place and why it cannot be stored.
        """
        captured: dict[str, Any] = {}
        for name, owner in self._owners.items():
            now = list(slots_of_part(owner))
            state: dict[str, Any] = {}
            for slot in now:
                if not self._is_still(name, slot.name, slot.get()):
                    data = self._encode(slot, f"{name}:{slot.name}", encoder, report)
                    state |= {} if data is None else {slot.name: data}
            gone = sorted(self._begun[name] - vars(owner).keys())
            if state or gone:
                captured[name] = {"state": state, "gone": gone}
        return captured

    def decode(
        self, captured: Mapping[str, Any], decoder: GraphDecoder, problem: Callable[[str], None]
    ) -> list[tuple[str, Callable[[], Any]]]:
        """Return what writes the attributes, each with its owner's name; call it after `decoder.fill`.

        Args:
            captured: What `capture` returned.
            decoder: One for everything in the checkpoint.
            problem: Receives what does not fit.
        """
        writes: list[tuple[str, Callable[[], Any]]] = []
        for name, owner in self._owners.items():
            entry = captured.get(name, {"state": {}, "gone": []})
            made: list[Callable[[], Any]] = []
            now = {slot.name: slot.get() for slot in slots_of_part(owner)}
            as_given = self._first[name].keys() - entry["state"].keys() - set(entry["gone"])
            for attribute in [*entry["state"], *sorted(as_given)]:
                try:
                    if attribute in entry["state"]:
                        value = decoder.decode(entry["state"][attribute])
                        made.append(partial(Slot(attribute, owner, True).put, value))
                    else:
                        made += self._put_back(name, attribute, now)
                except ValueError as error:
                    problem(f"{name}.{attribute}: {error}")
            writes += [(name, write) for write in made]
            writes += [(name, partial(delattr, owner, gone)) for gone in entry["gone"] if gone in vars(owner)]
        return writes

    def _firsts(self, owner: Any) -> Iterator[tuple[str, _First]]:
        for slot in slots_of_part(owner):
            value = slot.get()
            if type(value) in SCALARS:
                yield slot.name, _First(value, None, None)
            else:
                setting = as_setting(value, self._known)
                is_own = setting is None and hasattr(value, "__dict__") and not callable(value)
                inside = as_setting(vars(value), self._known) if is_own else None
                yield slot.name, _First(value, setting, inside)

    def _is_still(self, name: str, attribute: str, value: Any) -> bool:
        first = self._first[name].get(attribute)
        return first is not None and first.is_still(value, self._known)

    def _put_back(self, name: str, attribute: str, now: Mapping[str, Any]) -> list[Callable[[], Any]]:
        """Return what undoes a change by `on_train_begin`, which was undone by the time of the checkpoint."""
        owner, first = self._owners[name], self._first[name][attribute]
        is_elsewhere = attribute in vars(owner) and attribute not in now
        if is_elsewhere or (attribute in now and self._is_still(name, attribute, now[attribute])):
            return []
        put = partial(Slot(attribute, owner, True).put, first.value)
        return [put, first.setting.refill()] if first.setting else [put]

    def _encode(self, slot: Slot, path: str, encoder: GraphEncoder, report: Callable[[str], None]) -> Any:
        value = slot.get()
        if holds_secret(slot.name, value):
            report(f"{path.replace(':', '.')}: a secret, which is never stored")
            return None
        is_of_keras = slot.name in assigned_by_keras(type(slot.owner))
        is_baked_in = self._is_baked_in(path.partition(":")[0], slot)
        if is_baked_in or (is_of_keras and (self._is_compiled or callable(value))):
            # The script's value is what a resumed process compiles, as the straight one did.
            report(f"{path.replace(':', '.')} (changed while training, which a compiled step may not see)")
            return None
        try:
            data = encoder.encode(value, path)
        except Unencodable as error:
            report(str(error).replace(":", ".", 1))
            return None
        return None if data == {KIND: "kept", "v": path} else data


@remembered
def assigned_by_keras(cls: type) -> frozenset[str]:
    """Return the names of the attributes that Keras's own code gives to instances of a class."""
    names: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith("keras."):
            for member in vars(base).values():
                names |= _stored(member)
    return frozenset(names)


def _stored(member: Any) -> set[str]:
    if isinstance(member, property):
        return _stored(member.fget) | _stored(member.fset)
    if isinstance(member, (staticmethod, classmethod)):
        return _stored(member.__func__)
    code = getattr(getattr(member, "__wrapped__", member), "__code__", member)
    if not isinstance(code, types.CodeType):
        return set()
    here = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    return here.union(*map(_stored, code.co_consts))


def _read_when_traced(owners: Iterable[Any]) -> frozenset[str]:
    """Return the names of the attributes that the user's code reads when a step is traced.

    Keras calls what overrides a method of its own, and that calls the rest. A name stands for all owners.
    """
    code: dict[str, set[types.CodeType]] = {}
    called = set()
    for owner in owners:
        of_keras = [cls for cls in type(owner).__mro__ if cls.__module__.startswith("keras.")]
        members = [(name, member) for cls in own_classes(owner) for name, member in vars(cls).items()]
        called |= {name for name, _ in members if any(hasattr(cls, name) for cls in of_keras)} - _APART
        called |= assigned_by_keras(type(owner))
        for name, member in [*members, *vars(owner).items()]:
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, types.FunctionType):
                code.setdefault(name, set()).add(function.__code__)
    read: set[str] = set()
    while waiting := [name for name in called if name in code]:
        new = {name for of_name in waiting for c in code.pop(of_name) for name in attributes_read(c)}
        read |= new
        called |= new
    return frozenset(read)


def _is_inner(name: str) -> bool:
    # What Keras keeps to itself, but for the flag behind `layer.trainable = False`.
    return name.startswith("_") and name != "_trainable"


def slots_of_part(owner: Any) -> Iterator[Slot]:
    """Return an owner's attributes that training could change, and that are not kept elsewhere."""
    import jax
    import keras

    of_keras = assigned_by_keras(type(owner))
    # A copy, since threads may go on.
    for name, value in dict(vars(owner)).items():
        if name in _OF_THE_LOOP or (name in of_keras and _is_inner(name)):
            continue
        # Of what else Keras keeps only plain values and functions (an activation) can be changed by anybody.
        if name in of_keras and not (type(value) in SCALARS or isinstance(value, types.FunctionType)):
            continue
        # What a compiled step left behind cannot be used; Keras keeps track of its own objects.
        if isinstance(value, (jax.core.Tracer, keras.Layer, keras.Variable)):
            continue
        if type(value).__module__.partition(".")[0] in ("xptrain", "jax", "jaxlib") and not hasattr(
            value, "dtype"
        ):
            continue
        yield Slot(name, owner, True)


def objects_in(value: Any) -> dict[str, Any] | None:
    """Return what an object of Keras holds that is the user's to change; None for any other object."""
    import keras

    kinds: tuple[type, ...] = (keras.Layer, keras.Metric, keras.Optimizer, *_small_kinds())
    if not isinstance(value, kinds):
        return None
    found = {f".{slot.name}": slot.get() for slot in slots_of_part(value)}
    for name, item in vars(value).items():
        # A learning rate is a variable, or a schedule in its place.
        if isinstance(item, _small_kinds()) or (
            name == "_learning_rate" and isinstance(item, keras.Variable)
        ):
            found[f".{name.lstrip('_')}"] = item
    if isinstance(value, _small_kinds()):
        # No step moves these, and no layer knows of them.
        found |= {f".{name}": item for name, item in vars(value).items() if isinstance(item, keras.Variable)}
    losses = vars(value).get("loss")
    return found | ({".loss": losses} if isinstance(losses, (list, tuple, dict)) else {})


@functools.cache
def _small_kinds() -> tuple[type, ...]:
    import keras

    return (
        keras.losses.Loss,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
        keras.initializers.Initializer,
        keras.optimizers.schedules.LearningRateSchedule,
    )
