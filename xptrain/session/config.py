"""The config of a run: any mapping, dataclass or pydantic model, recorded as JSON, read back by attribute."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from xptrain.errors import ConfigError


class Config(Mapping[str, Any]):
    """A recorded config; `config.lr` and `config["lr"]` are the same.

    Args:
        values: JSON data with string keys.

    Example:
        >>> Config({"lr": 0.001, "net": {"width": 64}}).net.width
        64
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._values:
            raise AttributeError(
                f"the config has no {name!r}; it has: {', '.join(self._values) or 'nothing'}"
            )
        return self[name]

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return Config(value) if isinstance(value, dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Config({self._values!r})"

    def to_dict(self) -> dict[str, Any]:
        """Return the values as plain nested dicts and lists."""
        return json.loads(json.dumps(self._values))  # type: ignore[no-any-return]


def to_json(config: Any) -> dict[str, Any]:
    """Return a config as JSON data.

    Args:
        config: A mapping, a dataclass instance, a pydantic model, or None for an empty one.

    Raises:
        ConfigError: If it is of another kind, or holds a value that JSON cannot hold exactly.
    """
    if config is None:
        return {}
    if hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if not isinstance(config, Mapping):
        raise ConfigError(
            "the config cannot be recorded",
            expected="a mapping, a dataclass instance or a pydantic model",
            found=f"{type(config).__module__}.{type(config).__qualname__}",
            remedy="pass config={'name': value, …}",
        )
    result = _plain(config, "config")
    assert isinstance(result, dict)
    return result


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values as one level with dotted names; lists stay whole.

    Example:
        >>> flatten({"net": {"width": 64}, "lr": 0.1})
        {'net.width': 64, 'lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _plain(value: Any, where: str) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return _plain(value.item(), where)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, where)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _unfit(f"{where}: the key {key!r}", "names as keys", type(key).__name__)
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, (bool, int, str)):
        # Enums and other subclasses keep their plain value.
        return next(kind(value) for kind in (bool, int, str) if isinstance(value, kind))
    if hasattr(value, "__fspath__"):
        return str(value)
    found = (
        repr(value) if isinstance(value, float) else f"{type(value).__module__}.{type(value).__qualname__}"
    )
    raise _unfit(where, "numbers, text, true/false, null, lists and mappings", found)


def _unfit(where: str, expected: str, found: str) -> ConfigError:
    return ConfigError(
        f"the config cannot be recorded: {where}",
        expected=expected,
        found=found,
        remedy="put plain values into the config, and make objects of them in the script",
    )
