"""The same bits as keras.Model.fit, with the same order of the batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from xptrain.training.trainer import Trainer

KERAS_FIT = keras.Model.fit
KERAS_EVALUATE = keras.Model.evaluate

CASES: dict[str, dict[str, Any]] = {
    "plain": {"epochs": 2, "batch_size": 8},
    "partial batch": {"epochs": 2, "batch_size": 16},
    "validation data": {"epochs": 3, "batch_size": 8, "validation_data": (X[:8], Y[:8])},
    "validation split": {"epochs": 2, "batch_size": 8, "validation_split": 0.2, "validation_freq": 2},
    "sample weight": {"epochs": 1, "batch_size": 8, "sample_weight": np.linspace(0, 1, 40)},
    "steps per epoch": {"epochs": 3, "batch_size": 8, "steps_per_epoch": 3},
    "initial epoch": {"epochs": 3, "initial_epoch": 1, "batch_size": 8},
}
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd ema": lambda: keras.optimizers.SGD(0.01, momentum=0.9, use_ema=True),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)),
}


def both(make: Any, **arguments: Any) -> tuple[Any, Any]:
    """Train twins, one with Keras and one with us, and return (digests, history) of each."""
    results = []
    for train in (
        lambda model, **kw: keras_fit(model, **kw),
        lambda model, **kw: Trainer(model, seed=0).fit(**kw),
    ):
        keras.utils.set_random_seed(1)
        model = make()
        callbacks = [
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=1.0),
            keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True),
        ]
        given = {"x": X, "y": Y, "shuffle": False, "verbose": 0, "callbacks": callbacks, **arguments}
        history = train(model, **given)
        results.append((variable_digests(model), history.history, history.epoch))
    return results[0], results[1]


def keras_fit(model: Any, **arguments: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "fit", KERAS_FIT)
        patch.setattr(keras.Model, "evaluate", KERAS_EVALUATE)
        return model.fit(**arguments)


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("case", CASES)
def test_same_bits_as_keras(case: str) -> None:
    theirs, ours = both(dropout_model, **CASES[case])
    assert ours == theirs


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_bits_with_each_optimizer(optimizer: str) -> None:
    theirs, ours = both(lambda: dropout_model(OPTIMIZERS[optimizer]()), epochs=2, batch_size=8)
    assert ours == theirs


class Wide(keras.Model):
    """A subclass that nobody has built, with a train step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3, activation="tanh")
        self.drop = keras.layers.Dropout(0.3)
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.last(self.drop(self.hidden(inputs), training=training))

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "twice": 2 * logs["loss"]}, state


def wide(optimizer: Any) -> Any:
    model = Wide()
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def mixed(optimizer: Any) -> Any:
    with_policy = [
        keras.Input((4,)),
        keras.layers.Dense(3, dtype="mixed_float16"),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential(with_policy)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0), "mse")
    return model


def eager(optimizer: Any) -> Any:
    return dropout_model_with(optimizer, run_eagerly=True)


def unjitted(optimizer: Any) -> Any:
    return dropout_model_with(optimizer, jit_compile=False)


def dropout_model_with(optimizer: Any, **compiled: Any) -> Any:
    return small(optimizer, keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), **compiled)


def several(optimizer: Any) -> Any:
    return dropout_model_with(optimizer, steps_per_execution=3, loss_weights=[2.0])


