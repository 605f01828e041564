"""Evaluation and prediction: one pass over a source with the test or predict step."""

from __future__ import annotations

from typing import Any

from xptrain.data.source import Source, in_chunks
from xptrain.training.keras_backend import arrays
from xptrain.training.keras_backend import callbacks as kc
from xptrain.training.keras_backend.live import LiveState
from xptrain.training.step import predict_step, test_step


def evaluate_source(model: Any, source: Source, callbacks: Any) -> dict[str, float]:
    """Run one pass of the test step and return the logs as Python floats.

    Args:
        model: A built, compiled model.
        source: The batches.
        callbacks: A callback list; its `on_test_*` hooks are called.
    """
    step = test_step(model)
    place = arrays.placer()
    hooks = kc.has_batch_hook(callbacks, ("on_test_batch_begin", "on_test_batch_end"))
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    live = LiveState(model, training=False)
    logs: Any = {}
    batches = 0
    try:
        for chunk in in_chunks(source.epoch(0, 0), model.steps_per_execution):
            if hooks:
                callbacks.on_test_batch_begin(batches)
            for batch in chunk:
                logs, state = step.call(live.take(), place(batch))
                live.put(state)
            batches += len(chunk)
            if hooks:
                callbacks.on_test_batch_end(batches - 1, logs)
            if model.stop_evaluating:
                break
    finally:
        if not live.lost:
            live.close()
    results = kc.pythonify(kc.epoch_logs(model, logs))
    callbacks.on_test_end(results)
    return results


def predict_source(model: Any, source: Source, callbacks: Any) -> Any:
    """Run one pass of the predict step and return NumPy arrays in the structure of the model's outputs."""
    import jax
    import numpy as np

    step = predict_step(model)
    place = arrays.placer()
    callbacks.on_predict_begin()
    state = ([v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables])
    outputs: list[Any] = []
    model.stop_predicting = False
    for number, batch in enumerate(source.epoch(0, 0)):
        callbacks.on_predict_batch_begin(number)
        output, state = step.call(state, place(batch))
        outputs.append(jax.tree.map(np.asarray, output))
        callbacks.on_predict_batch_end(number, {"outputs": output})
        if model.stop_predicting:
            break
    for variable, value in zip(model.non_trainable_variables, state[1], strict=True):
        variable.assign(value)
    callbacks.on_predict_end()
    return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs)
