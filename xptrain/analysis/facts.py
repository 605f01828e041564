"""What people compare of a run, as one flat mapping: (section, name) to a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from xptrain.analysis.reading import Reading
from xptrain.session.config import flatten
from xptrain.state.digest import canonical_json, digest_json

SECTIONS: Final = (
    "run",
    "config",
    "metrics",
    "state",
    "params",
    "code",
    "data",
    "program",
    "packages",
    "machine",
    "environment",
    "jax",
)
# Params that stand in a section of their own, where nothing is cut.
_ELSEWHERE: Final = frozenset({"seed", "data", "program", "keras", "jax", "jaxlib", "commit"})
Facts = dict[tuple[str, str], Any]


def facts(reading: Reading) -> Facts:
    """Return what people compare of a run.

    Args:
        reading: The run.

    Returns:
        Values by (section, name). A run that did not train yet has fewer of them.
    """
    config = flatten(reading.info.setup.get("config") or {})
    found: Facts = {}
    _put(found, "run", _run(reading))
    _put(found, "config", config)
    _put(found, "metrics", {name: value for name, (_, value) in sorted(reading.last.items())})
    _put(found, "state", _state(reading))
    params = {n: v for n, v in reading.params.items() if n not in config}
    _put(found, "params", {n: v for n, v in params.items() if n.rpartition(".")[2] not in _ELSEWHERE})
    for fit in _fits(reading):
        record = reading.manifest(fit)
        prefix = f"fit {fit} " if fit else ""
        for section, values in _manifest(record).items():
            _put(found, section, {f"{prefix}{name}": value for name, value in values.items()})
    return found


def same(first: Any, second: Any) -> bool:
    """Tell whether two values are the same when written as JSON; NaN is the same as NaN."""
    return canonical_json(first) == canonical_json(second)


def _put(found: Facts, section: str, values: Mapping[str, Any]) -> None:
    found.update({(section, name): value for name, value in values.items()})


def _run(reading: Reading) -> dict[str, Any]:
    info = reading.info
    return {
        "experiment": info.experiment,
        "name": info.name if info.name != info.key else None,
        "status": reading.status,
        "grade": reading.grade or None,
        "seed": info.setup.get("seed"),
        "attempts": len(reading.attempts),
        "step": reading.step,
        "epochs": reading.epochs,
        "user": info.user,
        "host": info.host,
        "script": info.script,
        "arguments": " ".join(info.argv),
    }


def _state(reading: Reading) -> dict[str, Any]:
    newest = reading.receipts[-1] if reading.receipts else None
    if newest is None:
        return {}
    return {"step": newest.step, "end of the fit": newest.cursor.done, "digest": newest.digest}


def _fits(reading: Reading) -> Iterable[int]:
    last = max((receipt.cursor.fit for receipt in reading.receipts), default=0)
    return range(last + 1)


def _manifest(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    code, data, packages = (record.get(name) or {} for name in ("code", "data", "packages"))
    machine, devices = (record.get(name) or {} for name in ("machine", "devices"))
    python = packages.get("python") or {}
    return {
        "code": _code(code),
        "data": {
            **{name: data[name] for name in ("digest", "profile") if name in data},
            **{f"order: {name}": value for name, value in (record.get("order") or {}).items()},
        },
        "program": record.get("program") or {},
        "packages": {
            **({"python": python["version"]} if python else {}),
            **(packages.get("installed") or {}),
        },
        "machine": {
            **({"cpu": machine["cpu"]["model"], "cores": machine["cores"]["usable"]} if machine else {}),
            **({"threads of XLA": machine["cores"]["threads"]} if machine else {}),
            **({"devices": _devices(devices), "platform": devices["platform"]} if devices else {}),
            **({"mesh": (record.get("topology") or {}).get("mesh_text")} if record.get("topology") else {}),
        },
        "environment": {f"${name}": value for name, value in (record.get("environment") or {}).items()},
        "jax": {**(record.get("jax_config") or {}), **(record.get("keras_config") or {})},
    }


def _code(code: Mapping[str, Any]) -> dict[str, Any]:
    if not code:
        return {}
    git = code["git"]
    sources = {name: file["code"] for name, file in code["files"].items()}
    # What Python reads of the imported project files: no comments, no layout.
    return {
        "commit": git.get("commit"),
        "uncommitted edits": git.get("dirty"),
        "sources": digest_json(sources),
    }


def _devices(devices: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in devices["kinds"].items())
