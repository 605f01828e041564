"""How a chunk of batches is trained: one program per step, or one for the whole chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from xptrain.training.keras_backend import arrays
from xptrain.training.keras_backend.live import LiveState
from xptrain.training.step import fused_step, train_step

# Called with the logs of `count` steps: scalars for one step, arrays of shape (count,) for more.
Told = Callable[[int, Any], None]


class Chunks(Protocol):
    """Trains chunks of batches."""

    def program(self, state: Any, first: Any) -> str | None:
        """Return the digest of the lowered program, for the shapes of a first batch."""

    def train(self, live: LiveState, chunk: Sequence[Any], told: Told) -> Any:
        """Train a chunk, call `told` after each program, and return the logs of the last step."""


class Single:
    """One step at a time.

    Args:
        model: A built, compiled model.
    """

    def __init__(self, model: Any) -> None:
        self._step = train_step(model)
        self._place = arrays.placer()

    def program(self, state: Any, first: Any) -> str | None:
        """Return the digest of the step."""
        return self._step.program(state, self._place(first))

    def train(self, live: LiveState, chunk: Sequence[Any], told: Told) -> Any:
        """Train one batch after another."""
        logs: Any = None
        for batch in chunk:
            logs, state = self._step.call(live.take(), self._place(batch))
            live.put(state)
            told(1, logs)
        return logs


class Fused:
    """A whole chunk in one program; chunks that are short, or end with a smaller batch, step by step.

    Args:
        model: A built, compiled model; its `steps_per_execution` is the length of a chunk.
    """

    def __init__(self, model: Any) -> None:
        self._single = Single(model)
        self._step = fused_step(model)
        self._length = int(model.steps_per_execution)
        self._place = arrays.placer()

    def program(self, state: Any, first: Any) -> str | None:
        """Return the digest of the program for a whole chunk."""
        return self._step.program(state, self._stacked([first] * self._length))

    def train(self, live: LiveState, chunk: Sequence[Any], told: Told) -> Any:
        """Train the chunk at once, if it is whole."""
        if len(chunk) < self._length or not arrays.have_one_shape(chunk):
            return self._single.train(live, chunk, told)
        (logs, last), state = self._step.call(live.take(), self._stacked(chunk))
        live.put(state)
        told(len(chunk), logs)
        return last

    def _stacked(self, chunk: Sequence[Any]) -> Any:
        return arrays.stacked([self._place(batch) for batch in chunk])
