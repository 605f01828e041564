"""An attempt that finds no checkpoint must begin with the values with which the first one began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

import xptrain
from tests.examples import X, Y, small
from tests.session.conftest import Runs
from xptrain.errors import ChangedError

LATE = (xptrain.every(epochs=9),)


def attempt(runs: Runs, make: Callable[[], Any], *callbacks: Any, **more: Any) -> Any:
    with runs.open("over", checkpoint=LATE, **more) as run:
        model = make()
        run.fit(model, X, Y, epochs=1, batch_size=8, verbose=0, callbacks=list(callbacks))
        return run


def test_a_file_that_the_first_attempt_had_not_is_noticed(
    runs: Runs, stop_at: Callable[[int], Any], tmp_path: Path
) -> None:
    file = tmp_path / "last.weights.h5"

    def make() -> Any:
        model = small()
        if file.exists():
            model.load_weights(file)
        return model

    def keeper() -> Any:
        return keras.callbacks.ModelCheckpoint(str(file), save_weights_only=True, save_freq=1)

    with pytest.raises(RuntimeError):
        attempt(runs, make, keeper(), stop_at(3))
    with pytest.raises(ChangedError, match="initial values") as refused:
        attempt(runs, make, keeper(), stop_at(10**6), resume=True)
    assert "load nothing that the run itself writes" in str(refused.value)
    run = attempt(runs, make, keeper(), stop_at(10**6), resume=True, allow="code")
    assert run.grade.level == "approximate"


def test_a_start_over_with_the_same_values_is_none_of_that(runs: Runs, stop_at: Callable[[int], Any]) -> None:
    with pytest.raises(RuntimeError):
        attempt(runs, small, stop_at(3))
    assert attempt(runs, small, stop_at(10**6), resume=True).grade.level == "exact"
