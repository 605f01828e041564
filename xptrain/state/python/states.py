"""Python state: what callbacks and the parts of the model have gathered, apart from how they were set up.

A callback with `get_state`/`set_state` speaks for itself. Of any other one, the attributes are kept, and the
variables that its functions close over. What still is as the script gave it is a setting: it is compared,
never overwritten by an older one. Secrets are left out by their names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from xptrain.errors import RestoreMismatchError
from xptrain.state.python import csv_files
from xptrain.state.python.entries import (
    beginning,
    decode_slots,
    encode_slots,
    note_begun,
    other_kinds,
)
from xptrain.state.python.known import Known
from xptrain.state.python.parts import Parts
from xptrain.state.python.settings import SettingChange, changed
from xptrain.state.python.slots import is_attribute, is_csv_logger, slots_of
from xptrain.state.python.witness import Witness
from xptrain.state.values.anchors import Anchors
from xptrain.state.values.codec import decode, encode
from xptrain.state.values.decoder import GraphDecoder
from xptrain.state.values.encoder import GraphEncoder

__all__ = ["Decoded", "PythonState", "SettingChange"]


@dataclass
class Decoded:
    """States that are ready to be written.

    Args:
        changes: Settings that differ from the checkpoint's.
        places: What puts objects in their places, with the callback that each is about.
        contents: What gives all objects their contents.
        hooks: What runs code of a callback, or touches a file of it.
    """

    contents: Callable[[], None]
    changes: list[SettingChange] = field(default_factory=list)
    places: list[tuple[str, Callable[[], Any]]] = field(default_factory=list)
    hooks: list[tuple[str, Callable[[], Any]]] = field(default_factory=list)


class PythonState:
    """Captures and restores what one fit's callbacks, and the parts of its model, hold in Python.

    Args:
        callbacks: The callbacks in the order in which they are called. Make this before `on_train_begin`,
            so that settings can be told from state.
        owners: The model and its parts, by names that are the same in every attempt, the model first.
        others: Further objects of the script that the data come from.
        apart: Objects of the script that say themselves what changes in them.
        kept: The variables that a checkpoint holds.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        owners: Mapping[str, Any] = MappingProxyType({}),
        *,
        others: Mapping[str, Any] = MappingProxyType({}),
        apart: Sequence[Any] = (),
        kept: Sequence[Any] = (),
    ) -> None:
        self._callbacks = list(callbacks)
        # What is read by number is where it was; of an iterator nobody would know who else has drawn from it.
        indexed = [value for value in apart if hasattr(value, "__getitem__")]
        self._known = Known(self._callbacks, next(iter(owners.values()), None), indexed)
        self._parts = Parts(owners, self._known)
        self._beginnings = [beginning(callback, self._known) for callback in self._callbacks]
        self._begun: Anchors | None = None
        self._shared_files: set[int] = set()
        speaking = [callback for callback in self._callbacks if _speaks_for_itself(callback)]
        named = [(_name(c), c) for c in self._callbacks if not _speaks_for_itself(c)]
        self._witness = Witness(named, owners, others, [*apart, *speaking], kept)
        self.uncaptured: list[str] = []

    @property
    def names(self) -> list[str]:
        """Class names of the callbacks, in order."""
        return [_name(callback) for callback in self._callbacks]

    def begin(self) -> Anchors:
        """Note which objects are there; call it right after `on_train_begin`, else the first use does."""
        if self._begun is None:
            self._begun = Anchors(self._known)
            for i, callback in enumerate(self._callbacks):
                note_begun(callback, self._beginnings[i])
                for slot in slots_of(callback):
                    self._begun.add(f"{i}:{slot.name}", slot.get())
            self._parts.begin(self._begun)
            self._witness.begin()
        return self._begun

    def note_compiled(self) -> None:
        """Note what the train step was compiled with; called after the first one."""
        self._parts.note_compiled()

    def capture(self, arrays: MutableMapping[str, Any]) -> dict[str, Any]:
        """Return the states as JSON data and note in `uncaptured` what could not be stored.

        Args:
            arrays: Receives arrays, as in `codec.encode`.

        Returns:
            `callbacks`, one entry each in their order, and `model`, by part.
        """
        encoder = GraphEncoder(self.begin(), arrays, self._known.is_untouched)
        self.uncaptured = []
        captured = []
        for i, (callback, begun) in enumerate(zip(self._callbacks, self._beginnings, strict=True)):
            name = _name(callback)
            settings = {key: s.text for key, s in begun.settings.items() if is_attribute(key)}
            entry: dict[str, Any] = {"class": name, "index": i, "settings": settings}
            entry["attributes"] = begun.kinds
            if _speaks_for_itself(callback):
                entry["own"] = encode(callback.get_state(), arrays, f"{name}.get_state()")
            else:
                entry |= encode_slots(
                    i, callback, begun, encoder, self._known, partial(_add, self.uncaptured, name)
                )
            if is_csv_logger(callback) and callback.csv_file and not callback.csv_file.closed:
                callback.csv_file.flush()
                entry["csv"] = csv_files.mark(callback.filename, callback.csv_file.tell())
            captured.append(entry)
        of_model = self._parts.capture(encoder, self.uncaptured.append)
        self.uncaptured += self._witness.uncaptured(encoder.holds, self.uncaptured)
        return {"callbacks": captured, "model": of_model}

    def prepare(self, resuming: bool) -> list[Any]:
        """Get callbacks ready for `on_train_begin` of a resumed fit; pass the result to `restore`.

        `CSVLogger` would empty its file there, unless it appends.
        """
        loggers = [c for c in self._callbacks if is_csv_logger(c) and not c.append] if resuming else []
        for logger in loggers:
            logger.append = True
        return loggers

    def unprepare(self, prepared: Sequence[Any]) -> None:
        """Take back what `prepare` changed, however the restore went: the callbacks are the user's."""
        for logger in prepared:
            logger.append = False

    def decode(
        self, captured: Mapping[str, Any], arrays: Mapping[str, Any], *, strict: bool = True
    ) -> Decoded:
        """Return the states ready to be written by `apply`; nothing is written before.

        Args:
            captured: What `capture` returned, its `callbacks` in the order of the callbacks now.
            arrays: The arrays it set aside.
            strict: False to leave alone what does not fit, with a warning: for a fit that is finished.

        Raises:
            ValueError: If the callbacks are not the ones that were captured; `names` and the entries'
                `class` tell which.
            RestoreMismatchError: If an object that is to be filled is not there, or is another.
        """
        entries, of_model = captured["callbacks"], captured.get("model", {})
        if [entry["class"] for entry in entries] != self.names:
            raise ValueError("the callbacks differ from those in the checkpoint")
        moved = {str(entry["index"]): str(i) for i, entry in enumerate(entries) if "index" in entry}
        moved |= {name: name for name in of_model}
        states = [entry.get("state", {}) for entry in (*entries, *of_model.values())]
        decoder = GraphDecoder(self.begin(), arrays, states, partial(_place, moved))
        problems: list[str] = []
        decoded = Decoded(decoder.fill)
        for callback, entry, begun in zip(self._callbacks, entries, self._beginnings, strict=True):
            name = _name(callback)
            settings = {key: setting.text for key, setting in begun.settings.items()}
            decoded.changes += changed(name, entry["settings"], settings)
            decoded.changes += other_kinds(callback, name, entry.get("attributes"), begun)
            writes = decode_slots(callback, begun, entry, decoder, partial(_add, problems, name))
            decoded.places += [(name, write) for write in writes]
            if "own" in entry and _speaks_for_itself(callback):
                decoded.hooks.append((name, partial(callback.set_state, decode(entry["own"], arrays))))
            if entry.get("csv"):
                decoded.hooks.append((name, partial(self._cut_back, callback, entry["csv"])))
        # After the contents: Keras copies lists and dicts that become attributes of a layer.
        decoded.hooks += self._parts.decode(of_model, decoder, problems.append)
        if problems and strict:
            raise RestoreMismatchError(
                "the checkpoint does not fit these callbacks; nothing was written into them",
                expected="the objects that the callbacks had when the fit began",
                found="\n            ".join(problems),
                remedy="give fit() the callbacks as the run did, or start a new run",
            )
        for text in problems:
            warnings.warn(f"not restored: {text}", stacklevel=2)
        return decoded

    def apply(self, decoded: Decoded, prepared: Sequence[Any] = ()) -> list[SettingChange]:
        """Write what `decode` made ready; returns the settings that differ now.

        Args:
            decoded: What `decode` returned.
            prepared: What `prepare` returned.
        """
        user_appends = [c for c in self._callbacks if is_csv_logger(c) and c.append and c not in prepared]
        self._shared_files = {id(logger) for logger in user_appends}
        for name, write in [*decoded.places, ("the callbacks", decoded.contents), *decoded.hooks]:
            try:
                write()
            except Exception as error:
                error.add_note(f"raised while {name} was given its state back")
                raise
        self.unprepare(prepared)
        return decoded.changes

    def restore(
        self, captured: Mapping[str, Any], arrays: Mapping[str, Any], prepared: Sequence[Any] = ()
    ) -> list[SettingChange]:
        """`decode` and `apply` in one."""
        return self.apply(self.decode(captured, arrays), prepared)

    def file_offsets(self) -> list[dict[str, Any]]:
        """Return where the files that `CSVLogger`s append to end now, before `on_train_begin`.

        An attempt that finds no checkpoint starts again; with these, `cut_files` takes back what the attempt
        before it has appended.
        """
        marks = [
            (i, csv_files.mark(callback.filename))
            for i, callback in enumerate(self._callbacks)
            if is_csv_logger(callback) and callback.append
        ]
        return [{"index": i, **mark} for i, mark in marks if mark is not None]

    def cut_files(self, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Cut files back to where they ended when the run first started; call it before `on_train_begin`.

        Args:
            offsets: What `file_offsets` returned in the first attempt.
        """
        for known in offsets:
            logger = self._callbacks[known["index"]] if known["index"] < len(self._callbacks) else None
            if is_csv_logger(logger) and logger is not None and logger.append:
                csv_files.cut_back(logger.filename, known, is_shared=True)

    def _cut_back(self, logger: Any, known: Mapping[str, Any]) -> None:
        # The fit of a finished run has no file open.
        file = logger.csv_file if logger.csv_file and not logger.csv_file.closed else None
        if file is None:
            return
        file.flush()
        if csv_files.cut_back(logger.filename, known, is_shared=id(logger) in self._shared_files):
            file.seek(known["offset"])
            logger.append_header = known["offset"] == 0


def _name(callback: Any) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _add(problems: list[str], name: str, text: str) -> None:
    problems.append(f"{name}.{text}")


def _speaks_for_itself(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _place(moved: Mapping[str, str], path: str) -> str:
    index, _, rest = path.partition(":")
    return f"{moved.get(index, 'gone')}:{rest}"
