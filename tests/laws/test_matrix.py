"""Everything that a fit can move is graded exact, and resumes so: each row alone, and rows combined.

`XPTRAIN_MATRIX=large` adds the rows that take long, every row on a mesh, and more combinations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import xptrain
from tests.examples import X, Y, variable_digests
from tests.laws import rows, table
from tests.laws.rows import ON_MESH, ROWS, L, net, quantized, with_lora
from tests.laws.table import LARGE, told
from tests.laws.test_resume_in_process import Counting, halving, plateau, stopping
from tests.laws.test_sources import SOURCES
from tests.session.conftest import Runs
from tests.session.conftest import no_recorder as no_recorder
from tests.session.conftest import stop_at as stop_at
from xptrain.testing import assert_resume_exact
from xptrain.training.trainer import Trainer

CASES = [
    pytest.param(section, name, marks=[pytest.mark.skipif(name in rows.LONG and not LARGE, reason="long")])
    for section in ROWS
    for name in ROWS[section]
]
MESH = [name for section in ROWS.values() for name, row in section.items() if row.on_mesh]
MESH = [name for name in MESH if name not in rows.LONG] if LARGE else list(ON_MESH)


@pytest.mark.parametrize(("section", "name"), CASES)
def test_every_row(section: str, name: str) -> None:
    grade = ROWS[section][name].grade()
    assert grade == "exact"
    told(section, name, grade)


def test_rows_on_a_mesh() -> None:
    script = Path(__file__).parent / "scripts" / "mesh_rows.py"
    done = subprocess.run(
        [sys.executable, str(script), *MESH], capture_output=True, text=True, timeout=550, env=os.environ
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert done.returncode == 0 and lines, done.stdout[-2000:] + done.stderr[-4000:]
    for name, grade in json.loads(lines[0].removeprefix("TOLD ")).items():
        assert grade == "exact on the same topology"
        told("On a mesh of 4 devices", name, grade)


def test_the_rows_name_everything_that_keras_has() -> None:
    optimizers = {n for n in dir(keras.optimizers) if isinstance(getattr(keras.optimizers, n), type)}
    assert optimizers - {"Optimizer", "OptimizerMap"} <= rows.OPTIMIZERS.keys()
    augmenting = {name for name in dir(keras.layers) if name.startswith("Rand") or name.endswith("Mix")}
    assert augmenting == set(rows.AUGMENTATION) - {"MixUp"} | rows.BROKEN


@pytest.mark.skipif(table.IS_WRITTEN, reason="they are being written")
def test_the_tables_have_every_row() -> None:
    found = {section: set(lines) for section, lines in table.tables().items()}
    assert {section: found[section] for section in ROWS} == {section: set(ROWS[section]) for section in ROWS}
    assert found["Several fits, several models"] == set(SCRIPTS)
    assert found["On a mesh of 4 devices"] >= set(ON_MESH)
    assert found["Sources"] >= set(SOURCES)


def thawed(run: Any, *callbacks: Any) -> list[Any]:
    model = net(L.Dense(3), L.BatchNormalization(), L.Dropout(0.2))
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    run.fit(model, X, Y, batch_size=8, epochs=1, verbose=0)
    model.layers[0].trainable = True
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae", metrics=["mse"])
    run.fit(model, X, Y, batch_size=8, epochs=2, verbose=0, callbacks=list(callbacks))
    return [model]


def teacher(run: Any, *callbacks: Any) -> list[Any]:
    first, second = net(L.Dense(5), L.Dropout(0.2)), net(L.GaussianNoise(0.1))
    run.fit(first, X, Y, batch_size=8, epochs=1, verbose=0)
    run.fit(second, X, first.predict(X, verbose=0), batch_size=8, verbose=0, callbacks=list(callbacks))
    run.fit(first, X, Y, batch_size=8, epochs=1, verbose=0)
    return [first, second]


SCRIPTS: dict[str, Callable[..., list[Any]]] = {
    "layers frozen and thawed, compiled anew between two fits": thawed,
    "two models in turns": teacher,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_several_fits(script: str, isolated_home: Path, stop_at: Callable[[int], Any]) -> None:
    runs, ends, train = Runs(isolated_home), [], SCRIPTS[script]
    policy = (xptrain.every(steps=4), xptrain.keep(2))
    with pytest.raises(RuntimeError), runs.open("cut", checkpoint=policy) as run:
        train(run, stop_at(4))
    for key, resume in (("straight", False), ("cut", True)):
        with runs.open(key, resume=resume, checkpoint=policy) as run:
            models = train(run, stop_at(10**6))
            assert run.grade.name == "exact", run.grade
        ends.append(([variable_digests(model) for model in models], runs.points(key)))
    assert int(runs.tags("cut")["xptrain.attempt.2.from_step"]) == 8
    assert ends[0] == ends[1]
    told("Several fits, several models", script, run.grade.name)


MODELS: dict[str, Callable[..., Any]] = {
    "batch norm": lambda **given: net(L.Dense(3), L.BatchNormalization(), L.Dropout(0.3), **given),
    "normalised": lambda **given: net(rows.normalized(L.Normalization(), X), L.Dense(3), **given),
    "spectral": lambda **given: net(L.SpectralNormalization(L.Dense(3)), rows.Gathering(), **given),
    "int8": lambda **given: quantized("int8", **given),
    "LoRA": lambda **given: net(with_lora(L.Dense(3), (None, 4)), rows.Seeded(), **given),
}
CALLBACKS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "stopping, own": lambda: [stopping(), Counting()],
    "plateau": lambda: [plateau(), keras.callbacks.TerminateOnNaN()],
    "scheduler": lambda: [keras.callbacks.LearningRateScheduler(halving)],
    "swapped averages": lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
}
PLAIN = sorted(name for name in SOURCES if "process" not in name and "validate" not in name)


@settings(
    max_examples=80 if LARGE else 5,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    source=st.sampled_from(["arrays", *PLAIN]),
    model=st.sampled_from(sorted(MODELS)),
    optimizer=st.sampled_from(sorted(rows.OPTIMIZERS)),
    callbacks=st.sampled_from(sorted(CALLBACKS)),
    cut=st.integers(1, 14),
)
def test_any_cut_of_any_combination(
    source: str, model: str, optimizer: str, callbacks: str, cut: int
) -> None:
    # A schedule and a callback cannot both set the learning rate, and only averages can be swapped.
    if callbacks == "swapped averages":
        optimizer = "EMA"
    elif callbacks != "none" and optimizer in ("learning rate schedule", "MultiOptimizer"):
        optimizer = "EMA that overwrites"

    def arguments() -> dict[str, Any]:
        data = {"x": X, "y": Y, "batch_size": 8} if source == "arrays" else SOURCES[source]()
        validation = {} if callbacks in ("none", "scheduler") else {"validation_data": (X[:8], Y[:8])}
        return {**data, **validation, "epochs": 3, "callbacks": CALLBACKS[callbacks]()}

    assert_resume_exact(lambda: MODELS[model](optimizer=rows.OPTIMIZERS[optimizer]()), arguments, cuts=[cut])


@pytest.mark.parametrize(
    "name", ["GRU", "Bidirectional", "RNN of stacked cells", "LSTM, moved by a callback"]
)
def test_stateful_layers_end_with_the_bits_of_keras(name: str) -> None:
    row = ROWS["Stateful recurrent layers"][name]
    ends = []
    for train in (lambda model, **kw: model.fit(**kw), lambda model, **kw: Trainer(model, seed=0).fit(**kw)):
        keras.utils.set_random_seed(3)
        model = row.make()
        history = train(model, **row.given(shuffle=False, verbose=0))
        ends.append((variable_digests(model), history.history))
    assert ends[0] == ends[1]
    assert any("rnn_state" in key for key in ends[0][0])
