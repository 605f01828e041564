"""Compares where two attempts run: machine, environment, flags, devices, topology, JAX and Keras settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from xptrain.provenance.diff.difference import Category, Difference, Severity
from xptrain.provenance.diff.text import items, show

Section = Mapping[str, Any]

# Variables that reach the numbers by no other recorded way; of the rest the effect itself is compared.
_MOVING_VARIABLES: Final = (
    "NVIDIA_TF32_OVERRIDE",
    "TF_",
    "CUBLAS",
    "CUDNN_",
    "NCCL_",
    "MIOPEN_",
    "LIBTPU_",
    "KERAS_BACKEND",
    "PYTHONOPTIMIZE",
)
_HARMLESS_FLAGS: Final = (
    "--xla_dump_",
    "--xla_hlo_profile",
    "--xla_cpu_collective",
    "--xla_gpu_collective_call",
)
SHARDING: Final = "sharding of the variables"
_DEVICE_COUNT: Final = "--xla_force_host_platform_device_count"


def _machine(old: Section, new: Section) -> list[Difference]:
    found = []
    for name, severity, note in (
        ("host", "tell", ""),
        ("system", "tell", ""),
        ("arch", "refuse", ""),
        ("memory", "tell", ""),
    ):
        if old[name] != new[name]:
            found.append(_of("devices", name, old[name], new[name], severity, note))
    if old["cpu"] != new["cpu"]:
        same = old["cpu"]["features"] == new["cpu"]["features"]
        texts = [f"{side['cpu']['model']} ({side['cpu']['features'][:8]})" for side in (old, new)]
        note = "" if same else "XLA compiles for the features of the CPU it finds"
        found.append(Difference("devices", "CPU", texts[0], texts[1], "tell" if same else "refuse", note))
    a, b = old["cores"], new["cores"]
    if a["threads"] != b["threads"]:
        note = f"sums are split over the cores; NPROC={a['threads']} gives the old number of threads"
        found.append(Difference("devices", "cores", show(a["threads"]), show(b["threads"]), "refuse", note))
    elif a["usable"] != b["usable"]:
        found.append(
            _of("devices", "cores (usable)", a["usable"], b["usable"], "tell", "NPROC keeps XLA's threads")
        )
    return found


def _flags(old: Section, new: Section) -> list[Difference]:
    found = []
    for name, a, b in items(old, new):
        category: Category = "topology" if name == _DEVICE_COUNT else "config"
        severity = "tell" if name.startswith(_HARMLESS_FLAGS) else "refuse"
        found.append(_of(category, f"XLA_FLAGS {name}", a, b, severity))
    return found


def _environment(old: Section, new: Section) -> list[Difference]:
    return [
        _of("config", f"${name}", a, b, "refuse" if name.startswith(_MOVING_VARIABLES) else "tell")
        for name, a, b in items(old, new)
        if name != "XLA_FLAGS"
    ]


def _devices(old: Section, new: Section) -> list[Difference]:
    found = [
        _of("devices", name, old[name], new[name], severity)
        for name, severity in (("platform", "refuse"), ("platform_version", "refuse"), ("memory", "tell"))
        if old[name] != new[name]
    ]
    if sorted(old["kinds"]) != sorted(new["kinds"]):
        found.append(
            _of("devices", "device kind", ", ".join(old["kinds"]), ", ".join(new["kinds"]), "refuse")
        )
    for name, label in (
        ("count", "devices"),
        ("processes", "processes"),
        ("local_count", "devices of a process"),
    ):
        if old[name] != new[name]:
            found.append(_of("topology", label, old[name], new[name], "refuse"))
    return found


def _topology(old: Section, new: Section) -> list[Difference]:
    found = [
        _of("topology", name, old[name], new[name], "refuse")
        for name in ("mesh", "devices")
        if old[name] != new[name]
    ]
    if old.get("digest") != new.get("digest"):
        digests = [str(side.get("digest"))[:12] for side in (old, new)]
        found.append(Difference("topology", SHARDING, digests[0], digests[1], "refuse"))
    return found


def _settings(label: str) -> Any:
    def compare(old: Section, new: Section) -> list[Difference]:
        return [_of("config", f"{label} {name}", a, b, "refuse") for name, a, b in items(old, new)]

    return compare


def _of(category: Category, name: str, old: Any, new: Any, severity: Any, note: str = "") -> Difference:
    level: Severity = severity
    return Difference(category, name, show(old), show(new), level, note)


def relax_host(found: list[Difference], before: Section, after: Section) -> list[Difference]:
    """Only tell of other host cores or CPU features when the model trains on an accelerator."""
    devices = after.get("devices") or before.get("devices") or {"platform": "cpu"}
    if devices["platform"] == "cpu":
        return found
    return [replace(d, severity="tell") if d.name in ("CPU", "cores", "arch") else d for d in found]


SECTIONS: Final[Mapping[str, Any]] = {
    "machine": _machine,
    "flags": _flags,
    "environment": _environment,
    "devices": _devices,
    "topology": _topology,
    "jax_config": _settings("jax"),
    "keras_config": _settings("keras"),
}
