"""What a run records of a fit before its first step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xptrain.session.config import flatten
from xptrain.session.manifests import train_program
from xptrain.session.sections import hazards_text, params
from xptrain.training.describe import summary

if TYPE_CHECKING:
    from xptrain.session.life import Life


def record_fit(run: Life, manifest: Mapping[str, Any], model: Any, fit: int, is_changed: bool) -> None:
    """Write the attempt's manifest, and queue the tags, params and files that are made from it.

    Args:
        run: The run; its grade is known.
        manifest: The manifest, whole.
        model: The model.
        fit: Number of the fit.
        is_changed: Whether anything differs from earlier attempts.
    """
    path = run.manifests.write(manifest, run.attempt, fit)
    run.keep_text(path.read_text(), path.name, "manifest")
    layout = json.dumps(manifest["variables"], indent=1)
    suffix = f"-fit-{fit}" if fit else ""
    if run.attempt == 1 or is_changed:
        run.keep_text(layout, f"sharding{suffix}.json", "")
        run.keep_text(summary(model), f"summary{suffix}.txt", "model")
    run.keep_text(hazards_text(manifest["hazards"]), "hazards.txt", "manifest")
    topology = manifest.get("topology") or {}
    devices = manifest["devices"]
    run.writer.append(
        "tags",
        values={
            "xptrain.grade": str(run.grade),
            "xptrain.data": manifest["data"]["digest"],
            "xptrain.device": ", ".join(f"{n} x {kind}" for kind, n in devices["kinds"].items()),
            "xptrain.mesh": topology.get("mesh_text") or "none",
            "xptrain.program": train_program(manifest) or "not compiled",
        },
    )
    prefix = f"fit{fit}." if fit else ""
    taken = flatten(run.config.to_dict())
    values = {prefix + name: value for name, value in params(manifest).items() if name not in taken}
    run.writer.append("params", values=values)
    run.writer.append(
        "dataset",
        name=f"{run.settings.experiment}{suffix}",
        digest=manifest["data"]["digest"],
        source="arrays in memory",
        profile=manifest["data"]["profile"],
        context="training",
    )
