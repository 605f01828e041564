"""Strict restore: keys that do not depend on names, all variables or none, buffers of their own."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from xptrain.errors import RestoreMismatchError
from xptrain.state.capture import capture_variables, without_aliases
from xptrain.state.digest import digest_array
from xptrain.state.restore import restore_variables
from xptrain.training.keras_backend.variables import build, finish_restore, records
from xptrain.training.step import train_step
from xptrain.training.trainer import Trainer


def trained(model: Any, epochs: int = 1) -> Any:
    Trainer(model, seed=0).fit(X, Y, epochs=epochs, batch_size=8, verbose=0)
    return model


def leaves_of(model: Any) -> dict[str, np.ndarray]:
    return {key: np.asarray(leaf) for key, leaf in capture_variables(records(model)).items()}


def compiled(model: Any) -> Any:
    model.compile("adam", "mse", metrics=["mae"])
    build(model, lambda: (X[:8], Y[:8]))
    return model


def test_case_1_rebuilt_from_its_config() -> None:
    first = keras.Sequential(
        [keras.layers.Dense(3, name="d1"), keras.layers.Dropout(0.5), keras.layers.Dense(1)], name="net"
    )
    trained(compiled(first), epochs=3)
    again = compiled(keras.Sequential.from_config(first.get_config()))
    restore_variables(records(again), leaves_of(first))
    assert variable_digests(again) == variable_digests(first)


class Unbuilt(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [keras.layers.Dense(3, name="same"), keras.layers.Dense(3, name="same")]
        self.out = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        for layer in self.hidden:
            inputs = layer(inputs)
        return self.out(inputs)


@pytest.mark.parametrize("make", [small, dropout_model, lambda: compiled(Unbuilt())])
def test_case_2_the_second_model_of_a_process_gets_every_variable(make: Any) -> None:
    first, second = trained(make()), make()
    build(second, lambda: (X[:8], Y[:8]))
    paths = [{record.path for record in records(model)} for model in (first, second)]
    assert paths[0] != paths[1]
    assert [r.key for r in records(first)] == [r.key for r in records(second)]
    restore_variables(records(second), leaves_of(first))
    assert variable_digests(second) == variable_digests(first)


def test_case_3_same_metric_names_on_two_outputs() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    model.compile("adam", ["mse", "mse"], metrics=[["mae", "mae"], ["mae"]])
    build(model, lambda: (X[:8], (Y[:8], Y[:8])))
    keys = [record.key for record in records(model)]
    assert len(set(keys)) == len(keys)
    assert not any("/other." in key for key in keys)


def test_case_4_normalization_is_whole_after_a_restore() -> None:
    def make() -> Any:
        return compiled(
            keras.Sequential([keras.Input((4,)), keras.layers.Normalization(), keras.layers.Dense(1)])
        )

    first = make()
    first.layers[0].adapt(X * 3 + 1)
    trained(first)
    second = make()
    restore_variables(records(second), leaves_of(first))
    finish_restore(second)
    assert np.array_equal(first.predict(X, verbose=0), second.predict(X, verbose=0))


def test_freezing_a_layer_moves_a_role_and_no_key() -> None:
    model = small()
    model.build((None, 4))
    before = {r.key: r.role for r in records(model) if r.key.startswith("model/")}
    model.layers[0].trainable = False
    after = {r.key: r.role for r in records(model) if r.key.startswith("model/")}
    assert before.keys() == after.keys()
    assert before != after


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(amsgrad=True),
        lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True),
        lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True),
        lambda: keras.optimizers.Ftrl(),
        lambda: keras.optimizers.Nadam(),
        lambda: keras.optimizers.Adafactor(),
        lambda: keras.optimizers.Lion(),
        lambda: keras.optimizers.Lamb(),
        lambda: keras.optimizers.Muon(),
        lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    ],
)
def test_every_optimizer_variable_has_a_key_of_its_own(optimizer: Any) -> None:
    model = small(optimizer())
    build(model, lambda: (X[:8], Y[:8]))
    keys = [record.key for record in records(model)]
    assert len(set(keys)) == len(keys)
    assert not [key for key in keys if "/other." in key]
    assert sum(key.startswith("optimizer/") for key in keys) == len(model.optimizer.variables)


@pytest.mark.parametrize("fault", ["missing", "surplus", "shape", "dtype"])
def test_any_mismatch_writes_nothing_and_is_listed(fault: str) -> None:
    first, second = trained(small()), small()
    build(second, lambda: (X[:8], Y[:8]))
    leaves = leaves_of(first)
    key = "model/0.dense/kernel"
    if fault == "missing":
        del leaves[key]
    elif fault == "surplus":
        leaves["model/9.dense/kernel"] = leaves[key]
    elif fault == "shape":
        leaves[key] = leaves[key][:, :2]
    else:
        leaves[key] = leaves[key].astype("float16")
    before = variable_digests(second)
    with pytest.raises(RestoreMismatchError) as caught:
        restore_variables(records(second), leaves)
    assert ("model/9.dense/kernel" if fault == "surplus" else key) in str(caught.value)
    assert variable_digests(second) == before


def test_case_22_a_snapshot_owns_its_bytes() -> None:
    model = small()
    build(model, lambda: (X[:8], Y[:8]))
    captured = capture_variables(records(model))
    expected = {key: digest_array(leaf) for key, leaf in captured.items()}
    state: Any = (
        [v.value for v in model.trainable_variables],
        [v.value for v in model.non_trainable_variables],
        [v.value for v in model.optimizer.variables],
        [v.value for v in model.metrics_variables],
    )
    step = train_step(model)
    for _ in range(2):
        _, state = step.call(state, (X[:8], Y[:8]))
    jax.block_until_ready(state)
    assert {key: digest_array(leaf) for key, leaf in captured.items()} == expected


def test_restored_leaves_do_not_alias_the_arrays_they_came_from() -> None:
    first, second = trained(small()), small()
    build(second, lambda: (X[:8], Y[:8]))
    # 64-byte alignment is what makes JAX take over a NumPy buffer.
    leaves = {}
    for key, leaf in leaves_of(first).items():
        room = np.zeros(leaf.nbytes + 64, np.uint8)
        offset = -room.ctypes.data % 64
        aligned = room[offset : offset + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
        aligned[...] = leaf
        leaves[key] = aligned
    restore_variables(records(second), leaves)
    for leaf in leaves.values():
        leaf[...] = 0
    assert variable_digests(second) == variable_digests(first)


def test_case_19_two_variables_in_one_buffer_are_parted() -> None:
    array = jax.numpy.arange(4.0)
    first, second, third = without_aliases([array, array, jax.numpy.arange(4.0)])
    assert first is array
    assert second.unsafe_buffer_pointer() != first.unsafe_buffer_pointer()
    model = small(keras.optimizers.SGD(0.01, use_ema=True))
    trained(model)
    trained(model)
    assert int(model.optimizer.iterations) == 10
    assert third is not second
