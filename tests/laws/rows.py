"""The rows of the matrix: everything that a fit can move, each in a fit that is small enough to cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tests.examples import Seeded, X, Y, small
from xptrain.provenance.grade import assess
from xptrain.testing import assert_resume_exact

L, O = keras.layers, keras.optimizers  # noqa: E741
RNG = np.random.default_rng(1)
SEQUENCES = RNG.normal(size=(40, 5, 4)).astype("float32")
IMAGES = RNG.random((40, 8, 8, 3)).astype("float32")
WORDS = RNG.integers(0, 9, size=(40, 3))
CLASSES = (Y > 0).astype("float32")


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        make: Returns a new compiled model.
        arguments: Returns arguments of `fit` that differ from the usual ones (40 samples, batches of 8).
        cut: Step after which it is cut, in the middle of the second epoch.
        on_mesh: Whether it can be trained on a mesh.
    """

    make: Callable[[], Any]
    arguments: Callable[[], dict[str, Any]] = dict
    cut: int = 7
    on_mesh: bool = True

    def given(self, **more: Any) -> dict[str, Any]:
        return {"x": X, "y": Y, "batch_size": 8, "epochs": 2, **more, **self.arguments()}

    def grade(self, devices: int = 1) -> str:
        """Return the grade after the row was cut and resumed without a difference."""
        reasons: list[str] = []
        assert assert_resume_exact(self.make, self.given, cuts=[self.cut], uncaptured=reasons) == 1
        return assess(devices=devices, not_captured=reasons).name


def net(*layers: Any, shape: tuple[int, ...] = (4,), **compiled: Any) -> Any:
    model = keras.Sequential([keras.Input(shape), *layers, L.Dense(1)])
    model.compile(**{"optimizer": O.Adam(0.05), "loss": "mse", **compiled})
    return model


def with_layer(make: Callable[[], Any], **compiled: Any) -> Row:
    return Row(lambda: net(L.Dense(3, activation="tanh"), make(), **compiled))


def with_optimizer(make: Callable[[], Any]) -> Row:
    return Row(lambda: small(make()))


def of_sequences(make: Callable[[], Any], callbacks: Callable[[], list[Any]] = list, **compiled: Any) -> Row:
    def built() -> Any:
        model = keras.Sequential([keras.Input(batch_shape=(8, 5, 4)), make(), L.Dense(1)])
        model.compile(**{"optimizer": O.Adam(0.05), "loss": "mse", **compiled})
        return model

    return Row(built, lambda: {"x": SEQUENCES, "callbacks": callbacks()}, on_mesh=not callbacks())


def wrapped(**settings: Any) -> Callable[[], Any]:
    return lambda: O.Adam(0.05, **settings)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    name: (lambda name=name: getattr(O, name)(0.02))  # type: ignore[misc]
    for name in (
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon"),
        *("Nadam", "RMSprop", "SGD", "ScheduleFreeAdamW"),
    )
} | {
    "SGD with momentum": lambda: O.SGD(0.02, momentum=0.9, nesterov=True, clipnorm=1.0),
    "LossScaleOptimizer": lambda: O.LossScaleOptimizer(O.RMSprop(0.01), dynamic_growth_steps=3),
    "LossScaleOptimizer around accumulation": lambda: O.LossScaleOptimizer(
        O.Adam(0.05, gradient_accumulation_steps=2)
    ),
    "MultiOptimizer": lambda: O.MultiOptimizer(
        O.OptimizerMap(O.SGD(0.02, momentum=0.9), {".*bias": O.Adam(0.05)})
    ),
    "EMA": wrapped(use_ema=True, ema_momentum=0.9),
    "EMA that overwrites": wrapped(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "gradient accumulation": wrapped(gradient_accumulation_steps=3),
    "accumulation with EMA": wrapped(gradient_accumulation_steps=3, use_ema=True, global_clipnorm=1.0),
    "learning rate schedule": lambda: O.Adam(O.schedules.CosineDecayRestarts(0.05, 3)),
}


class Seedless(L.Layer):
    """Draws from NumPy's global generator: once, when it is traced."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + np.random.normal() * 0.1 if training else inputs


class Drawing(keras.callbacks.Callback):
    """Moves the global generators."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        keras.random.normal((1,))
        np.random.random()


class Gathering(L.Layer):
    """Counts its calls and keeps a moving mean, in variables that are not trained."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign(self.calls + 1)
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, axis=0))
        return inputs - self.mean


class Hiding(L.Layer):
    """Keeps a variable where Keras does not track it."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "hidden", keras.Variable(1.0, trainable=False))

    def call(self, inputs: Any) -> Any:
        self.hidden.assign(self.hidden * 1.5)
        return inputs * self.hidden


class Moving(keras.callbacks.Callback):
    """Moves what a layer keeps outside of steps: the second layer's hidden variable, or the states."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        layer = self.model.layers[-2]
        if isinstance(layer, Hiding):
            layer.hidden.assign(layer.hidden + 0.25)
        elif batch % 2:
            layer(SEQUENCES[:8])
        else:
            layer.reset_state()


class MeanError(keras.metrics.Metric):
    """A metric of the user's."""

    def __init__(self, name: str = "mean_error") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.largest = self.add_variable((2,), "zeros", name="largest")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.total.assign(self.total + keras.ops.mean(y - predicted))
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y - predicted)))

    def result(self) -> Any:
        return self.total + keras.ops.sum(self.largest)


