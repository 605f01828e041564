"""What `run()` was asked for, checked."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from xptrain.checkpoint.policies import Policy
from xptrain.errors import UsageError
from xptrain.provenance.diff.difference import check_allow
from xptrain.provenance.grade import check_exactness
from xptrain.session.config import to_json
from xptrain.session.preemption import check_grace, check_signals

_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Settings:
    """The arguments of `run()`, checked and in plain form; see there."""

    experiment: str
    key: str | None
    name: str | None
    config: dict[str, Any] | None
    seed: int | None
    resume: str
    exactness: str
    allow: frozenset[str]
    policy: Policy
    tags: dict[str, str]
    description: str | None
    tracking_uri: str | None
    checkpoint_dir: Path | None
    preempt_on: tuple[signal.Signals, ...]
    grace_s: float
    deterministic: bool


def check(
    experiment: str,
    *,
    key: str | None,
    name: str | None,
    config: Any,
    seed: int | None,
    resume: str,
    exactness: str,
    allow: str | Iterable[str],
    checkpoint: Any,
    tags: Mapping[str, Any] | None,
    description: str | None,
    tracking_uri: str | None,
    checkpoint_dir: Any,
    preempt_on: str | Iterable[str],
    grace_s: float,
    deterministic: bool,
) -> Settings:
    """Return the settings, or raise UsageError for the first argument that cannot be."""
    if not isinstance(experiment, str) or not experiment.strip():
        raise UsageError(
            "run() needs the name of an experiment",
            expected="a text that is not empty",
            found=repr(experiment),
            remedy='for example xptrain.run("digits")',
        )
    check_key(key)
    if not isinstance(resume, str) or not resume:
        raise UsageError(
            "resume= cannot be used", expected='"never", "auto" or the id of a run', found=repr(resume)
        )
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**32):
        raise UsageError(
            "the seed cannot be used", expected="an integer from 0 to 4294967295, or None", found=repr(seed)
        )
    if not isinstance(deterministic, bool):
        raise UsageError("deterministic= cannot be used", expected="True or False", found=repr(deterministic))
    return Settings(
        experiment=experiment,
        key=key,
        name=name,
        config=None if config is None else to_json(config),
        seed=seed,
        resume=resume,
        exactness=check_exactness(exactness),
        allow=check_allow(allow) | allowed_by_command(),
        policy=Policy(checkpoint),
        tags={str(tag): str(value) for tag, value in (tags or {}).items()},
        description=description,
        tracking_uri=tracking_uri,
        checkpoint_dir=None if checkpoint_dir is None else Path(checkpoint_dir).expanduser().absolute(),
        preempt_on=check_signals(preempt_on),
        grace_s=check_grace(grace_s),
        deterministic=deterministic,
    )


def check_key(key: Any) -> None:
    """Raise UsageError unless a key that the user chose, or None, can name a run's folder."""
    if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise UsageError(
            "the key cannot be used",
            expected="1 to 64 lower-case letters, digits, _ or -, beginning with a letter or digit",
            found=repr(key),
            remedy="choose another key, or leave it out to get a new one",
        )


@cache
def allowed_by_command() -> frozenset[str]:
    """Return what `xptrain resume --allow` lets pass for every run of this process.

    It comes in XPTRAIN_ALLOW, which is taken away so that no child process inherits it.
    """
    names = os.environ.pop("XPTRAIN_ALLOW", "").split(",")
    return check_allow(name.strip() for name in names if name.strip())
