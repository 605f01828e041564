"""The resume law at every step of small fits, in one process: model × optimizer × callbacks × cut."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from datetime import date
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.examples import Scripted, Seeded, X, Y, dropout_model, small
from xptrain.testing import assert_resume_exact

pytestmark = pytest.mark.usefixtures("no_keras_fit")


class Counting(keras.callbacks.Callback):
    """Keeps states of its own, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["batches"] = float(self.batches)

    def get_state(self) -> Any:
        return {"batches": self.batches, "tuple": (1, b"x")}

    def set_state(self, state: Any) -> None:
        assert state["tuple"] == (1, b"x")
        self.batches = state["batches"]


def plateau() -> Any:
    return keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.5, cooldown=1)


def stopping() -> Any:
    return keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=1, min_delta=0.05, restore_best_weights=True
    )


def halving(epoch: int, rate: float) -> float:
    return rate * 0.9


MODELS: dict[str, Callable[[Any], Any]] = {
    "plain": small,
    "dropout": dropout_model,
    "own seeds": lambda optimizer: small(optimizer, Seeded()),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9),
    "accumulating": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=3),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01)),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.8)),
}
CALLBACKS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "stopping, own": lambda: [stopping(), Counting()],
    "plateau, scheduler": lambda: [plateau(), keras.callbacks.LearningRateScheduler(halving)],
}


@settings(max_examples=16, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(
    model=st.sampled_from(sorted(MODELS)),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    callbacks=st.sampled_from(sorted(CALLBACKS)),
    cut=st.integers(1, 14),
    shuffle=st.sampled_from([True, False, "batch"]),
    steps_per_execution=st.sampled_from([1, 2]),
)
def test_any_cut_of_any_fit(
    model: str, optimizer: str, callbacks: str, cut: int, shuffle: Any, steps_per_execution: int
) -> None:
    # A schedule and a callback cannot both set the learning rate.
    assume(not (optimizer == "schedule" and "scheduler" in callbacks))

    def make() -> Any:
        built = MODELS[model](OPTIMIZERS[optimizer]())
        built.steps_per_execution = steps_per_execution
        return built

    cut += cut % steps_per_execution if cut % 5 else 0
    assert_resume_exact(
        make,
        lambda: {
            "x": X,
            "y": Y,
            "batch_size": 8,
            "epochs": 3,
            "shuffle": shuffle,
            "validation_data": (X[:8], Y[:8]),
            "callbacks": CALLBACKS[callbacks](),
        },
        cuts=[cut],
    )


def test_every_cut_of_one_fit_under_other_global_seeds_case_5() -> None:
    tried = assert_resume_exact(
        dropout_model,
        lambda: {"x": X, "y": Y, "batch_size": 16, "epochs": 3, "callbacks": [Counting()]},
    )
    # 9 steps, the last of which is the end of the fit.
    assert tried == 9


def test_case_10_early_stopping_and_plateau_keep_their_counters() -> None:
    scores = [5.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]

    def arguments() -> dict[str, Any]:
        return {
            "x": X,
            "y": Y,
            "batch_size": 20,
            "epochs": 8,
            "callbacks": [
                Scripted(scores),
                keras.callbacks.EarlyStopping(monitor="score", mode="min", patience=4),
                keras.callbacks.ReduceLROnPlateau(monitor="score", mode="min", patience=2, factor=0.5),
            ],
        }

    assert assert_resume_exact(small, arguments, cuts=[2, 4, 6, 8, 10, 12]) == 6


def test_swap_ema_weights_saves_the_raw_weights() -> None:
    def make() -> Any:
        return dropout_model(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9))

    def arguments() -> dict[str, Any]:
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        return {"x": X, "y": Y, "batch_size": 20, "epochs": 4, "callbacks": [swap]}

    assert assert_resume_exact(make, arguments, cuts=[2, 4, 5, 6]) == 4


def test_unbuilt_subclass_with_two_blocks_of_one_name_case_3() -> None:
    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [keras.layers.Dense(3, name="block"), keras.layers.Dense(3, name="block")]
            self.head = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            for block in self.blocks:
                inputs = block(inputs)
            return self.head(inputs)

    def make() -> Any:
        model = Twins()
        model.compile("adam", "mse", metrics=["mae", keras.metrics.MeanAbsoluteError(name="mae2")])
        return model

    assert assert_resume_exact(make, lambda: {"x": X, "y": Y, "batch_size": 8, "epochs": 2}, cuts=[3, 5]) == 2


def test_the_check_can_fail() -> None:
    class Forgetful(keras.callbacks.Callback):
        """Changes the run by something that no checkpoint can hold."""

        def __init__(self) -> None:
            super().__init__()
            self.counter = iter(range(100))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["count"] = float(next(self.counter))

    def arguments() -> dict[str, Any]:
        return {"x": X, "y": Y, "batch_size": 20, "epochs": 3, "callbacks": [Forgetful()]}

    with pytest.raises(AssertionError, match=r"in no checkpoint: .*Forgetful\.counter"):
        assert_resume_exact(small, arguments, cuts=[2])
    told: list[str] = []
    with pytest.raises(AssertionError, match="differs in host"):
        assert_resume_exact(small, arguments, cuts=[2], uncaptured=told)
    assert len(told) == 1


