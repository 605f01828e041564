"""One callback's part of a checkpoint, made from its slots and read back into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xptrain.secrets.names import holds_secret
from xptrain.state.python.known import Known
from xptrain.state.python.settings import Setting, SettingChange, as_setting
from xptrain.state.python.slots import Slot, is_stock, slot_named, slots_of
from xptrain.state.values.codec import KIND, Unencodable
from xptrain.state.values.constants import is_constant
from xptrain.state.values.decoder import GraphDecoder
from xptrain.state.values.encoder import GraphEncoder
from xptrain.state.values.held import variables_of


@dataclass
class Beginning:
    """What a callback was like when its fit began.

    Args:
        settings: What the script gave it, by slot, where that can be compared.
        secrets: What the secrets in its slots look like. In memory only.
        kinds: Its attributes after `on_train_begin`, with the names of their types.
    """

    settings: dict[str, Setting] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def beginning(callback: Any, known: Known) -> Beginning:
    """Return what a callback is like before `on_train_begin`."""
    found = Beginning()
    for slot in slots_of(callback):
        value = slot.get()
        known.remember(value)
        if _is_secret(slot, value):
            found.secrets[slot.name] = repr(value)
        elif slot.is_setting:
            setting = as_setting(value, known)
            if setting is not None:
                found.settings[slot.name] = setting
    return found


def note_begun(callback: Any, begun: Beginning) -> None:
    """Add what a callback is like after `on_train_begin`."""
    begun.kinds = {name: _kind(value) for name, value in vars(callback).items()}
    secrets = [slot for slot in slots_of(callback) if _is_secret(slot, slot.get())]
    begun.secrets |= {slot.name: repr(slot.get()) for slot in secrets}


def encode_slots(
    index: int,
    callback: Any,
    begun: Beginning,
    encoder: GraphEncoder,
    known: Known,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Return the state of a callback as JSON data; `report` is told of what cannot be stored.

    Args:
        index: Its place among the callbacks.
        callback: The callback.
        begun: What it was like when the fit began.
        encoder: One for all callbacks of the capture.
        known: What is captured elsewhere.
        report: Receives a place in the callback and why it cannot be stored.

    Returns:
        `state` by slot; `as_given`: slots that are as the script gave them; `secret`: slots that are left
        out; `gone`: attributes that the callback had when the fit began.
    """
    entry: dict[str, Any] = {"state": {}}
    left_out: dict[str, list[str]] = {"as_given": [], "secret": []}

    def tell(text: str) -> None:
        report(text.removeprefix(f"{index}:"))

    for slot in slots_of(callback):
        value, path = slot.get(), f"{index}:{slot.name}"
        if _is_secret(slot, value):
            left_out["secret"].append(slot.name)
            if begun.secrets.get(slot.name) != repr(value):
                tell(f"{slot.name}: a secret, which is never stored")
            continue
        setting = begun.settings.get(slot.name)
        if setting is not None and setting.is_still(value):
            left_out["as_given"].append(slot.name)
            continue
        try:
            if _is_history(callback) and slot.name == "history":
                data = encoder.encode_known(value, path, tell)
            else:
                data = encoder.encode(value, path)
        except Unencodable as error:
            if _is_to_be_named(callback, slot, value, known):
                tell(str(error))
            continue
        if data != {KIND: "kept", "v": path}:
            entry["state"][slot.name] = data
    left_out["gone"] = sorted(begun.kinds.keys() - vars(callback).keys())
    return {**entry, **{name: names for name, names in left_out.items() if names}}


def decode_slots(
    callback: Any,
    begun: Beginning,
    entry: Mapping[str, Any],
    decoder: GraphDecoder,
    problem: Callable[[str], None],
) -> list[Callable[[], None]]:
    """Return what puts a callback's values in their slots; contents come by `decoder.fill` after that.

    Args:
        callback: The callback.
        begun: What it was like when this attempt's fit began.
        entry: What `encode_slots` returned.
        decoder: One for all callbacks of the checkpoint.
        problem: Receives what does not fit.
    """
    slots = {slot.name: slot for slot in slots_of(callback)}
    others = {change.name for change in other_kinds(callback, "", entry.get("attributes"), begun)}
    writes: list[Callable[[], None]] = []
    for name, data in entry.get("state", {}).items():
        if name in others:
            # Refused as a change of the callbacks, or allowed: then this attempt's value is used.
            continue
        slot = slots.get(name) or slot_named(callback, name)
        if slot is None:
            problem(f"{name}: its code does not use this here")
            continue
        try:
            writes.append(partial(slot.put, decoder.decode(data)))
        except ValueError as error:
            problem(f"{name}: {error}")
    for name in entry.get("as_given", ()):
        if name in begun.settings and name in slots:
            try:
                refill = begun.settings[name].refill()
            except ValueError as error:
                problem(f"{name}: {error}")
                continue
            writes += [partial(slots[name].put, begun.settings[name].value), refill]
    writes += [partial(delattr, callback, name) for name in entry.get("gone", ()) if name in vars(callback)]
    return writes


def other_kinds(
    callback: Any, name: str, before: Mapping[str, str] | None, begun: Beginning
) -> list[SettingChange]:
    """Return what tells that a callback is of another class, under the same name, than in the checkpoint.

    Args:
        callback: The callback.
        name: Name of its class.
        before: Kinds of its attributes when the fit of the checkpoint began; None in an old checkpoint.
        begun: What it was like when this attempt's fit began.
    """
    if before is None or is_stock(callback):
        return []
    changes = []
    for attribute in sorted(before.keys() | begun.kinds.keys()):
        old, new = before.get(attribute, "not there"), begun.kinds.get(attribute, "not there")
        # None stands for what is not known yet.
        if old != new and "None" not in (old, new):
            changes.append(SettingChange(name, attribute, old, new))
    return changes


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return "a number" if isinstance(value, int | float) else type(value).__name__


def _is_secret(slot: Slot, value: Any) -> bool:
    return holds_secret(slot.variable, value)


def _is_history(callback: Any) -> bool:
    import keras

    return isinstance(callback, keras.callbacks.History)


def _is_to_be_named(callback: Any, slot: Slot, value: Any, known: Known) -> bool:
    """Say whether what cannot be stored is named at once, rather than when it is seen to change."""
    if slot.is_near:
        return not _is_keras_own(callback, slot, value, known)
    return hasattr(value, "__next__") or variables_of(value) is not None


def _is_keras_own(callback: Any, slot: Slot, value: Any, known: Known) -> bool:
    """Say whether Keras made a value for itself: it makes it again."""
    home = getattr(value, "__module__", None) if callable(value) else type(value).__module__
    if str(home).startswith("keras."):
        return is_stock(callback) or is_constant(value, known)
    # What a function closes over is the script's, also in a callback of Keras.
    return is_stock(callback) and slot.owner is callback and not callable(value)
