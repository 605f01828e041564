"""Evaluation and prediction: one pass over a source with the test or predict step."""

from __future__ import annotations

from typing import Any

from xptrain.data.source import Source, in_chunks
from xptrain.training.keras_backend import arrays
from xptrain.training.keras_backend import callbacks as kc
from xptrain.training.keras_backend.live import PREDICT, TEST, LiveState
from xptrain.training.progress import Progress
from xptrain.training.step import predict_step, test_step


def evaluate_source(
    model: Any, source: Source, callbacks: Any, progress: Progress, fit: int = 0, epoch: int = 0
) -> dict[str, float]:
    """Run one pass of the test step and return the logs as Python floats.

    Args:
        model: A built, compiled model.
        source: The batches.
        callbacks: A callback list; its `on_test_*` hooks are called.
        progress: Shows how far it is.
        fit: Number of the fit that this validates.
        epoch: Its epoch.
    """
    step = test_step(model)
    place = arrays.placer()
    hooks = kc.has_batch_hook(callbacks, ("on_test_batch_begin", "on_test_batch_end"))
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    live = LiveState(model, TEST)
    logs: Any = {}
    done = 0
    try:
        for chunk in in_chunks(source.epoch(fit, epoch), model.steps_per_execution):
            if hooks:
                callbacks.on_test_batch_begin(done)
            for batch in chunk:
                logs, state = step.call(live.take(), place(batch))
                live.put(state)
            done += len(chunk)
            progress.batch_end(done, logs)
            if hooks:
                callbacks.on_test_batch_end(done - 1, logs)
            if model.stop_evaluating:
                break
    finally:
        live.close()
    results = kc.pythonify(kc.epoch_logs(model, logs))
    callbacks.on_test_end(results)
    progress.epoch_end(done, results)
    return results


def predict_source(model: Any, source: Source, callbacks: Any, progress: Progress) -> Any:
    """Run one pass of the predict step and return NumPy arrays in the structure of the model's outputs.

    Args:
        model: A built model.
        source: The batches.
        callbacks: A callback list; its `on_predict_*` hooks are called.
        progress: Shows how far it is.
    """
    step = predict_step(model)
    place = arrays.placer()
    model.stop_predicting = False
    callbacks.on_predict_begin()
    live = LiveState(model, PREDICT)
    joined: list[Any] = []
    done = 0
    try:
        for chunk in in_chunks(source.epoch(0, 0), model.steps_per_execution):
            callbacks.on_predict_batch_begin(done)
            outputs = []
            for batch in chunk:
                output, state = step.call(live.take(), place(batch))
                live.put(state)
                outputs.append(output)
            done += len(chunk)
            joined.append(arrays.joined(outputs))
            progress.batch_end(done, {})
            callbacks.on_predict_batch_end(done - 1, {"outputs": joined[-1]})
            if model.stop_predicting:
                break
    finally:
        live.close()
    callbacks.on_predict_end()
    progress.epoch_end(done, {})
    return arrays.joined(joined, as_numpy=True)
