"""The shared fixtures do what their users rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_every_test_has_its_own_empty_home(isolated_home: Path, tmp_path: Path) -> None:
    assert os.environ["XPTRAIN_HOME"] == str(isolated_home)
    assert tmp_path in isolated_home.parents
    assert not isolated_home.exists()


def test_children_find_the_package_and_the_backend(tmp_path: Path) -> None:
    code = "import os, xptrain; print(os.environ['KERAS_BACKEND'], xptrain.__file__)"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    backend, file = printed.split()
    assert backend == "jax"
    assert Path(file) == Path(__file__).parents[1] / "xptrain" / "__init__.py"


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("loop", ["fit", "evaluate"])
def test_no_keras_fit_refuses_keras_loops(loop: str) -> None:
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(AssertionError, match=f"keras.Model.{loop} was called"):
        getattr(model, loop)([[0.0]], [[0.0]])


def test_keras_loops_are_back_afterwards() -> None:
    import keras

    assert "fit" not in vars(keras.Model)
