"""The manifest of an attempt: everything that was captured, as one JSON object.

There are two moments, because `run()` must not start JAX: `capture_static` at `run()`,
`capture_dynamic` at the first fit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xptrain.provenance import (
    canary,
    devices,
    environment,
    flags,
    hazards,
    machine,
    packages,
    sharding,
    source,
)
from xptrain.secrets.redact import redact_mapping
from xptrain.state.digest import digest_json

SCHEMA: Final = 1


@dataclass(frozen=True)
class Capture:
    """A manifest and the texts that belong to it.

    Args:
        record: The manifest, JSON.
        artifacts: Texts to keep beside it, by path: `requirements.txt`, `source/…`, `sharding.json` is the
            caller's to write from `record["variables"]`.
    """

    record: dict[str, Any]
    artifacts: dict[str, str] = field(default_factory=dict)


def capture_static(
    *,
    config: Mapping[str, Any],
    seed: int,
    attempt: int,
    script: Path | None = None,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Capture:
    """Capture all that can be known before JAX starts. Takes some tenths of a second, safe in a thread.

    Args:
        config: The run's config, of JSON kinds. Secrets in it are redacted.
        seed: The run's seed.
        attempt: Number of the attempt.
        script: The script, if it is not `__main__`'s file.
        argv: Its arguments, default `sys.argv`.
        env: Environment, default `os.environ`.

    Returns:
        The manifest so far, with sections `code`, `config`, `seed`, `packages`, `machine`, `environment`,
        `flags` and `keras_file`, and the texts to keep.
    """
    variables = os.environ if env is None else env
    code = source.capture_source(script=script, argv=argv)
    installed = packages.capture_packages()
    requirements = installed.pop("requirements")
    shown, redacted = redact_mapping(config)
    record = {
        "schema": SCHEMA,
        "attempt": attempt,
        "captured_ms": int(time.time() * 1000),
        "code": code.record,
        "config": shown,
        "config_redacted": redacted,
        "seed": seed,
        "packages": installed,
        "machine": machine.capture_machine(variables),
        "environment": environment.environment(variables),
        "flags": flags.xla_flags(environment.environment(variables)),
        "keras_file": environment.keras_config(variables),
    }
    texts = {f"source/{name}": text for name, text in code.artifacts.items()}
    return Capture(record, {**texts, "requirements.txt": requirements})


def capture_dynamic(
    static: Mapping[str, Any],
    *,
    data: Mapping[str, Any] | None = None,
    order: Mapping[str, Any] | None = None,
    fit: Mapping[str, Any] | None = None,
    callbacks: Sequence[Mapping[str, Any]] | None = None,
    program: Mapping[str, str] | None = None,
    variables: Iterable[tuple[str, str, str, Any]] = (),
    run_canary: bool = True,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Complete a manifest at the first fit. Starts the JAX backend.

    Args:
        static: The record of `capture_static`.
        data: `Fingerprint.as_json()` of the fit's data.
        order: What the order of the data depends on (kind of source, seed, shuffle, …), JSON.
        fit: The fit's arguments that matter (`epochs`, `batch_size`, …), JSON.
        callbacks: For each callback `name` and `settings`, JSON.
        program: Hash of each lowered step by name, such as `{"train": "…"}`.
        variables: Tuples (key, role, path, array) of all variables.
        run_canary: Whether to test known sums (some tenths of a second).
        env: Environment, default `os.environ`.

    Returns:
        The whole manifest, as JSON.
    """
    now = os.environ if env is None else env
    found = devices.capture_devices()
    layout = sharding.describe_variables(variables)
    versions = static["packages"]["installed"]
    hits = hazards.check(
        now, versions, platform=found["platform"], run_canary=canary.run_canary if run_canary else None
    )
    record: dict[str, Any] = {
        **static,
        "code": recapture_files(static["code"]),
        "devices": found,
        "jax_config": devices.capture_jax_config(),
        # Only when Keras is there: importing it here could choose a backend for the user.
        "keras_config": devices.capture_keras_config() if "keras" in sys.modules else None,
        "hazards": [hit.as_json() for hit in hits],
        "variables": layout,
        "topology": {**sharding.summarize(layout), "digest": _layout_digest(layout)} if layout else None,
    }
    given = {"data": data, "order": order, "fit": fit, "program": program}
    record |= {name: redact_mapping(section)[0] for name, section in given.items() if section is not None}
    if callbacks is not None:
        record["callbacks"] = [redact_mapping(callback)[0] for callback in callbacks]
    return record


def recapture_files(code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `code` section with the project files imported since it was captured added.

    A file that was captured keeps its first digest: it is what was imported, even if it was edited since.
    """
    root = Path(code["root"])
    script = Path(code["script"]) if code["script"] else None
    files = source.digest_files(source.project_files(root, script), root)
    return {**code, "files": {**files, **code["files"]}}


def _layout_digest(layout: Sequence[Mapping[str, Any]]) -> str:
    """Digest of every variable's sharding by key, without device ids, which another allocation changes."""
    return digest_json(
        {v["key"]: {"mesh": v["sharding"]["mesh"], "spec": v["sharding"]["spec"]} for v in layout}
    )
