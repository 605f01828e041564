"""One step at a time, for loops of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xptrain.errors import UsageError
from xptrain.training.keras_backend import arrays, variables
from xptrain.training.keras_backend import callbacks as kc
from xptrain.training.keras_backend.live import PREDICT, TEST, TRAIN, LiveState
from xptrain.training.step import Step, predict_step, test_step, train_step

# Called before a step with what returns the shapes of its batch, and the digest of its lowered program.
Before = Callable[[Callable[[], str], Callable[[], str | None]], None]
# Called when a step took the state and failed; puts the last snapshot back and says in words what it did.
Rescue = Callable[[LiveState], str]

_LOST = (
    "the step had taken the model's variables and failed, so their values are gone. Load the weights again "
    "(xptrain.load_weights, model.load_weights), and compile the model for a new optimizer"
)


def train(
    model: Any,
    x: Any,
    y: Any,
    sample_weight: Any,
    class_weight: dict[int, float] | None,
    before: Before | None = None,
    rescue: Rescue | None = None,
) -> dict[str, float]:
    """Train one step and return its logs.

    Args:
        model: A compiled model.
        x: Inputs of one batch.
        y: Targets.
        sample_weight: Weights of shape (samples,).
        class_weight: Weight by class index.
        before: Called before the step with what returns its batch's shapes, and its program's digest.
        rescue: Puts a snapshot back into the model after a step that failed with the state in its hands.

    Raises:
        UsageError: If both kinds of weights are given.
    """
    if class_weight is not None:
        if sample_weight is not None:
            raise UsageError(
                "train_on_batch takes weights by sample or by class, not both",
                expected="sample_weight or class_weight",
                found="both",
                remedy="multiply them into sample_weight",
            )
        sample_weight = arrays.weights_of(y, class_weight)
    return _step(model, train_step, TRAIN, (x, y, sample_weight), before, rescue)


def test(model: Any, x: Any, y: Any, sample_weight: Any) -> dict[str, float]:
    """Return the logs of one batch; see `train`."""
    return _step(model, test_step, TEST, (x, y, sample_weight))


def predict(model: Any, x: Any) -> Any:
    """Return the outputs for one batch as NumPy arrays."""
    variables.build_for_prediction(model, lambda: (x,))
    outputs = _call(model, predict_step(model), PREDICT, arrays.placed((x,)))
    return arrays.on_host(outputs)


def _step(
    model: Any,
    step_of: Callable[[Any], Step],
    names: tuple[str, ...],
    batch: Any,
    before: Before | None = None,
    rescue: Rescue | None = None,
) -> dict[str, float]:
    batch = arrays.placed(batch)
    variables.build(model, lambda: batch)
    model.reset_metrics()
    logs: dict[str, float] = _call(model, step_of(model), names, batch, before, rescue, kc.pythonify)
    return logs


def _call(
    model: Any,
    step: Step,
    names: tuple[str, ...],
    batch: Any,
    before: Before | None = None,
    rescue: Rescue | None = None,
    read: Callable[[Any], Any] = lambda outputs: outputs,
) -> Any:
    live = LiveState(model, names)
    try:
        if before is not None:
            before(lambda: arrays.shapes(batch), lambda: step.program(live.take(), batch))
        outputs, state = step.call(live.take(), batch)
        live.put(state)
        # In here: an error at run time may show only when a result is read.
        return read(outputs)
    except BaseException as error:
        if live.lost:
            error.add_note(f"xptrain: {_LOST if rescue is None else rescue(live)}")
            live.forget()
        raise
    finally:
        live.close()
