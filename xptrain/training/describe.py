"""What a model is, in plain data: for params, the summary file and the comparison of two attempts."""

from __future__ import annotations

import json
from typing import Any


def describe_model(model: Any) -> dict[str, Any]:
    """Return a compiled model's size, optimizer, loss and metrics as JSON data.

    Args:
        model: A built, compiled Keras model.
    """
    optimizer = model.optimizer
    return {
        "class": type(model).__qualname__,
        "name": model.name,
        "params": int(model.count_params()),
        "trainable_params": sum(_size(v) for v in model.trainable_weights),
        # A layer may be trained too, with Keras's trainer mixed in.
        "layers": len(getattr(model, "layers", ())),
        "optimizer": {"class": type(optimizer).__name__, **_settings(optimizer)} if optimizer else None,
        "loss": _name(getattr(model, "loss", None)),
        "metrics": [metric.name for metric in model.metrics],
    }


def summary(model: Any) -> str:
    """Return what `model.summary()` prints, 100 characters wide."""
    lines: list[str] = []
    model.summary(print_fn=lambda text, **_: lines.append(str(text)), line_length=100, expand_nested=True)
    return "\n".join(lines) + "\n"


def _settings(optimizer: Any) -> dict[str, Any]:
    config = dict(optimizer.get_config())
    config.pop("name", None)
    # Keras gives numbers as NumPy scalars and schedules as nested configs; both become plain JSON.
    return json.loads(json.dumps(config, default=_plain))  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else f"{type(value).__module__}.{type(value).__qualname__}"


def _size(variable: Any) -> int:
    size = 1
    for length in variable.shape:
        size *= length
    return size


def _name(loss: Any) -> Any:
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, dict):
        return {key: _name(value) for key, value in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [_name(value) for value in loss]
    return getattr(loss, "name", None) or getattr(loss, "__qualname__", type(loss).__qualname__)
