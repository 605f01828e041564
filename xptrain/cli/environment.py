"""`xptrain env`: what is captured about this machine, its hazards, and what changed since a run."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.text import Text

from xptrain.analysis.reading import read
from xptrain.cli import console
from xptrain.errors import UsageError
from xptrain.provenance import canary, devices, environment, flags, hazards, machine, packages
from xptrain.provenance.diff.compare import compare
from xptrain.provenance.diff.difference import Difference
from xptrain.tracking.finding import find, home


def show_environment(name: str | None, as_json: bool) -> None:
    """Print what is captured here; with a run, what it recorded and where that differs."""
    before = None
    if name is not None:
        folder = find(name, home())
        before = read(folder).manifest()
        if not before:
            raise UsageError(f"run {folder.key} has recorded nothing yet", found="no manifest")
    now = capture(before)
    differences = compare(_comparable(before), now) if before else []
    if as_json:
        told = [vars(difference) for difference in differences]
        console.print_json(
            {"now": now, **({"recorded": _comparable(before), "differences": told} if before else {})}
        )
        return
    if before is None:
        _print(now)
    else:
        _print_differences(str(name), before, differences)


def capture(recorded: dict[str, Any] | None = None) -> dict[str, Any]:
    """Capture this process's packages, machine, settings, devices and hazards. Starts the JAX backend.

    Args:
        recorded: A manifest whose environment `xptrain resume` would apply again; None for this one's.

    Returns:
        The sections of a manifest that do not depend on a script.
    """
    # XLA logs a false alarm about CPU features for each program that it takes from a cache.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    env = dict(os.environ)
    if recorded:
        # Before JAX starts, so that flags and devices are seen as a resume would see them.
        env = environment.resume_environment(recorded["environment"], env)
        for name in set(os.environ) - set(env):
            del os.environ[name]
        os.environ.update(env)
    installed = packages.capture_packages()
    installed.pop("requirements")
    found = devices.capture_devices()
    versions = installed["installed"]
    hits = hazards.check(env, versions, platform=found["platform"], run_canary=canary.run_canary)
    return {
        "packages": installed,
        "machine": machine.capture_machine(env),
        "environment": environment.environment(env),
        "flags": flags.xla_flags(env),
        "devices": found,
        "jax_config": devices.capture_jax_config(),
        "hazards": [hit.as_json() for hit in hits],
    }


def _comparable(manifest: dict[str, Any] | None) -> dict[str, Any]:
    sections = ("packages", "machine", "environment", "flags", "devices", "jax_config", "hazards")
    return {name: (manifest or {})[name] for name in sections if name in (manifest or {})}


def _print(now: dict[str, Any]) -> None:
    out, host = console.out(), now["machine"]
    found, python = now["devices"], now["packages"]["python"]
    cores = host["cores"]
    out.print(console.heading("Machine"))
    rows = {
        "host": f"{host['host']}, {host['system']}, {host['arch']}",
        "CPU": host["cpu"]["model"],
        "cores": f"{cores['usable']} usable of {cores['logical']}; XLA takes {cores['threads']} threads",
        "memory": f"{host['memory'] / 2**30:.1f} GiB",
        "devices": ", ".join(f"{count} x {kind}" for kind, count in found["kinds"].items()),
        "Python": f"{python['implementation']} {python['version']}, {sys.executable}",
    }
    out.print(console.facts(rows))
    _print_section("Packages that move bits", now["packages"]["bit_movers"])
    _print_section("Environment that moves bits", now["environment"])
    _print_section("XLA flags", now["flags"])
    out.print()
    out.print(console.heading("Hazards"))
    _print_hazards(now["hazards"])


def _print_section(title: str, rows: dict[str, Any]) -> None:
    if rows:
        console.out().print()
        console.out().print(console.heading(title))
        console.out().print(console.facts({name: str(value) or "(empty)" for name, value in rows.items()}))


def _print_hazards(hits: list[dict[str, Any]]) -> None:
    for hit in hits:
        style = {"wrong": "red", "wandering": "yellow"}.get(hit["severity"], "dim")
        console.out().print(Text(f"  {hit['severity']}: ", style) + Text(hit["title"]))
        rows = {"  seen": hit["evidence"], "  remedy": hit["remedy"], "  source": hit["source"]}
        console.out().print(console.facts(rows))
    if not any(hit["severity"] != "info" for hit in hits):
        console.out().print(
            "  no known cause of wrong numbers here, and the canary's sums came out right", style="green"
        )


def _print_differences(name: str, before: dict[str, Any], differences: list[Difference]) -> None:
    out = console.out()
    if before["code"]["interpreter"] != sys.executable:
        note = f"the run used {before['code']['interpreter']}; compared is {sys.executable}"
        out.print(note, style="yellow", soft_wrap=True)
    if not differences:
        out.print(f"nothing that moves bits changed on this machine since run {name}")
        return
    table = console.table("WHAT", "RECORDED", "NOW", "RESUME")
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for difference in differences:
        refused = difference.severity == "refuse"
        verdict = Text(f"refuses; --allow {difference.category}", "red") if refused else Text("tells", "dim")
        table.add_row(difference.name, difference.before, difference.after, verdict)
        if difference.note:
            table.add_row(Text(f"  {difference.note}", "dim"))
    out.print(table)
