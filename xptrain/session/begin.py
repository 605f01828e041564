"""`run()`: where every run begins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from xptrain.checkpoint.policies import every, keep
from xptrain.session import readable
from xptrain.session.run import Run
from xptrain.session.settings import check

_CHECKPOINT = (every(epochs=1), keep(3))


def run(
    experiment: str,
    *,
    key: str | None = None,
    name: str | None = None,
    config: Any = None,
    seed: int | None = None,
    resume: str = "never",
    exactness: str = "same-topology",
    allow: str | Iterable[str] = (),
    checkpoint: Any = _CHECKPOINT,
    tags: Mapping[str, Any] | None = None,
    description: str | None = None,
    deterministic: bool = False,
    tracking_uri: str | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    preempt_on: str | Iterable[str] = ("SIGTERM", "SIGUSR1"),
    grace_s: float = 25.0,
) -> Run:
    """Describe an experiment run; `with` (or `.start()`) opens it.

    Args:
        experiment: Name of the MLflow experiment.
        key: Name of the run's folder; drawn when None.
        name: Name shown in MLflow; the key when None.
        config: Mapping, dataclass or pydantic model of plain values; read back as `run.config`.
        seed: Seed of everything random, 0 to 2**32 - 1; drawn and recorded when None.
        resume: "never" starts a run, an id resumes that one, "auto" resumes the run with this key, or the
            unfinished one of this job id (else: of this experiment, config and script), and starts one
            when there is none.
        exactness: Lowest grade to train with: "exact", "same-topology" or "any".
        allow: What may differ on a resume although it moves bits: code, config, data, packages, devices,
            topology, epochs, callbacks, hazards.
        checkpoint: When to save and what to keep: `every(...)`, `keep(...)`, `best(...)`.
        tags: MLflow tags.
        description: Text on the run's page.
        deterministic: True sets XLA's flags for deterministic GPU kernels as the run starts, which must be
            before JAX does: before any model or array is made. Other devices ignore them.
        tracking_uri: MLflow tracking URI; `MLFLOW_TRACKING_URI`, else a SQLite store in the home of all runs.
        checkpoint_dir: Folder for checkpoints; the run's own folder when None.
        preempt_on: Signals at which a fit finishes its step, saves, and ends the process with 128 plus the
            signal's number. Ctrl-C does the same, with KeyboardInterrupt. A handler of your own stays.
        grace_s: Seconds from such a signal to the end of the process, also when a compile takes longer.

    Returns:
        A `Run`, a context manager.

    Raises:
        UsageError: If an argument cannot be used.
        ConfigError: If the config cannot be recorded.
        BackendError: If Keras does not run on JAX.

    Example:
        >>> with xptrain.run("digits", seed=0, config={"lr": 1e-3}) as run:  # doctest: +SKIP
        ...     model.compile(keras.optimizers.Adam(run.config.lr), "mse")
        ...     run.fit(model, x, y, epochs=20)
    """
    readable.install()
    return Run(
        check(
            experiment,
            key=key,
            name=name,
            config=config,
            seed=seed,
            resume=resume,
            exactness=exactness,
            allow=allow,
            checkpoint=checkpoint,
            tags=tags,
            description=description,
            tracking_uri=tracking_uri,
            checkpoint_dir=checkpoint_dir,
            preempt_on=preempt_on,
            grace_s=grace_s,
            deterministic=deterministic,
        )
    )
