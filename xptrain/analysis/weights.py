"""A run's weights for use elsewhere: all of a model's variables, or none."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xptrain.analysis.runs import Home, find_run
from xptrain.checkpoint.receipts import Loaded
from xptrain.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    NotCompiledError,
    RestoreMismatchError,
)
from xptrain.state.records import VariableRecord
from xptrain.state.restore import restore_variables
from xptrain.state.snapshot import END
from xptrain.training.keras_backend.variables import finish_restore, is_built, layer_records

if TYPE_CHECKING:
    from xptrain.checkpoint.store import Store

# Variables outside the tree of layers are keyed by their role.
_OF_THE_MODEL = ("model/", "trainable/", "non_trainable/")


def load_weights(model: Any, run: Any, step: int | None = None, home: Home = None) -> int:
    """Load a run's weights into a model: every variable of its layers, and nothing else.

    The optimizer and the metrics of `model` are left alone; it need not be compiled. Nothing on disk
    changes, so this may be called while the run trains.

    Args:
        model: A built Keras model with the layers of the run's model.
        run: A key, an MLflow run id, a unique prefix of either, `"@last"`, or a `Run`.
        step: Step of a checkpoint; the newest whole one when None. A checkpoint that ends a fit gives the
            weights as the fit left them (with `restore_best_weights`, those of the best epoch).
        home: Folder of the runs; `$XPTRAIN_HOME`, else `.xptrain` in the working directory, when None.

    Returns:
        The step of the checkpoint that was loaded.

    Raises:
        RunNotFoundError: No run or more than one has that name.
        CheckpointNotFoundError: There is no such checkpoint.
        CheckpointDamagedError: Its bytes are not those that were written.
        RestoreMismatchError: The model's layers are not those of the run; then nothing was written.
        NotCompiledError: The model is not built, so that it has no variables yet.

    Example:
        >>> xptrain.load_weights(model, "3f2a")  # doctest: +SKIP
        540
    """
    from xptrain.checkpoint.store import Store

    if not is_built(model):
        raise NotCompiledError(
            "the model is not built: its layers have no variables yet",
            expected="a model that knows the shape of its inputs",
            found=f"{type(model).__name__} {getattr(model, 'name', '')!r}",
            remedy="give it a keras.Input, or call model.build(input_shape) first",
        )
    folder = find_run(run, home)
    store = Store(folder.checkpoints)
    loaded = store.load(step) if step is not None else _newest_good(store, folder.key)
    _write(layer_records(model), _weights(loaded))
    finish_restore(model)
    return loaded.receipt.step


def _newest_good(store: Store, key: str) -> Loaded:
    steps = store.folder.steps()
    for step in reversed(steps):
        try:
            return store.load(step)
        except CheckpointDamagedError as error:
            # Only who holds the run's lock may move it aside.
            warnings.warn(f"{error.what} ({error.found}); an earlier one is tried", stacklevel=3)
    raise CheckpointNotFoundError(
        f"run {key} has no checkpoint to load",
        expected=f"at least one whole checkpoint in {store.folder.path}",
        found=f"{len(steps)} damaged ones" if steps else "none",
        remedy="let the run reach its first checkpoint, or name another run",
    )


def _weights(loaded: Loaded) -> Mapping[str, Any]:
    """Return the arrays of the model's own variables, as the fit left them when it ended here."""
    ended = {key[len(END) :]: leaf for key, leaf in loaded.leaves.items() if key.startswith(END)}
    leaves = {**loaded.leaves, **(ended if loaded.receipt.cursor.done else {})}
    return {key: leaf for key, leaf in leaves.items() if key.startswith(_OF_THE_MODEL)}


def _write(wanted: list[VariableRecord], leaves: Mapping[str, Any]) -> None:
    try:
        restore_variables(wanted, leaves)
    except RestoreMismatchError as error:
        remedy = "make a model with the layers of the run's model"
        raise RestoreMismatchError(
            error.what, expected=error.expected, found=error.found, remedy=remedy
        ) from None