def normalized(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


def with_lora(layer: Any, shape: Any) -> Any:
    layer.build(shape)
    layer.enable_lora(2)
    return layer


def quantized(mode: str, lora: bool = False, **compiled: Any) -> Any:
    hidden = L.Dense(8, activation="tanh")
    model = keras.Sequential([keras.Input((4,)), hidden, L.Dense(3), L.Dropout(0.2)])
    model.quantize(mode)
    if lora:
        hidden.enable_lora(2)
    last = keras.Sequential([model, L.Dense(1)])
    last.compile(**{"optimizer": O.Adam(0.05), "loss": "mse", **compiled})
    return last


def words(lora: bool = False) -> Any:
    embedding = L.Embedding(9, 4)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, L.Flatten(), L.Dense(1)])
    if lora:
        embedding.enable_lora(2)
    model.compile("adam", "mse")
    return model


def mixed(policy: str, optimizer: Any) -> Any:
    layers = [L.Dense(3, activation="tanh", dtype=policy), L.BatchNormalization(dtype=policy)]
    return net(*layers, optimizer=optimizer)


def several(**compiled: Any) -> Any:
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    joined = L.Dropout(0.2)(L.Concatenate()([a, L.Dense(2)(b)]))
    outputs = {"p": L.Dense(1, name="p")(joined), "q": L.Dense(1, name="q")(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    # Two metrics of one name, of two outputs.
    measures = {name: ["mae", MeanError()] for name in ("p", "q")}
    model.compile("adam", {"p": "mse", "q": "mae"}, loss_weights={"p": 1.0, "q": 0.5}, metrics=measures)
    return model


def frozen() -> Any:
    model = net(L.Dense(3), L.BatchNormalization(), L.Dropout(0.2))
    model.layers[0].trainable = model.layers[1].trainable = False
    model.compile("adam", "mse")
    return model


class Own(keras.Model):
    """A subclass with a train step, a penalty and a tracker of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = L.Dense(3, activity_regularizer="l2")
        self.drop = L.Dropout(0.2)
        self.last = L.Dense(1)
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.add_loss(keras.ops.mean(inputs) * 0.1)
        return self.last(self.drop(self.hidden(inputs), training=training))

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kw: Any) -> Any:
        loss = super().compute_loss(x, y, y_pred, *args, **kw)
        self.tracker.update_state(loss)
        return loss


def own() -> Any:
    model = Own()
    model.compile("adam", "mse")
    return model


# Keras cannot train with it on JAX: its call raises.
BROKEN = {"RandomElasticTransform"}
AUGMENTATION = (
    *("AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration"),
    *("RandomColorJitter", "RandomContrast", "RandomCrop", "RandomErasing", "RandomFlip"),
    *("RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective"),
    *("RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness", "RandomShear"),
    *("RandomTranslation", "RandomZoom"),
)


FACTOR = {"factor": 0.2}
SETTINGS: dict[str, dict[str, Any]] = {
    "AugMix": {"num_chains": 1, "chain_depth": 1},
    "RandAugment": {"num_ops": 1},
    "RandomCrop": {"height": 6, "width": 6},
    "RandomPosterization": {"factor": 4},
    "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
    "RandomZoom": {"height_factor": 0.2},
} | dict.fromkeys(
    (
        *("RandomHue", "RandomSaturation", "RandomBrightness", "RandomContrast", "RandomRotation"),
        *("RandomColorDegeneration", "RandomSharpness"),
    ),
    FACTOR,
)


class Attending(L.Layer):
    """Attends to its own inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 2, dropout=0.3)

    def call(self, inputs: Any) -> Any:
        return self.attention(inputs, inputs)


def augmented(chain: tuple[str, ...]) -> Row:
    def make() -> Any:
        layers = [getattr(L, name)(**SETTINGS.get(name, {})) for name in chain]
        return net(*layers, L.GlobalAveragePooling2D(), shape=(8, 8, 3))

    return Row(make, lambda: {"x": IMAGES})


# Several layers in a model: each has a generator of its own.
_FEW = AUGMENTATION[4:]
CHAINS = [*(_FEW[i : i + 5] for i in range(0, len(_FEW), 5)), *((name,) for name in AUGMENTATION[:4])]
# Their programs take long to compile.
LONG = {", ".join(chain) for chain in CHAINS[-4:]}
# Trained on a mesh also in the small profile.
ON_MESH = (
    *("EMA", "gradient accumulation", "BatchNormalization", "LSTM", "int8 with LoRA"),
    "several inputs, outputs and losses, metrics of one name",
)


INPUTS = {"a": X[:, :2], "b": X[:, 2:]}
TARGETS = {"p": Y, "q": -Y}

ROWS: dict[str, dict[str, Row]] = {
    "Optimizers and their wrappers": {name: with_optimizer(make) for name, make in OPTIMIZERS.items()},
    "Seeds": {
        "Dropout": with_layer(lambda: L.Dropout(0.5)),
        "AlphaDropout, GaussianDropout": Row(
            lambda: net(L.Dense(3), L.AlphaDropout(0.2), L.GaussianDropout(0.2))
        ),
        "GaussianNoise": with_layer(lambda: L.GaussianNoise(0.1)),
        "own SeedGenerator": with_layer(Seeded),
        "NumPy's global generator, in a layer": Row(
            lambda: net(Seedless()), lambda: {"callbacks": [Drawing()], "batch_size": 16}, cut=4
        ),
        "MultiHeadAttention with dropout": Row(lambda: net(L.Reshape((2, 2)), Attending(), L.Flatten())),
        "GRU with dropout": of_sequences(lambda: L.GRU(2, dropout=0.2, recurrent_dropout=0.2)),
    }
    | {", ".join(chain): augmented(chain) for chain in CHAINS},
    "Layers with a state": {
        "BatchNormalization": with_layer(L.BatchNormalization),
        "Normalization, adapted": Row(lambda: net(normalized(L.Normalization(), X), L.Dense(3))),
        "SpectralNormalization": with_layer(lambda: L.SpectralNormalization(L.Dense(3))),
        "own layer with variables that are not trained": with_layer(Gathering),
        "own layer with a variable that Keras does not track": with_layer(Hiding),
        "the same, moved by a callback": Row(
            lambda: net(Hiding()), lambda: {"callbacks": [Moving()]}, on_mesh=False
        ),
    },
    "Stateful recurrent layers": {
        "LSTM": of_sequences(lambda: L.LSTM(2, stateful=True)),
        "GRU": of_sequences(lambda: L.GRU(2, stateful=True)),
        "SimpleRNN": of_sequences(lambda: L.SimpleRNN(2, stateful=True)),
        "Bidirectional": of_sequences(lambda: L.Bidirectional(L.LSTM(2, stateful=True))),
        "RNN of stacked cells": of_sequences(
            lambda: L.RNN([L.LSTMCell(2, dropout=0.2), L.GRUCell(2)], stateful=True)
        ),
        "LSTM, moved by a callback": of_sequences(lambda: L.LSTM(2, stateful=True), lambda: [Moving()]),
        "LSTM, moved by a callback, run_eagerly": of_sequences(
            lambda: L.LSTM(2, stateful=True, unroll=True), lambda: [Moving()], run_eagerly=True
        ),
    },
    "Precision, quantisation, LoRA": {
        "mixed_float16": Row(lambda: mixed("mixed_float16", O.LossScaleOptimizer(O.Adam(0.01)))),
        "mixed_bfloat16": Row(lambda: mixed("mixed_bfloat16", O.Adam(0.01))),
        "int8, other layers trained": Row(lambda: quantized("int8")),
        "int8 with LoRA": Row(lambda: quantized("int8", lora=True)),
        "float8": Row(lambda: quantized("float8")),
        "Dense with LoRA": Row(lambda: net(with_lora(L.Dense(3), (None, 4)))),
        "Embedding with LoRA": Row(lambda: words(lora=True), lambda: {"x": WORDS}),
        "Embedding": Row(words, lambda: {"x": WORDS}),
    },
    "Losses, metrics, shapes of a model": {
        "several inputs, outputs and losses, metrics of one name": Row(
            several, lambda: {"x": INPUTS, "y": TARGETS}
        ),
        "own metrics": Row(lambda: small(metrics=[MeanError(), "mae", keras.metrics.RootMeanSquaredError()])),
        "metrics with a large state": Row(
            lambda: net(
                L.Dense(3),
                loss=keras.losses.BinaryCrossentropy(from_logits=True),
                metrics=[keras.metrics.AUC(20, from_logits=True, name="auc"), "accuracy"],
                weighted_metrics=["accuracy"],
            ),
            lambda: {"y": CLASSES, "sample_weight": np.linspace(0, 1, 40)},
        ),
        "frozen layers": Row(frozen),
        "subclass with add_loss and a tracker": Row(own),
    },
    "Ways to run a step": {
        "run_eagerly": Row(lambda: net(Gathering(), L.Dropout(0.2), run_eagerly=True)),
        "jit_compile=False": Row(lambda: net(Gathering(), L.Dropout(0.2), jit_compile=False)),
        "steps_per_execution": Row(lambda: net(L.Dropout(0.2), steps_per_execution=2)),
        "fused": Row(
            lambda: net(L.BatchNormalization(), L.Dropout(0.2), steps_per_execution=2),
            lambda: {"fused": True},
        ),
    },
}
