"""Known causes of wrong or wandering numbers, how each is seen, and what helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from xptrain.provenance.canary import Canary
from xptrain.provenance.flags import is_true, xla_flags

Severity = Literal["wrong", "wandering", "info"]

YNN_FLAG: Final = "--xla_cpu_experimental_ynn_fusion_type"


@dataclass(frozen=True)
class Facts:
    """What hazards are recognised by.

    Args:
        env: Environment variables of the process.
        versions: Installed version by normal package name.
        platform: Platform of the devices: `cpu`, `gpu`, `tpu`.
        canary: What the canary found; None when it was not run.
    """

    env: Mapping[str, str]
    versions: Mapping[str, str]
    platform: str = "cpu"
    canary: Canary | None = None


@dataclass(frozen=True)
class Hazard:
    """One known cause.

    Args:
        id: Short name that never changes.
        title: What goes wrong, in one line.
        remedy: What the user can do.
        source: Public address of the report or documentation.
        detect: Returns (severity, evidence) when the facts show it, else None.
    """

    id: str
    title: str
    remedy: str
    source: str
    detect: Callable[[Facts], tuple[Severity, str] | None]


@dataclass(frozen=True)
class Hit:
    """A hazard that was recognised here. `wrong` and `wandering` lower the grade; `info` is only told."""

    id: str
    title: str
    severity: Severity
    evidence: str
    remedy: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Return the hit as JSON, for the manifest."""
        return asdict(self)


def check(
    env: Mapping[str, str],
    versions: Mapping[str, str],
    *,
    platform: str = "cpu",
    run_canary: Callable[[], Canary] | None = None,
) -> list[Hit]:
    """Look for every known hazard.

    Args:
        env: Environment of the process.
        versions: Installed version by normal package name.
        platform: Platform of the devices.
        run_canary: `canary.run_canary`, which starts the backend; None to look at versions and flags only.

    Returns:
        The hazards that are present, worst first.

    Example:
        >>> [hit.id for hit in check({"PYTHONHASHSEED": "0"}, {"jaxlib": "0.10.2"})]
        ['jaxlib-cpu-wrong-sums']
    """
    facts = Facts(env, versions, platform, run_canary() if run_canary else None)
    hits = []
    for hazard in HAZARDS:
        seen = hazard.detect(facts)
        if seen:
            hits.append(Hit(hazard.id, hazard.title, seen[0], seen[1], hazard.remedy, hazard.source))
    return sorted(hits, key=lambda hit: ("wrong", "wandering", "info").index(hit.severity))


def _cpu_sums(facts: Facts) -> tuple[Severity, str] | None:
    version = facts.versions.get("jaxlib", "")
    if facts.platform != "cpu" or not re.fullmatch(r"0\.10\.2(?:\W.*)?|0\.11\..*", version):
        return None
    evidence = f"jaxlib {version}"
    errs = facts.canary is not None and bool(facts.canary.wrong)
    setting = xla_flags(facts.env).get(YNN_FLAG)
    if setting in ("", "-reduce") and not errs:
        return "info", f"{evidence}, cured by {YNN_FLAG}={setting}"
    return "wrong", evidence + (f"; {facts.canary.evidence}" if facts.canary and errs else "")


def _canary(facts: Facts) -> tuple[Severity, str] | None:
    return ("wrong", facts.canary.evidence) if facts.canary and facts.canary.wrong else None


def _gpu_eager(facts: Facts) -> tuple[Severity, str] | None:
    version = facts.versions.get("jaxlib", "")
    return (
        ("info", f"jaxlib {version} on a GPU")
        if facts.platform == "gpu" and version.startswith("0.11.")
        else None
    )


def _gpu_ops(facts: Facts) -> tuple[Severity, str] | None:
    flags = xla_flags(facts.env)
    deterministic = any(
        is_true(flags.get(name))
        for name in ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")
    )
    return (
        None
        if facts.platform != "gpu" or deterministic
        else ("wandering", "no deterministic flag in XLA_FLAGS")
    )


def _gpu_autotune(facts: Facts) -> tuple[Severity, str] | None:
    flags = xla_flags(facts.env)
    fixed = (
        is_true(flags.get("--xla_gpu_deterministic_ops"))
        or flags.get("--xla_gpu_autotune_level") == "0"
        or "--xla_gpu_load_autotune_results_from" in flags
    )
    return (
        None if facts.platform != "gpu" or fixed else ("info", "autotuning is on, its results are not kept")
    )


def _hash_seed(facts: Facts) -> tuple[Severity, str] | None:
    value = facts.env.get("PYTHONHASHSEED", "")
    return ("info", f"PYTHONHASHSEED is {value or 'not set'}") if value in ("", "random") else None


HAZARDS: Final = (
    Hazard(
        "jaxlib-cpu-wrong-sums",
        "this jaxlib computes wrong sums on CPU, differently from call to call",
        f"pip install 'jaxlib!=0.10.2,!=0.11.*', or set XLA_FLAGS={YNN_FLAG}= before JAX starts",
        "https://github.com/tensorflow/tensorflow/issues/126812, https://github.com/jax-ml/jax/issues/39103",
        _cpu_sums,
    ),
    Hazard(
        "canary-wrong-sums",
        "a sum whose value is known came out wrong in this process",
        "use another jaxlib or other XLA flags; nothing computed here can be trusted",
        "https://github.com/tensorflow/tensorflow/issues/126812",
        _canary,
    ),
    Hazard(
        "gpu-nondeterministic-ops",
        "scatters, convolutions and products on a GPU may differ from call to call",
        "XLA_FLAGS=--xla_gpu_deterministic_ops=true, set before JAX starts",
        "https://github.com/jax-ml/jax/issues/13672, https://github.com/openxla/xla/pull/15229",
        _gpu_ops,
    ),
    Hazard(
        "gpu-autotuning",
        "another process may choose other GPU kernels for the same program",
        "XLA_FLAGS=--xla_gpu_deterministic_ops=true, or keep the compilation cache with the run",
        "https://github.com/openxla/xla/pull/15229",
        _gpu_autotune,
    ),
    Hazard(
        "gpu-eager-kernels",
        "jaxlib 0.11.x was reported to give wrong eager results on some GPUs",
        "use another jaxlib; the canary looks for it",
        "https://github.com/jax-ml/jax/issues/40633",
        _gpu_eager,
    ),
    Hazard(
        "hash-seed",
        "the order of Python sets of strings differs from process to process",
        "PYTHONHASHSEED=0 if the order of a set can reach your data or model",
        "https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED",
        _hash_seed,
    ),
)
