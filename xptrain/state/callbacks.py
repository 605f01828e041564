"""States of callbacks: what each one has gathered, kept apart from how it was set up.

A callback with `get_state`/`set_state` speaks for itself. Of any other one, the plain attributes are kept.
An attribute named like a constructor argument that still has its first value is a setting: it is compared,
never overwritten.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xptrain.state.codec import Unencodable, decode, encode
from xptrain.state.digest import digest_array, digest_json

# Set by Keras for every callback, or bound to this process and its open files.
_FOREIGN = frozenset({"_model", "params", "csv_file", "writer", "append_header"})


@dataclass(frozen=True)
class SettingChange:
    """A constructor setting of a callback that differs from the one in the checkpoint."""

    callback: str
    name: str
    before: str
    after: str


class CallbackStates:
    """Captures and restores the states of one fit's callbacks.

    Args:
        callbacks: The callbacks in the order in which they are called. Make this before `on_train_begin`,
            so that settings can be told from state.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)
        self._settings = [_settings(callback) for callback in self._callbacks]
        self.uncaptured: list[str] = []

    @property
    def names(self) -> list[str]:
        """Class names of the callbacks, in order."""
        return [_name(callback) for callback in self._callbacks]

    def capture(self, arrays: MutableMapping[str, Any]) -> list[dict[str, Any]]:
        """Return the states as JSON data and note in `uncaptured` what could not be stored.

        Args:
            arrays: Receives arrays, as in `codec.encode`.
        """
        self.uncaptured = []
        captured = []
        for callback, settings in zip(self._callbacks, self._settings, strict=True):
            entry: dict[str, Any] = {"class": _name(callback), "settings": settings}
            if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
                entry["own"] = encode(callback.get_state(), arrays, f"{_name(callback)}.get_state()")
            else:
                entry["state"] = self._plain_state(callback, settings, arrays)
            if _is_csv_logger(callback) and callback.csv_file and not callback.csv_file.closed:
                callback.csv_file.flush()
                entry["csv"] = {"offset": callback.csv_file.tell()}
            captured.append(entry)
        return captured

    def prepare(self, resuming: bool) -> list[Any]:
        """Get callbacks ready for `on_train_begin` of a resumed fit; pass the result to `restore`.

        `CSVLogger` would empty its file there, unless it appends.
        """
        loggers = [c for c in self._callbacks if _is_csv_logger(c) and not c.append] if resuming else []
        for logger in loggers:
            logger.append = True
        return loggers

    def restore(
        self, entries: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any], prepared: Sequence[Any] = ()
    ) -> list[SettingChange]:
        """Give each callback its state back; returns the settings that differ now.

        Args:
            entries: What `capture` returned.
            arrays: The arrays it set aside.
            prepared: What `prepare` returned.

        Raises:
            ValueError: If the callbacks are not the ones that were captured; `names` and the entries'
                `class` tell which.
        """
        if [entry["class"] for entry in entries] != self.names:
            raise ValueError("the callbacks differ from those in the checkpoint")
        changes: list[SettingChange] = []
        for callback, entry, settings in zip(self._callbacks, entries, self._settings, strict=True):
            changes += _changed(_name(callback), entry["settings"], settings)
            if "own" in entry:
                callback.set_state(decode(entry["own"], arrays))
            for name, value in entry.get("state", {}).items():
                setattr(callback, name, decode(value, arrays))
            if entry.get("csv"):
                _cut_back(callback, entry["csv"]["offset"])
        for logger in prepared:
            logger.append = False
        return changes

    def _plain_state(
        self, callback: Any, settings: Mapping[str, str], arrays: MutableMapping[str, Any]
    ) -> dict[str, Any]:
        state = {}
        parameters = _parameters(type(callback))
        for name, value in vars(callback).items():
            if name in _FOREIGN or (name in settings and _digest(value) == settings[name]):
                continue
            trial: dict[str, Any] = dict(arrays)
            try:
                encoded = encode(value, trial, name)
            except Unencodable as error:
                if name not in parameters and not callable(value) and not _is_stock(callback):
                    self.uncaptured.append(f"{_name(callback)}.{error}")
                continue
            arrays.update(trial)
            state[name] = encoded
        return state


def _name(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _is_stock(callback: Any) -> bool:
    return type(callback).__module__.startswith("keras.")


def _is_csv_logger(callback: Any) -> bool:
    import keras

    return isinstance(callback, keras.callbacks.CSVLogger)


def _parameters(cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            names.update(inspect.signature(base.__init__).parameters)  # type: ignore[misc]
    return names - {"self", "args", "kwargs"}


def _settings(callback: Any) -> dict[str, str]:
    settings = {}
    for name in sorted(_parameters(type(callback)) & vars(callback).keys()):
        digest = _digest(getattr(callback, name))
        if digest is not None:
            settings[name] = digest
    return settings


def _digest(value: Any) -> str | None:
    # Short values stand for themselves, so that a change can be shown; long ones by their digest.
    arrays: dict[str, Any] = {}
    try:
        encoded = encode(value, arrays)
    except Unencodable:
        return None
    text = repr(value)
    if len(text) <= 60 and not arrays:
        return text
    return digest_json([encoded, {key: digest_array(array) for key, array in arrays.items()}])


def _changed(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[SettingChange]:
    return [
        SettingChange(name, key, before.get(key, "unset"), after.get(key, "unset"))
        for key in sorted(before.keys() | after.keys())
        if key in before and key in after and before[key] != after[key]
    ]


def _cut_back(logger: Any, offset: int) -> None:
    # Rows after the checkpoint will be written again.
    logger.csv_file.flush()
    with Path(logger.filename).open("r+b") as file:
        file.truncate(offset)
    logger.csv_file.seek(offset)
    logger.append_header = offset == 0
