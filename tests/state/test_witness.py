"""What a checkpoint's places do not show: it is kept, or named when it changes, or cannot move a bit."""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import keras
import numpy as np
import pytest

from tests.examples import X, Y, small
from xptrain.state.python.reach import Watch
from xptrain.testing import assert_resume_exact

Callback = keras.callbacks.Callback
Parts = dict[str, Any]


class Box:
    """An object of the user's."""

    def __init__(self) -> None:
        self.n = 0
        self.inner: Any = None

    def next(self) -> int:
        self.n += 1
        return self.n


class Slotted(Callback):
    __slots__ = ("n",)

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.n += 1
        logs["n"] = float(self.n)


class Calls(Callback):
    """Logs what functions return that it holds."""

    def __init__(self, *functions: Callable[[], Any]) -> None:
        super().__init__()
        self.functions = list(functions)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["n"] = float(sum(function() for function in self.functions))


class Does(Callback):
    """Does something to the model after each epoch."""

    def __init__(self, what: Callable[[Any], None]) -> None:
        super().__init__()
        self.what = what

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.what(self.model)


def counter() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


def with_attribute() -> Callable[[], int]:
    def count() -> int:
        count.n += 1  # type: ignore[attr-defined]
        return count.n  # type: ignore[attr-defined, no-any-return]

    count.n = 0  # type: ignore[attr-defined]
    return count


