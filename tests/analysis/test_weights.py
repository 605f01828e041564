"""A run's weights in a model: all of them, as the fit left them, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import xptrain
from tests.examples import X, small, variable_digests
from tests.recorded_runs import MadeRun, make_run
from xptrain.training.keras_backend.variables import build, records


def leaves_of(model: Any) -> dict[str, Any]:
    return {record.key: record.variable.value.copy() for record in records(model)}


@pytest.fixture
def trained() -> Any:
    keras.utils.set_random_seed(1)
    model = small(None, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))
    build(model, lambda: (X[:2], np.zeros((2, 1), "float32")))
    return model


@pytest.fixture
def run(isolated_home: Path, trained: Any) -> MadeRun:
    leaves = leaves_of(trained)
    end = {"end/model/0.dense/bias": np.full(3, 9, "float32"), "host/0": np.zeros(4, "uint8")}
    made = make_run(isolated_home).attempt()
    made.checkpoint(4, epoch=1, leaves=leaves)
    return made.checkpoint(8, epoch=2, leaves={**leaves, **end}, done=True)


def other(**compiled: Any) -> Any:
    keras.utils.set_random_seed(2)
    return small(None, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), **compiled)


def of_the_model(model: Any) -> dict[str, str]:
    return {key: digest for key, digest in variable_digests(model).items() if key.startswith("model/")}


def test_a_checkpoint_inside_the_fit_gives_its_weights(run: MadeRun, trained: Any) -> None:
    model = other()
    assert xptrain.load_weights(model, "@last", step=4) == 4
    assert of_the_model(model) == of_the_model(trained)


def test_the_newest_one_gives_the_weights_as_the_fit_left_them(run: MadeRun, trained: Any) -> None:
    model = other()
    assert xptrain.load_weights(model, run) == 8
    assert np.array_equal(model.layers[0].bias, [9, 9, 9])
    assert np.array_equal(model.layers[0].kernel, trained.layers[0].kernel)


def test_optimizer_and_metrics_are_left_alone_and_need_not_be_there(run: MadeRun) -> None:
    model = other()
    build(model, lambda: (X[:2], np.zeros((2, 1), "float32")))
    model.optimizer.iterations.assign(77)
    xptrain.load_weights(model, run)
    assert int(model.optimizer.iterations) == 77
    bare = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    assert xptrain.load_weights(bare, run) == 8


def test_the_loaded_model_trains_on(run: MadeRun) -> None:
    model = other()
    xptrain.load_weights(model, run)
    xptrain.Trainer(model).fit(X, np.zeros((40, 1), "float32"), epochs=1, verbose=0)
    again = other()
    xptrain.load_weights(again, run)
    assert np.array_equal(again.layers[0].bias, [9, 9, 9])


def test_another_model_is_refused_and_keeps_its_weights(run: MadeRun) -> None:
    model = small()
    before = variable_digests(model)
    with pytest.raises(xptrain.RestoreMismatchError) as caught:
        xptrain.load_weights(model, run)
    assert "the checkpoint has it, the model does not" in str(caught.value)
    assert "layers of the run's model" in str(caught.value)
    assert variable_digests(model) == before


def test_an_unbuilt_model_is_refused(run: MadeRun) -> None:
    with pytest.raises(xptrain.NotCompiledError, match="not built"):
        xptrain.load_weights(keras.Sequential([keras.layers.Dense(1)]), run)


def test_a_damaged_checkpoint_is_passed_over_and_stays_where_it_is(run: MadeRun) -> None:
    newest = run.folder.checkpoints / "000000000008"
    (newest / "host" / "metadata").write_text("{}")
    with pytest.warns(UserWarning, match="step 8 is damaged"):
        assert xptrain.load_weights(other(), run) == 4
    assert newest.is_dir()
    with pytest.raises(xptrain.CheckpointDamagedError):
        xptrain.load_weights(other(), run, step=8)


def test_no_checkpoint(run: MadeRun, isolated_home: Path) -> None:
    with pytest.raises(xptrain.CheckpointNotFoundError, match="step 5"):
        xptrain.load_weights(other(), run, step=5)
    make_run(isolated_home, "bbbb0002").attempt()
    with pytest.raises(xptrain.CheckpointNotFoundError, match="has no checkpoint"):
        xptrain.load_weights(other(), "bbbb")


def test_normalization_uses_the_loaded_statistics(isolated_home: Path) -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((2,)), keras.layers.Normalization()])

    adapted = make()
    adapted.layers[0].adapt(np.asarray([[1.0, 5.0], [3.0, 9.0]], "float32"))
    adapted.compile("sgd", "mse")
    make_run(isolated_home).attempt().checkpoint(1, epoch=1, leaves=leaves_of(adapted))
    fresh = make()
    xptrain.load_weights(fresh, "@last")
    x = np.asarray([[2.0, 7.0]], "float32")
    assert np.array_equal(fresh.predict(x, verbose=0), adapted.predict(x, verbose=0))