MODELS = {"subclass": wide, "mixed": mixed, "eager": eager, "no jit": unjitted, "in chunks": several}
MORE_OPTIMIZERS = {
    name: getattr(keras.optimizers, name)
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adamax", "AdamW", "Ftrl", "Lamb", "Lion", "Muon")
} | {
    "RMSprop with EMA": lambda rate: keras.optimizers.RMSprop(
        rate, use_ema=True, ema_overwrite_frequency=3, clipnorm=1.0
    ),
    "accumulated Nadam": lambda rate: keras.optimizers.Nadam(rate, gradient_accumulation_steps=2),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "class weight": {"batch_size": 12, "class_weight": {0: 1.0, 1: 0.5}},
    "validation": {"batch_size": 8, "validation_data": (X, Y, np.linspace(0, 2, 40)), "validation_steps": 2},
    "in the middle": {"batch_size": 8, "initial_epoch": 1, "steps_per_epoch": 4, "validation_freq": [2]},
}


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_grid_of_models_and_arguments(model: str, arguments: str) -> None:
    theirs, ours = both(
        lambda: MODELS[model](keras.optimizers.SGD(0.02, momentum=0.9)),
        y=(Y > 0).astype("float32"),
        epochs=3,
        **ARGUMENTS[arguments],
    )
    assert ours == theirs


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("optimizer", MORE_OPTIMIZERS)
def test_a_grid_of_optimizers(optimizer: str) -> None:
    theirs, ours = both(lambda: dropout_model_with(MORE_OPTIMIZERS[optimizer](0.01)), epochs=2, batch_size=12)
    assert ours == theirs


@pytest.mark.usefixtures("no_keras_fit")
@pytest.mark.parametrize("size", [3, 4])
def test_steps_per_execution_counts_every_step_once_case_13(size: int) -> None:
    seen: list[int] = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    model = small(steps_per_execution=size)
    Trainer(model, seed=0).fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[Count()])
    assert int(model.optimizer.iterations) == 10
    assert seen[-1] == 9


@pytest.mark.usefixtures("no_keras_fit")
def test_nested_inputs_and_outputs() -> None:
    def make() -> Any:
        a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
        joined = keras.layers.Concatenate()([a, b])
        outputs = {"p": keras.layers.Dense(1, name="p")(joined), "q": keras.layers.Dense(1, name="q")(joined)}
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile("adam", {"p": "mse", "q": "mae"}, metrics={"p": ["mae"], "q": ["mae"]})
        return model

    x = {"a": X[:, :2], "b": X[:, 2:]}
    y = {"p": Y, "q": -Y}
    keras.utils.set_random_seed(0)
    theirs = make()
    expected = keras_fit(theirs, x=x, y=y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    keras.utils.set_random_seed(0)
    ours = make()
    found = Trainer(ours).fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert found.history == expected.history
    assert variable_digests(ours) == variable_digests(theirs)


@pytest.mark.usefixtures("no_keras_fit")
def test_evaluate_and_predict_agree_with_keras() -> None:
    keras.utils.set_random_seed(0)
    model = dropout_model()
    Trainer(model, seed=0).fit(X, Y, epochs=1, verbose=0)
    before = variable_digests(model)
    ours = Trainer(model).evaluate(X, Y, batch_size=16)
    predicted = Trainer(model).predict(X, batch_size=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "evaluate", KERAS_EVALUATE)
        assert ours == model.evaluate(X, Y, batch_size=16, verbose=0)
    assert np.array_equal(predicted, model.predict(X, batch_size=16, verbose=0))
    changed = {k for k, v in variable_digests(model).items() if v != before[k]}
    assert all(key.startswith("metrics/") for key in changed)


@pytest.mark.usefixtures("no_keras_fit")
def test_callbacks_that_predict_or_test_inside_an_epoch() -> None:
    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.predict(X[:8], verbose=0)
            self.model.test_on_batch(X[:8], Y[:8])

    results = []
    for train in (keras_fit, lambda model, **arguments: Trainer(model, seed=0).fit(**arguments)):
        keras.utils.set_random_seed(1)
        model = dropout_model()
        arguments = {"x": X, "y": Y, "epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
        history = train(model, callbacks=[Look()], **arguments)
        results.append((variable_digests(model), history.history))
    assert results[1] == results[0]


@pytest.mark.usefixtures("no_keras_fit")
def test_the_fixture_does_stop_keras() -> None:
    with pytest.raises(AssertionError, match="own loop"):
        small().fit(X, Y)