def closing_over(value: Any, step: Callable[[Any], float]) -> Any:
    class Local(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["n"] = step(value)

    return Local()


def grow(values: list[int]) -> float:
    values.append(1)
    return float(len(values))


def tick(space: Any) -> float:
    space.n += 1
    return float(space.n)


class Keyed(Callback):
    """Holds a typed key of JAX."""

    def __init__(self) -> None:
        super().__init__()
        self.key = jax.random.key(7)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.key, one = jax.random.split(self.key)
        logs["n"] = float(jax.random.uniform(one))


KEPT: dict[str, Callable[[], Any]] = {
    "typed key": Keyed,
    "slots": Slotted,
    "functions in a list": lambda: Calls(counter(), counter()),
    "attribute of a function": lambda: Calls(with_attribute()),
    "method closes over a list": lambda: closing_over([], grow),
    "method closes over a namespace": lambda: closing_over(types.SimpleNamespace(n=0), tick),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_functions_and_slots_hold_is_kept(what: str) -> None:
    def args() -> Parts:
        return {"x": X, "y": Y, "batch_size": 8, "epochs": 3, "callbacks": [KEPT[what]()]}

    assert assert_resume_exact(small, args, cuts=(5, 7)) == 2


class Alpha(keras.losses.Loss):
    def __init__(self, alpha: Any) -> None:
        super().__init__()
        self.alpha = alpha

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.alpha * keras.ops.mean((y_true - y_pred) ** 2, axis=-1)


class Listing(keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="listing")
        self.values: list[float] = []

    def update_state(self, *arguments: Any) -> None:
        self.values.append(1.0)

    def result(self) -> float:
        return sum(self.values)


class Scale(keras.layers.Layer):
    """Divides, except in training, by a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs if training else inputs / self.temperature


class Defaults(Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None, memory: Any = {}) -> None:  # noqa: B006
        memory["n"] = memory.get("n", 0) + 1
        logs["n"] = float(memory["n"])


class Counts:
    n = 0


class Averages:
    """Keeps an average of weights, as arrays of JAX."""

    def __init__(self, size: int) -> None:
        self.weights = jax.numpy.zeros((size, 400))

    def step(self) -> float:
        self.weights = self.weights * 0.9 + 1.0
        return float(self.weights[0, 0])


def held(thing: Any, step: Callable[[Any], float]) -> Any:
    class Holds(Callback):
        def __init__(self) -> None:
            super().__init__()
            self.thing = thing

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["n"] = step(self.thing)

    return Holds()


def listed(metric: Any) -> float:
    metric.update_state()
    return float(metric.result())


def attach(name: str, value: Callable[[], Any], *layers: Any, **compiled: Any) -> Callable[[], Any]:
    def make() -> Any:
        model = small(None, *layers, **compiled)
        setattr(model, name, value())
        return model

    return make


def lossy(alpha: Any, **compiled: Any) -> Any:
    model = small()
    model.compile("sgd", Alpha(alpha), **compiled)
    return model


def box_in_box() -> Box:
    outer = Box()
    outer.inner = Box()
    return outer


def regularized() -> Any:
    layer = keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))
    return small(None, layer, run_eagerly=True)


def scheduled() -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)
    return small(keras.optimizers.SGD(schedule), run_eagerly=True)


def anneal(thing: Any, name: str) -> None:
    setattr(thing, name, getattr(thing, name) * 0.5)


def bump(thing: Any, name: str) -> None:
    setattr(thing, name, getattr(thing, name) + 1)


def cosine(model: Any) -> None:
    model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.05, 20)


# What it is → (model, callback, its name in the grade)
NAMED: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "loss, attribute": (
        lambda: lossy(1.0, run_eagerly=True),
        lambda: Does(lambda model: anneal(model.loss, "alpha")),
        "model.loss.alpha",
    ),
    "loss, variable": (
        lambda: lossy(keras.Variable(1.0, trainable=False)),
        lambda: Does(lambda model: model.loss.alpha.assign(model.loss.alpha * 0.5)),
        "model.loss.alpha",
    ),
    "regularizer": (
        regularized,
        lambda: Does(lambda model: anneal(model.layers[1].kernel_regularizer, "l2")),
        "model/1.dense.kernel_regularizer.l2",
    ),
    "schedule, attribute": (
        scheduled,
        lambda: Does(lambda model: anneal(model.optimizer._learning_rate, "initial_learning_rate")),
        "optimizer.learning_rate.initial_learning_rate",
    ),
    "schedule in place of a rate": (small, lambda: Does(cosine), "optimizer.learning_rate"),
    "object in an object": (
        attach("helper", box_in_box),
        lambda: Does(lambda model: bump(model.helper.inner, "n")),
        "model.helper.inner.n",
    ),
    "function of the model": (
        attach("fn", counter),
        lambda: Does(lambda model: model.fn()),
        "model.fn{n}",
    ),
    "attribute that a compiled step reads": (
        lambda: small(None, Scale()),
        lambda: Does(lambda model: bump(model.layers[1], "temperature")),
        "model/1.scale.temperature (changed while training",
    ),
    "held metric's list": (small, lambda: held(Listing(), listed), "Holds.thing.values"),
    "held class": (small, lambda: held(Counts, tick), "Holds.thing.n"),
    "argument's default": (small, Defaults, "(memory)"),
    "array of JAX": (small, lambda: closing_over(Averages(3), Averages.step), "{value}.weights"),
    "large array of JAX": (small, lambda: closing_over(Averages(300), Averages.step), "{value}.weights"),
    "arguments of a partial": (
        attach("fn", lambda: functools.partial(grow, [])),
        lambda: Does(lambda model: model.fn()),
        "model.fn(args)[0]",
    ),
    "dataset that nobody trains on": (
        small,
        lambda: closing_over(Data(), lambda data: data.box.next()),
        "{value}.box.n",
    ),
    "iterator that a method closes over": (
        small,
        lambda: closing_over(iter(range(99)), next),
        "on_epoch_end{value}",
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_is_in_no_place_is_named(what: str) -> None:
    model, callback, name = NAMED[what]
    uncaptured: list[str] = []

    def args() -> Parts:
        return {"x": X, "y": Y, "batch_size": 8, "epochs": 3, "callbacks": [callback()]}

    with suppress(AssertionError):
        assert_resume_exact(model, args, cuts=(5,), uncaptured=uncaptured)
    assert [text for text in uncaptured if name in text], uncaptured


class Data(keras.utils.PyDataset):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: list[int] = []
        self.counts = np.zeros(5)
        self.box = Box()
        self.cache: dict[int, Any] = {}
        self.file: Any = None
        self.level = 1.0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[8 * index : 8 * index + 8] * self.factor(index), Y[8 * index : 8 * index + 8]

    def factor(self, index: int) -> float:
        return self.level


class ByList(Data):
    def factor(self, index: int) -> float:
        self.seen.append(index)
        return len(self.seen) / 5


class ByArray(Data):
    def factor(self, index: int) -> float:
        self.counts[index] += 1
        return float(self.counts[index]) / 2


class ByObject(Data):
    def factor(self, index: int) -> float:
        return self.box.next() / 5


class CachedImages(Data):
    """Its class has `cache` in its name, and what it counts has not."""

    def factor(self, index: int) -> float:
        self.level += 1
        return self.level / 5


class ByKey(Data):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.by: dict[Any, list[int]] = {("x", 1): [], ("x", 2): [], "a.png": []}

    def factor(self, index: int) -> float:
        self.by["a.png"].append(index)
        self.by["x", 1].append(index)
        return (len(self.by["a.png"]) + len(self.by["x", 1])) / 5


class ByClass(Data):
    total = 0

    def factor(self, index: int) -> float:
        type(self).total += 1
        return type(self).total / 5


class Speaks(Data):
    """Counts, and says how far it has counted."""

    def factor(self, index: int) -> float:
        return self.box.next() / 5

    def get_state(self) -> int:
        return self.box.n

    def set_state(self, state: int) -> None:
        self.box.n = state


class Quiet(Data):
    """Collects, keeps what it loaded, and opens what it needs when it is first needed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.key = jax.random.key(7)
        self.process = os.getpid()
        self.helper = Box()
        self.gone = weakref.proxy(Box())
        self.many = list(range(100_000))

    @functools.cached_property
    def scale(self) -> int:
        return 1

    @property
    def raises(self) -> int:
        raise RuntimeError("nobody asked")

    def factor(self, index: int) -> float:
        self.file = self.file or open(__file__)  # noqa: SIM115
        self.seen.append(index)
        self.cache[index] = index
        if self.process != os.getpid():
            self.process, self.helper = os.getpid(), Box()
        return self.scale


@pytest.mark.parametrize(
    "make", [Quiet, lambda: Quiet(workers=2), lambda: Quiet(workers=1, use_multiprocessing=True)]
)
def test_a_dataset_whose_batches_depend_on_nothing_else_is_exact(make: Callable[[], Any]) -> None:
    assert assert_resume_exact(small, lambda: {"x": make(), "epochs": 2}, cuts=(3, 5)) == 2


def test_a_dataset_that_says_how_far_it_is_is_exact() -> None:
    assert assert_resume_exact(small, lambda: {"x": Speaks(), "epochs": 3}, cuts=(3, 5, 7)) == 3


def test_the_data_of_the_fit_may_be_held_by_a_callback() -> None:
    def args() -> Parts:
        data = Data()
        return {"x": data, "epochs": 2, "callbacks": [held(data, lambda data: float(len(data)))]}

    assert assert_resume_exact(small, args, cuts=(3, 5)) == 2


def test_an_iterator_of_the_fit_that_a_callback_holds_is_named() -> None:
    uncaptured: list[str] = []

    def args() -> Parts:
        batches = ((X[:8], Y[:8]) for _ in range(99))
        callback = held(batches, lambda batches: float(next(batches)[0][0, 0]))
        return {"x": batches, "steps_per_epoch": 4, "epochs": 2, "callbacks": [callback]}

    with suppress(Exception):
        assert_resume_exact(small, args, cuts=(2,), uncaptured=uncaptured)
    assert [text for text in uncaptured if "Holds.thing" in text], uncaptured


def test_two_local_classes_of_one_name_are_two() -> None:
    uncaptured: list[str] = []

    def args() -> Parts:
        first, second = closing_over(Box(), tick), closing_over(Box(), lambda box: float(box.n))
        return {"x": X, "y": Y, "epochs": 2, "callbacks": [first, second]}

    with suppress(AssertionError):
        assert_resume_exact(small, args, cuts=(2,), uncaptured=uncaptured)
    assert [text for text in uncaptured if "{value}.n" in text], uncaptured


class Reports(keras.Sequential):
    """Says in a method of its own what no step reads."""

    def report(self) -> str:
        return f"best {self.best}"


def test_an_attribute_that_only_other_methods_read_is_kept() -> None:
    def make() -> Any:
        model = Reports([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.best = 0.0
        return model

    def args() -> Parts:
        def better(model: Any) -> None:
            model.best += 1.0

        return {"x": X, "y": Y, "epochs": 3, "callbacks": [Does(better)]}

    assert assert_resume_exact(make, args, cuts=(2, 3)) == 2


def level_from(data: Any) -> Any:
    class Local(Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            data.level *= 0.5

    return Local()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ByList, "ByList.seen"),
        (lambda: ByList(workers=2), "ByList.seen"),
        (ByArray, "ByArray.counts"),
        (ByObject, "ByObject.box.n"),
        (ByClass, "ByClass.total"),
        (CachedImages, "CachedImages.level"),
        (ByKey, "ByKey.by['a.png']"),
        (ByKey, "ByKey.by[0: ('x', 1)]"),
    ],
)
def test_what_loading_changes_is_named(make: Callable[[], Any], name: str) -> None:
    uncaptured: list[str] = []

    def args() -> Parts:
        return {"x": make(), "epochs": 2}

    with suppress(AssertionError):
        assert_resume_exact(small, args, cuts=(3,), uncaptured=uncaptured)
    assert [text for text in uncaptured if name in text], uncaptured


def test_a_dataset_that_a_callback_changes_is_named() -> None:
    uncaptured: list[str] = []

    def args() -> Parts:
        data = Data()
        return {"x": data, "epochs": 3, "callbacks": [level_from(data)]}

    with suppress(AssertionError):
        assert_resume_exact(small, args, cuts=(5,), uncaptured=uncaptured)
    assert [text for text in uncaptured if "Data.level" in text], uncaptured


def test_a_generator_that_training_and_validation_share_is_named() -> None:
    uncaptured: list[str] = []

    def batches() -> Any:
        while True:
            for start in range(0, 40, 8):
                yield X[start : start + 8], Y[start : start + 8]

    def args() -> Parts:
        one = batches()
        return {"x": one, "validation_data": one, "steps_per_epoch": 4, "validation_steps": 1, "epochs": 2}

    with suppress(Exception):
        assert_resume_exact(small, args, cuts=(6,), uncaptured=uncaptured)
    assert [text for text in uncaptured if "share" in text], uncaptured


def test_what_cannot_move_a_bit_is_not_named() -> None:
    seen: list[int] = []

    class Spy(Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    def args() -> Parts:
        return {"x": Quiet(), "epochs": 2, "callbacks": [Spy()]}

    assert assert_resume_exact(small, args, cuts=(3, 5)) == 2
    # What a method only collects in is the script's: it tells what this process trained.
    # Step 5 is cut twice: before the end of its epoch, and after it.
    assert seen == [*range(5)] * 2 + [3, 4, *range(5)] + [*range(5)] * 2


def test_an_attribute_of_the_callbacks_class_is_told() -> None:
    class Shared(Callback):
        total = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            type(self).total += 1

    def args() -> Parts:
        return {"x": X, "y": Y, "epochs": 2, "callbacks": [Shared()]}

    with pytest.warns(UserWarning, match="Shared.total changes while training and is in no checkpoint"):
        assert_resume_exact(small, args, cuts=(2,))


def test_large_arrays_are_sampled_and_foreign_objects_left_alone() -> None:
    large = np.zeros((3000, 50, 7), "float32")
    things: list[Any] = [large, keras.Sequential()]
    watch = Watch({"a": things})
    watch.look()
    assert not watch.changes()
    large += 1
    things[1] = None
    assert [place for place, _, _ in watch.changes()] == ["a[0]"]
