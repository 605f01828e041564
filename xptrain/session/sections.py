"""Parts of a run's record that are made from a fit's plan and its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from xptrain.provenance.hazards import Hit
from xptrain.provenance.summary import hazard_table
from xptrain.session.config import flatten
from xptrain.session.manifests import train_program
from xptrain.training.observer import Plan


def fit_section(plan: Plan) -> dict[str, Any]:
    """Return the manifest's section on a fit: what a resumed one must have, too."""
    return {
        "epochs": plan.epochs,
        "initial_epoch": plan.initial_epoch,
        "validation": None if plan.validation is None else dict(plan.validation),
        **plan.settings,
    }


def params(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return what people compare; MLflow's compare page shows params only.

    Args:
        manifest: The attempt's manifest.
    """
    model = manifest["model"]
    versions = manifest["packages"]["installed"]
    flat = {
        "epochs": manifest["fit"]["epochs"],
        "batch_size": manifest["order"].get("batch_size"),
        "samples": manifest["order"].get("num_samples"),
        "shuffle": manifest["order"].get("shuffle"),
        "model": model["class"],
        "params": model["params"],
        "loss": model["loss"],
        **flatten({"optimizer": model["optimizer"] or {}}),
        "data": manifest["data"]["digest"][:12],
        "program": (train_program(manifest) or "not compiled")[:12],
        "keras": versions.get("keras"),
        "jax": versions.get("jax"),
        "jaxlib": versions.get("jaxlib"),
        "commit": (manifest["code"]["git"].get("commit") or "none")[:12],
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat.items()}


def hazards_text(hits: Sequence[Mapping[str, Any]]) -> str:
    """Return the hazards of a manifest as the text file that is kept of them."""
    return hazard_table([Hit(**hit) for hit in hits]) + "\n"
