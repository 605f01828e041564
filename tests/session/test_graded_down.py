"""A grade that falls while a run trains: what is there is saved first, and stays said."""

from __future__ import annotations

from typing import Any

import keras
import pytest

import xptrain
from tests.examples import X, Y, small
from tests.session.conftest import Runs
from xptrain.errors import InexactError


class Helper:
    level = 0.0

    def __init__(self) -> None:
        self.level = 1.0

    def raised(self) -> float:
        return self.level * 2


class Raises(keras.callbacks.Callback):
    """Raises the level in the first epoch only, out of a checkpoint's sight."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            self.model.helper.inner.level = self.model.helper.inner.raised()


def train(runs: Runs, key: str, stop: Any = None, **opened: Any) -> Any:
    with runs.open(key, **opened) as run:
        model = small()
        model.helper = Helper()
        model.helper.inner = Helper()
        callbacks = [Raises(), *([] if stop is None else [stop])]
        run.fit(model, X, Y, epochs=4, batch_size=8, verbose=0, callbacks=callbacks)
        return run


def test_a_run_that_is_refused_while_it_trains_is_saved_first(runs: Runs) -> None:
    with pytest.raises(InexactError, match=r"helper\.inner\.level"):
        train(runs, "strict")
    assert runs.status("strict") == "FAILED"
    run = train(runs, "strict", resume=True, exactness="any")
    assert run.step == 20
    assert runs.tags("strict")["xptrain.attempt.2.from_step"] == "5"
    # It does not change in this attempt: what the first one lost is still missing.
    assert "helper.inner.level" in runs.tags("strict")["xptrain.grade"]


def test_what_an_attempt_lost_stays_in_the_grade(runs: Runs, stop_at: Any) -> None:
    with pytest.raises(RuntimeError, match="stopped by the test"):
        train(runs, "cut", stop_at(13), exactness="any", checkpoint=xptrain.every(epochs=1))
    train(runs, "cut", stop_at(-1), resume=True, exactness="any", checkpoint=xptrain.every(epochs=1))
    assert runs.tags("cut")["xptrain.attempt.2.from_step"] == "10"
    assert runs.tags("cut")["xptrain.grade"].startswith("approximate: model.helper.inner.level")


def test_a_csv_logger_whose_rows_are_all_cut_off_lowers_nothing(
    runs: Runs, stop_at: Any, tmp_path: Any
) -> None:
    def logged(name: str, batches: int, **opened: Any) -> str:
        path = tmp_path / f"{name}.csv"
        with runs.open(name, checkpoint=xptrain.every(steps=4), **opened) as run:
            callbacks = [keras.callbacks.CSVLogger(str(path)), stop_at(batches)]
            run.fit(small(), X, Y, epochs=2, batch_size=8, verbose=0, callbacks=callbacks)
        return path.read_text()

    with pytest.raises(RuntimeError, match="stopped by the test"):
        logged("cut", 7)
    assert logged("cut", -1, resume=True) == logged("straight", -1)
    assert runs.tags("cut")["xptrain.attempt.2.from_step"] == "4"
    assert runs.tags("cut")["xptrain.grade"].startswith("exact")
