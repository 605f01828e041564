"""Callback lists, metric results and logs, as Keras treats them."""

from __future__ import annotations

import warnings
from pathlib import Path
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


def write_elsewhere(callbacks: Any, folder: Path) -> None:
    """Let callbacks of Keras that write files write them into a folder: nobody's files are touched.

    Args:
        callbacks: A `CallbackList`, before `on_train_begin`.
        folder: The folder; each callback gets one of its own in it.
    """
    import keras

    for number, callback in enumerate(callbacks.callbacks):
        for name in ("CSVLogger", "ModelCheckpoint", "BackupAndRestore", "TensorBoard", "OrbaxCheckpoint"):
            kind = getattr(keras.callbacks, name, None)
            if kind is not None and isinstance(callback, kind):
                _write_to(callback, folder / str(number))
    # The rows before the checkpoint are not in the new file.
    warnings.filterwarnings("ignore", message="CSVLogger: ")


def _write_to(callback: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    old = next(
        (str(vars(callback)[n]) for n in ("backup_dir", "log_dir", "directory") if n in vars(callback)), ""
    )
    for name, value in list(vars(callback).items()):
        if name in ("filename", "filepath"):
            setattr(callback, name, str(folder / Path(str(value)).name))
        elif old and isinstance(value, str) and value.startswith(old):
            # The folder, and the files in it that were named when the callback was made.
            setattr(callback, name, str(folder) + value[len(old) :])
