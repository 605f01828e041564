"""What every test gets: the JAX backend, a home of its own, and children that find the package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# Keras reads its backend once, at its import; child processes inherit both settings.
os.environ["KERAS_BACKEND"] = "jax"
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
)
# Most of the suite's time would be compilation of the same small programs, here and in child processes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# XLA logs a false alarm about CPU features for each cached program, at error level.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

hypothesis.settings.register_profile("xptrain", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("xptrain")

# What a scheduler or a tracking set-up leaves in the environment would name, join or resume a run.
LEAKS = ("XPTRAIN_", "MLFLOW_", "SLURM_", "PBS_", "LSB_", "JOB_ID", "TF_CONFIG")


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own XPTRAIN_HOME and nothing of the machine's tracking or job settings."""
    for name in list(os.environ):
        if name.startswith(LEAKS):
            monkeypatch.delenv(name)
    home = tmp_path / "xptrain-home"
    monkeypatch.setenv("XPTRAIN_HOME", str(home))
    return home


@pytest.fixture
def no_keras_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Keras's own loops raise, so that a test shows which loop ran."""
    import keras

    def refuse(name: str) -> Callable[..., None]:
        def loop(*args: object, **kwargs: object) -> None:
            raise AssertionError(f"keras.Model.{name} was called: xptrain runs its own loop")

        return loop

    for name in ("fit", "evaluate"):
        monkeypatch.setattr(keras.Model, name, refuse(name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker is left alone with one at the end."""
    first = ("test_killed_runs.py", "test_meshes.py", "test_demo.py")
    items.sort(key=lambda item: first.index(item.path.name) if item.path.name in first else len(first))
