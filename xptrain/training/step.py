"""Compiled train, test and predict steps whose state is donated.

Each step is the model's own `train_step`, `test_step` or `predict_step`, jitted as Keras does it, so the
compiled program and its bits are Keras's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from xptrain.state.digest import digest_json
from xptrain.training.keras_backend.arrays import joined
from xptrain.training.keras_backend.checks import is_compiled
from xptrain.training.keras_backend.live import PREDICT, TEST, TRAIN, out_shardings
from xptrain.training.keras_backend.outside import Constants
from xptrain.training.keras_backend.variables import outside


class Step:
    """One compiled step: `(state, batch) -> (outputs, state)`.

    Called with an iterator in place of a batch it behaves as Keras's own functions do, so Keras's methods
    can share it: it is kept on the model, and `model.compile` throws it away.

    Args:
        function: What to compile.
        model: The model it belongs to; its `run_eagerly` and `jit_compile` are followed.
        shardings: Shardings of the state that comes out, or None.
        donate: Whether the step may reuse the buffers of the state that goes in.
        joins: Whether the outputs of several batches are joined, as predictions are.
        constants: What is baked into it; its own when None.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        model: Any,
        shardings: Any,
        *,
        donate: bool = True,
        joins: bool = False,
        constants: Constants | None = None,
    ) -> None:
        import jax

        self.compiled = is_compiled(model)
        self.fused: Step | None = None
        self.constants = Constants(lambda: outside(model)) if constants is None else constants
        self._joins = joins
        self._function = function
        out = None if shardings is None else (None, shardings)
        self._jit = partial(jax.jit, donate_argnums=0 if donate else (), out_shardings=out)
        self.call = self._compile()
        self._per_call = int(model.steps_per_execution)

    def __call__(self, state: Any, batches: Iterator[Any]) -> Any:
        last, state = self.call(state, next(batches))
        outputs = [last]
        for batch in islice(batches, self._per_call - 1):
            last, state = self.call(state, batch)
            outputs.append(last)
        return joined(outputs) if self._joins else last, state

    def program(self, state: Any, batch: Any) -> str | None:
        """Return the digest of the lowered program for these shapes (StableHLO text, without locations).

        None when the step is not compiled: tracing it would run the user's Python once more.
        """
        if not self.compiled:
            return None
        jitted: Any = self.call
        return digest_json(jitted.lower(state, batch).as_text())

    def set_constants(self, state: Mapping[str, Any]) -> None:
        """Be compiled as the step was whose `constants.get_state()` this is."""
        if self.constants.set_state(state):
            self.fused, self.call = None, self._compile()

    def _compile(self) -> Callable[..., Any]:
        # A new function each time: JAX keeps what it traced by the function.
        return self._jit(self.constants.around(self._function)) if self.compiled else self._function


def constants(model: Any) -> dict[str, dict[str, Any]]:
    """Return what is baked into the model's compiled steps, by step."""
    steps = {name: getattr(model, name, None) for name in _STEPS}
    states = {name: step.constants.get_state() for name, step in steps.items() if isinstance(step, Step)}
    return {name: state for name, state in states.items() if state}


def restore_constants(model: Any, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the model's steps be compiled as those were whose `constants` were kept."""
    for name, state in states.items():
        _STEPS[name](model).set_constants(state)


def train_step(model: Any) -> Step:
    """Return the model's compiled train step, made anew after each `compile`."""
    return _kept(model, "train_function", model.train_step, TRAIN, donate=True)


def test_step(model: Any) -> Step:
    """Return the model's compiled test step; its inputs stay whole, so a failed step loses nothing."""
    return _kept(model, "test_function", model.test_step, TEST, donate=False)


def predict_step(model: Any) -> Step:
    """Return the model's compiled predict step, whose inputs stay whole."""

    def function(state: Any, batch: Any) -> Any:
        outputs, non_trainable = model.predict_step(state, batch)
        return outputs, (state[0], non_trainable)

    return _kept(model, "predict_function", function, PREDICT, donate=False, joins=True)


def fused_step(model: Any) -> Step:
    """Return the train step over several batches in one program: `(state, batches) -> (logs, state)`.

    The batches are stacked along a new first axis; `logs` are those of each step, stacked, and of the last.
    """
    import jax

    single = train_step(model)
    if single.fused is None:

        def function(state: Any, batches: Any) -> Any:
            def step(state: Any, batch: Any) -> Any:
                logs, state = model.train_step(state, batch)
                return state, logs

            state, logs = jax.lax.scan(step, state, batches)
            return (logs, jax.tree.map(lambda values: values[-1], logs)), state

        single.fused = Step(function, model, out_shardings(model, TRAIN), constants=single.constants)
    return single.fused


def _kept(
    model: Any,
    attribute: str,
    function: Callable[..., Any],
    names: tuple[str, ...],
    *,
    donate: bool,
    joins: bool = False,
) -> Step:
    kept = getattr(model, attribute, None)
    if isinstance(kept, Step) and kept.compiled == is_compiled(model):
        return kept
    step = Step(function, model, out_shardings(model, names), donate=donate, joins=joins)
    object.__setattr__(model, attribute, step)
    return step


_STEPS: Final[Mapping[str, Callable[[Any], Step]]] = {
    "train_function": train_step,
    "test_function": test_step,
    "predict_function": predict_step,
}
