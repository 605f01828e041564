"""`fused=True`: a chunk of steps in one program, equal to itself across cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

from tests.examples import X, Y, dropout_model, small, variable_digests
from xptrain.errors import UsageError
from xptrain.testing import assert_resume_exact
from xptrain.training.observer import NoObserver
from xptrain.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_keras_fit")
FIT: dict[str, Any] = {"x": X, "y": Y, "batch_size": 4, "epochs": 3, "verbose": 0}


class Watch(NoObserver):
    """Keeps the logs of each program."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: list[tuple[int, int, Mapping[str, Any]]] = []
        self.digest: str | None = None

    def step(self, step: int, logs: Mapping[str, Any], count: int = 1) -> None:
        self.seen.append((step, count, {name: np.asarray(value) for name, value in logs.items()}))

    def ready(self, program: Any, uncaptured: Any, changes: Any) -> None:
        self.digest = program()


def trained(fused: bool, size: int, make: Any = dropout_model, **arguments: Any) -> tuple[Any, Watch, Any]:
    keras.utils.set_random_seed(3)
    model = make()
    model.steps_per_execution = size
    watch = Watch()
    history = Trainer.observed(model, watch, 0).fit(**{**FIT, **arguments}, fused=fused)
    return model, watch, history


@pytest.mark.parametrize("size", [3, 4, 10, 50])
def test_the_same_training_as_single_steps(size: int) -> None:
    fused, watch, history = trained(True, size)
    single, other, expected = trained(False, size)
    # One program for a chunk that is whole; the rest of an epoch goes step by step.
    whole, rest = divmod(10, size)
    assert [count for _, count, _ in watch.seen] == ([size] * whole + [1] * rest) * 3
    losses = np.concatenate([np.atleast_1d(logs["loss"]) for _, _, logs in watch.seen])
    assert losses == pytest.approx([float(logs["loss"]) for _, _, logs in other.seen], rel=1e-5)
    assert history.history["loss"] == pytest.approx(expected.history["loss"], rel=1e-5)
    for ours, theirs in zip(fused.get_weights(), single.get_weights(), strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)
    assert int(fused.optimizer.iterations) == 30
    # A program of its own stands in the manifest.
    assert watch.digest != other.digest


def test_itself_again() -> None:
    first, second = (variable_digests(trained(True, 4)[0]) for _ in range(2))
    assert first == second


def test_a_smaller_last_batch_goes_alone() -> None:
    _, watch, _ = trained(True, 2, batch_size=12)
    assert [count for _, count, _ in watch.seen] == [2, 1, 1] * 3


@pytest.mark.parametrize("size", [3, 5])
def test_every_cut_of_a_fused_fit(size: int) -> None:
    def make() -> Any:
        model = dropout_model()
        model.steps_per_execution = size
        return model

    arguments = {**FIT, "validation_data": (X[:8], Y[:8]), "fused": True}
    tried = assert_resume_exact(
        make, lambda: {**arguments, "callbacks": [keras.callbacks.ReduceLROnPlateau(patience=1)]}
    )
    assert tried == {3: 12, 5: 6}[size]


def test_what_cannot_be_fused_says_so() -> None:
    eager = small()
    eager.run_eagerly = True
    with pytest.raises(UsageError, match="needs a compiled step"):
        Trainer(eager).fit(**FIT, fused=True)
