"""Callback lists, metric results and logs, as Keras treats them."""

from __future__ import annotations

from typing import Any


def callback_list(
    model: Any, callbacks: Any, *, history: bool, verbose: Any, epochs: int, steps: int | None
) -> Any:
    """Return a `keras.callbacks.CallbackList` without Keras's progress bar; a given list is used as it is."""
    import keras

    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=history,
        add_progbar=False,
        verbose=1 if verbose == "auto" else verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )


def has_batch_hook(callbacks: Any, hooks: tuple[str, ...]) -> bool:
    """Tell whether any callback overrides one of `hooks`, so that the list must be called for each batch."""
    from keras.src.utils import is_default

    return any(
        hasattr(callback, hook) and not is_default(getattr(callback, hook))
        for callback in callbacks.callbacks
        for hook in hooks
    )


def wait_for_callbacks(callbacks: Any) -> None:
    """Wait until batch hooks that Keras runs on other threads are done."""
    callbacks._flush_futures()


def epoch_logs(model: Any, last: Any) -> dict[str, Any]:
    """Return the model's metric results, or the last step's logs when a custom step returns other names."""
    return dict(model._get_metrics_result_or_logs(last))


def pythonify(logs: Any) -> dict[str, Any]:
    """Return logs with Python floats, nested dicts flattened, names sorted: as callbacks see them."""
    from keras.src.utils.python_utils import pythonify_logs

    return pythonify_logs(logs)  # type: ignore[no-any-return]


def flatten_logs(model: Any, logs: dict[str, Any]) -> Any:
    """Return logs as `evaluate` does without `return_dict`: one number, or a list in the metrics' order."""
    return model._flatten_metrics_in_order(logs)


def should_validate(model: Any, epoch: int, frequency: Any) -> bool:
    """Tell whether `validation_freq` names this epoch (counted from 0)."""
    return bool(model._should_eval(epoch, frequency))


def has_progress_bar(callbacks: Any) -> bool:
    """Tell whether the user brought a progress bar of their own."""
    import keras

    return any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks.callbacks)


def log_tap() -> Any:
    """Return a callback that keeps the logs of the last epoch as the callbacks before it left them.

    Callbacks add to them: `ReduceLROnPlateau` puts the learning rate there.
    """
    import keras

    class LogTap(keras.callbacks.Callback):  # type: ignore[misc]
        logs: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self.logs = dict(logs or {})

    return LogTap()


def initial_epoch(model: Any) -> int | None:
    """Return the epoch that a callback wants the fit to begin at, or None."""
    return model._initial_epoch  # type: ignore[no-any-return]


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Set what `initial_epoch` returns."""
    model._initial_epoch = epoch
