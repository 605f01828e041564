"""The resume law for Grain's data, and changed data are refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
# Most of the time would be compilation of the same small program.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="xptrain-grain-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import grain
import keras
import numpy as np
import pytest
import xptrain_grain
from absl import flags

import xptrain
from xptrain.testing import assert_resume_exact

# Grain's worker processes read its flags, which nobody parsed here.
flags.FLAGS(["test"])

# Grain loads far ahead in many threads, which is much work for endless data.
FEW = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = (X @ RNG.normal(size=(4, 1))).astype("float32")


class Pick(grain.transforms.RandomMap):
    """Adds noise to a record."""

    def random_map(self, element: int, rng: np.random.Generator) -> Any:
        return X[element] + rng.normal(size=4).astype("float32") * 0.1, Y[element]


class Careless(grain.transforms.Map):
    """Draws from NumPy's global generator."""

    def map(self, element: int) -> Any:
        return X[element] + np.random.normal(size=4).astype("float32"), Y[element]


def dataset(batch: int = 8, seed: int = 3, size: int = 40, transform: Any = None) -> grain.MapDataset:
    chosen = grain.MapDataset.range(size).seed(seed).shuffle()
    mapped = chosen.map(transform) if transform else chosen.random_map(Pick())
    return mapped.batch(batch)


def loader(
    batch: int = 8, seed: int = 3, size: int = 40, workers: int = 0, epochs: int | None = 1
) -> grain.DataLoader:
    sampler = grain.samplers.IndexSampler(
        size, shard_options=grain.sharding.NoSharding(), shuffle=True, seed=seed, num_epochs=epochs
    )
    return grain.DataLoader(
        data_source=range(size),
        sampler=sampler,
        operations=[Pick(), grain.transforms.Batch(batch)],
        worker_count=workers,
        read_options=FEW,
    )


def endless() -> grain.IterDataset:
    return dataset().repeat().to_iter_dataset(FEW)


def in_workers(count: int) -> grain.IterDataset:
    options = grain.MultiprocessingOptions(num_workers=count)
    return dataset().to_iter_dataset().mp_prefetch(options)


def model() -> Any:
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(0.05), "mse")
    return made


DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "map dataset": lambda: {"x": xptrain_grain.source(dataset())},
    "map dataset, parts of passes": lambda: {"x": xptrain_grain.source(dataset()), "steps_per_epoch": 3},
    "endless dataset": lambda: {
        "x": xptrain_grain.source(endless()),
        "steps_per_epoch": 4,
    },
    "iter dataset": lambda: {"x": xptrain_grain.source(dataset().to_iter_dataset())},
    "loader": lambda: {"x": xptrain_grain.source(loader())},
    "endless loader": lambda: {"x": xptrain_grain.source(loader(epochs=None)), "steps_per_epoch": 4},
    "an iterator as it is": lambda: {
        "x": iter(endless()),
        "steps_per_epoch": 4,
    },
    "to validate with": lambda: {
        "x": xptrain_grain.source(dataset()),
        "validation_data": xptrain_grain.source(dataset(seed=4)),
    },
}


@pytest.mark.parametrize("name", DATA)
def test_every_cut(name: str) -> None:
    assert assert_resume_exact(model, lambda: {"epochs": 2, **DATA[name]()}) >= 6


@pytest.mark.parametrize(
    "data",
    [lambda: loader(workers=1), lambda: loader(workers=2), lambda: in_workers(2)],
    ids=["a loader's", "a loader's two", "two of a dataset"],
)
def test_a_cut_with_worker_processes(data: Callable[[], Any]) -> None:
    # Grain starts its workers anew for each pass, which takes seconds.
    tried = assert_resume_exact(model, lambda: {"x": xptrain_grain.source(data()), "epochs": 2}, cuts=[7])
    assert tried == 1


def test_a_pass_of_a_map_dataset_has_all_samples_in_an_order_of_its_own() -> None:
    plain = grain.MapDataset.range(10).seed(1).shuffle().batch(4)
    data = xptrain_grain.source(plain)
    passes = [np.concatenate(list(data)).tolist() for _ in range(3)]
    assert [sorted(order) for order in passes] == [list(range(10))] * 3
    assert passes[0] != passes[1] != passes[2]
    assert passes[0] == np.concatenate(list(plain)).tolist()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (lambda: loader(), lambda: loader(seed=4), "seed=4"),
        (lambda: loader(), lambda: loader(batch=10), "batch_size=10"),
        (lambda: loader(), lambda: loader(size=32), "32"),
        (lambda: loader(), lambda: loader(workers=1), "workers: 1"),
        (lambda: dataset(), lambda: dataset(seed=4), "seeds=4"),
        (lambda: dataset(), lambda: dataset(batch=10), "batch_size=10"),
        (lambda: dataset(), lambda: dataset(size=32), "length=32"),
        (lambda: in_workers(1), lambda: in_workers(2), "2 datasets"),
        (lambda: dataset(), lambda: loader(), "IndexSampler"),
    ],
)
def test_changed_data_are_refused(before: Callable[[], Any], after: Callable[[], Any], named: str) -> None:
    state = xptrain_grain.source(before()).get_state()
    xptrain_grain.source(before()).set_state(state)
    with pytest.raises(xptrain.ChangedError, match=named) as refused:
        xptrain_grain.source(after()).set_state(state)
    assert refused.value.expected
    assert refused.value.remedy


def test_a_changed_worker_count_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPTRAIN_HOME", str(tmp_path))
    with xptrain.run("grain", key="k", seed=0) as run:
        run.fit(model(), xptrain_grain.source(loader()), epochs=1, verbose=0)
        assert "approximate" not in str(run.grade)
    other = model()
    with (
        pytest.raises(xptrain.ChangedError, match="workers: 0"),
        xptrain.run("grain", resume="k", seed=0, allow="epochs") as run,
    ):
        run.fit(other, xptrain_grain.source(loader(workers=1)), epochs=2, verbose=0)
    assert int(other.optimizer.iterations) == 0


def test_global_random_numbers_and_other_objects_are_refused() -> None:
    data = xptrain_grain.source(dataset(transform=Careless()))
    with pytest.raises(xptrain.InexactError, match="global generators"):
        list(data)
    with pytest.raises(xptrain.UsageError, match="iterated over again"):
        xptrain_grain.source([1])
