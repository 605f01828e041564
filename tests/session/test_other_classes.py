"""A callback of another class under the same name is noticed, and what is allowed works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest

import xptrain
from tests.examples import X, Y, small
from tests.session.conftest import Runs
from xptrain.errors import ChangedError


def counter(start: Any) -> Any:
    class Counter(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            if start is not None:
                self.seen = start

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if isinstance(start, list):
                self.seen.append(batch)
            elif start is not None:
                self.seen += 1

    Counter.__qualname__ = "Counter"
    return Counter()


@pytest.mark.parametrize(("start", "now", "seen"), [([], "list", 3), (None, "not there", None)])
def test_another_class_of_the_same_name(
    runs: Runs, stop_at: Callable[[int], Any], start: Any, now: str, seen: int | None
) -> None:
    policy = (xptrain.every(steps=2),)

    def fit(callback: Any, batches: int, **more: Any) -> Any:
        with runs.open("k", checkpoint=policy, **more) as run:
            callbacks = [callback, stop_at(batches)]
            run.fit(small(), X, Y, epochs=1, batch_size=8, verbose=0, callbacks=callbacks)
            return run

    with pytest.raises(RuntimeError):
        fit(counter(0), 4)
    with pytest.raises(ChangedError, match=rf"Counter.seen +a number +{now} "):
        fit(counter(start), 10**6, resume=True)
    callback = counter(start)
    assert fit(callback, 10**6, resume=True, allow="callbacks").grade.level == "approximate"
    found = vars(callback).get("seen")
    assert (found if found is None else len(found)) == seen
