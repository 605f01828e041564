"""Settings: what the script gave a callback, kept so that it can be compared and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xptrain.secrets.redact import redact_text
from xptrain.state.digest import digest_array, digest_json
from xptrain.state.values.anchors import OPAQUE, Anchors
from xptrain.state.values.codec import KIND, Unencodable
from xptrain.state.values.decoder import GraphDecoder, nodes
from xptrain.state.values.encoder import GraphEncoder

# Larger settings, such as data to validate on, are not kept twice.
_KEPT_BYTES = 64 * 2**20
_SHOWN = 60
# A function's address is another one in each process.
_ADDRESS = " at 0x"
_ROOT = "given"
# Where callbacks of Keras write: files, TensorBoard logs, a server.
_WRITTEN_TO = frozenset({"filename", "filepath", "log_dir", "backup_dir", "root", "path"})


@dataclass(frozen=True)
class SettingChange:
    """A constructor setting of a callback that differs from the one in the checkpoint.

    Args:
        callback: Dotted name of its class.
        name: Name of the setting.
        before: Its value in the checkpoint, as text.
        after: Its value now.
        moves_bits: False if it only says where a callback of Keras writes its files.
    """

    callback: str
    name: str
    before: str
    after: str
    moves_bits: bool = True


@dataclass(frozen=True)
class Setting:
    """A value as the script gave it.

    Args:
        value: The object itself.
        text: The value, or its digest where it is long: what a checkpoint records of it.
    """

    value: Any
    text: str
    _digest: str
    _anchors: Anchors
    _data: Any
    _arrays: Mapping[str, Any] | None

    def is_still(self, value: Any) -> bool:
        """Say whether a value is as the script gave it: equal, and in the same objects."""
        try:
            return _encoded(value, self._anchors)[2] == self._digest
        except Unencodable:
            return False

    def refill(self) -> Callable[[], None]:
        """Return what gives the objects of the value their first contents.

        Raises:
            ValueError: If they have changed and are too large to have been kept.
        """
        if self._arrays is None:
            if self.is_still(self.value):
                return lambda: None
            raise ValueError("on_train_begin changes this setting, which is too large to be kept twice")
        decoder = GraphDecoder(self._anchors, self._arrays, self._data)
        decoder.decode(self._data)
        return decoder.fill


def as_setting(value: Any, is_known: Callable[[Any], bool]) -> Setting | None:
    """Return a value as a setting, or None if it is none that can be compared.

    What holds variables or draws random numbers is never a setting: using it changes it.
    """
    anchors = Anchors(is_known)
    anchors.add(_ROOT, value)
    try:
        data, arrays, digest = _encoded(value, anchors)
    except Unencodable:
        return None
    kinds = {node["kind"] for node in nodes(data)}
    if kinds.intersection(("variables", *OPAQUE)) or (isinstance(data, dict) and data.get(KIND) == "kept"):
        return None
    small = sum(array.nbytes for array in arrays.values()) <= _KEPT_BYTES
    text = _text(value)
    return Setting(
        value,
        digest if arrays or len(text) > _SHOWN or _ADDRESS in text else text,
        digest,
        anchors,
        data,
        arrays if small else None,
    )


def changed(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[SettingChange]:
    """Return the settings that both sides know and that differ."""
    return [
        SettingChange(
            name, key, before[key], after[key], not (name.startswith("keras.") and key in _WRITTEN_TO)
        )
        for key in sorted(before.keys() & after.keys())
        if before[key] != after[key]
    ]


def _encoded(value: Any, anchors: Anchors) -> tuple[Any, dict[str, Any], str]:
    arrays: dict[str, Any] = {}
    data = GraphEncoder(anchors, arrays).encode(value, _ROOT)
    return data, arrays, digest_json([data, {key: digest_array(array) for key, array in arrays.items()}])


def _text(value: Any) -> str:
    # The order of a set of texts is another one in each process.
    text = repr(sorted(value, key=repr)) if isinstance(value, (set, frozenset)) else repr(value)
    return redact_text(text)[0]
