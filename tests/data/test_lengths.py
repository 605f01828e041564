"""Data of another length than before the stop are refused before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest

from tests.examples import X, Y
from xptrain.errors import ChangedError
from xptrain.provenance.diff.compare import compare, refuse
from xptrain.training.keras_backend.sources import source_of


class Items(keras.utils.PyDataset):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return X[:8], Y[:8]


class Position:
    """An iterator that says where it is, and how many batches it has."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return X[:8], Y[:8]

    def get_state(self) -> Any:
        return {}

    def set_state(self, state: Any) -> None:
        pass


KINDS: dict[str, Callable[[int], Any]] = {
    "arrays": lambda n: source_of(X[: 8 * n], Y[: 8 * n], batch_size=8),
    "arrays with steps": lambda n: source_of(X[: 8 * n], Y[: 8 * n], batch_size=8, steps=2),
    "dataset": lambda n: source_of(Items(n)),
    "dataset with steps": lambda n: source_of(Items(n), steps=2),
    "stateful": lambda n: source_of(Position(n)),
    "stateful with steps": lambda n: source_of(Position(n), steps=2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_length_is_one_clear_error(kind: str) -> None:
    def manifest(length: int) -> Any:
        return {"order": KINDS[kind](length).describe()}

    assert not compare(manifest(5), manifest(5))
    differences = compare(manifest(5), manifest(4))
    with pytest.raises(ChangedError, match=r"data order: (num_samples|length)") as refused:
        refuse(differences)
    assert refused.value.remedy
    assert any(d.before in ("5", "40") and d.after in ("4", "32") for d in differences)