class Doing(keras.callbacks.Callback):
    """Calls a function at the end of each epoch with what it was given, and logs what comes back."""

    def __init__(self, do: Callable[[Any, int, dict[str, Any]], float], given: Any) -> None:
        super().__init__()
        self.do = do
        self.given = given

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["done"] = float(self.do(self.given, epoch, logs))


def oldest_of_three(recent: dict[str, float], epoch: int, logs: Any) -> float:
    recent[f"e{9 - epoch}"] = logs["loss"]
    if len(recent) > 3:
        recent.pop(next(iter(recent)))
    return next(iter(recent.values()))


def mean_loss(metric: Any, epoch: int, logs: Any) -> float:
    metric.update_state(logs["loss"])
    return float(metric.result())


def averaged(teacher: Any, epoch: int, logs: Any) -> float:
    kernel = teacher.layers[0].kernel
    kernel.assign(kernel * 0.5 + logs["loss"])
    return float(keras.ops.sum(kernel))


def appended(box: list[float], epoch: int, logs: Any) -> float:
    box.append(logs["loss"])
    return sum(box)


def grouped(groups: Any, epoch: int, logs: Any) -> float:
    groups[epoch].append(logs["loss"])
    return sum(map(sum, groups.values()))


def teacher() -> Any:
    keras.utils.set_random_seed(11)
    return small()


HELD: dict[str, Callable[[], list[Any]]] = {
    "order of keys": lambda: [Doing(oldest_of_three, {})],
    "metric": lambda: [Doing(mean_loss, keras.metrics.Mean())],
    "teacher": lambda: [Doing(averaged, teacher())],
    "generator": lambda: [Doing(lambda g, epoch, logs: g.random(), np.random.default_rng(5))],
    "deque": lambda: [Doing(appended, deque([0.0], maxlen=2))],
    "defaultdict": lambda: [Doing(grouped, defaultdict(list))],
    "shared list": lambda: [Doing(appended, box := []), Doing(lambda b, epoch, logs: len(b), box)],
    "text array": lambda: [Doing(lambda names, epoch, logs: len(names), np.array(["a", "bb"]))],
    "odd value in the logs": lambda: [
        Doing(lambda given, epoch, logs: logs.update(when=given) or 0, date.min)
    ],
    "closure": lambda: [
        (
            lambda box: keras.callbacks.LambdaCallback(
                on_epoch_end=lambda e, logs: logs.update(n=appended(box, e, logs))
            )
        )([])
    ],
}


@pytest.mark.parametrize("held", HELD)
def test_what_a_callback_holds_goes_on(held: str) -> None:
    def arguments() -> dict[str, Any]:
        return {"x": X, "y": Y, "batch_size": 20, "epochs": 6, "callbacks": HELD[held]()}

    assert assert_resume_exact(small, arguments, cuts=[7, 10]) == 2


def test_a_setting_that_on_train_begin_changes() -> None:
    class Warm(keras.callbacks.Callback):
        def __init__(self, rate: float = 1.0) -> None:
            super().__init__()
            self.rate = rate

        def on_train_begin(self, logs: Any = None) -> None:
            self.rate = 0.0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.rate = 1.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 + 0.05 * self.rate

    arguments = {"x": X, "y": Y, "batch_size": 8, "epochs": 3}
    assert assert_resume_exact(small, lambda: {**arguments, "callbacks": [Warm()]}, cuts=[5, 10]) == 2


class Noting(keras.callbacks.Callback):
    """Keeps what it has seen on the model, its layers and its optimizer, and acts on it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.notes = {"best": None, "seen": self.shared}
        self.model.rate = 0.05

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.shared.append(batch)
        self.model.layers[0].calls = getattr(self.model.layers[0], "calls", 0) + 1
        self.model.optimizer.hits = (self.model.layers[0].calls, len(self.model.notes["seen"]))
        self.model.rate *= 0.9
        self.model.optimizer.learning_rate = self.model.rate

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        best = self.model.notes["best"]
        self.model.notes["best"] = logs["loss"] if best is None else min(best, logs["loss"])
        logs.update(best=self.model.notes["best"], calls=sum(self.model.optimizer.hits))


def test_what_a_callback_keeps_on_the_model_goes_on() -> None:
    arguments = {"x": X, "y": Y, "batch_size": 8, "epochs": 3}
    assert assert_resume_exact(small, lambda: {**arguments, "callbacks": [Noting()]}, cuts=[3, 5, 10]) == 3


def test_attributes_of_an_eager_model_go_on() -> None:
    class Warming(keras.layers.Layer):
        scale = 0.0

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.scale = min(1.0, self.scale + 0.1)
            return inputs * self.scale

    def make() -> Any:
        model = small(keras.optimizers.SGD(0.05), Warming())
        model.run_eagerly = True
        return model

    assert assert_resume_exact(make, lambda: {"x": X, "y": Y, "batch_size": 8, "epochs": 2}, cuts=[4, 7]) == 2


def test_values_that_are_no_numbers_equal_themselves() -> None:
    broken = X.copy()
    broken[3] = np.nan
    assert (
        assert_resume_exact(small, lambda: {"x": broken, "y": Y, "batch_size": 8, "epochs": 1}, cuts=[3]) == 1
    )
