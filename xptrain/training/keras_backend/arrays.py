"""Arrays as Keras converts, checks and splits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xptrain.data.arrays import ArraySource, Shuffle
from xptrain.errors import UsageError
from xptrain.training.keras_backend.checks import capped


def split_validation(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """Return ((x, y, sample_weight), validation_data): the last `fraction` of the samples is held out."""
    from keras.src.trainers.data_adapters import array_slicing

    train, held_out = array_slicing.train_validation_split((x, y, sample_weight), validation_split=fraction)
    return train, held_out


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Return (x, y, sample_weight) of a tuple that may lack the later ones."""
    import keras

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, sample_weight


def array_source(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int | None,
    steps_per_epoch: int | None,
    shuffle: Shuffle = False,
    class_weight: dict[int, float] | None = None,
    seed: int = 0,
    first_epoch: int = 0,
) -> ArraySource:
    """Return a source over arrays, converted and checked as Keras does it.

    Raises:
        UsageError: If the data are not arrays (or nested arrays, data frames, sparse matrices).
    """
    import keras
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing

    if not array_data_adapter.can_convert_arrays((x, y, sample_weight)):
        raise UsageError(
            "this kind of data is not supported yet",
            expected="NumPy or JAX arrays, pandas data, sparse matrices, or nested lists and dicts of these",
            found=f"x of type {type(x).__module__}.{type(x).__qualname__}",
            remedy="load the data into arrays",
        )
    adapter = array_data_adapter.ArrayDataAdapter(
        x, y, sample_weight, batch_size=batch_size, steps=steps_per_epoch, class_weight=class_weight
    )
    sliceables = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")

    def take(indices: Any) -> Any:
        return keras.tree.map_structure(
            lambda s: None if s is None else s.convert_to_jax_compatible(s[indices]), sliceables
        )

    steps = capped("max_steps_per_epoch", steps_per_epoch)
    return ArraySource(take, adapter._num_samples, adapter.batch_size, shuffle, seed, steps, first_epoch)


def placer() -> Callable[[Any], Any]:
    """Return the function that puts a batch where the current distribution wants it (else: leaves it)."""
    import keras
    from keras.src.backend.jax import trainer as jax_trainer

    if keras.distribution.distribution() is None:
        return lambda batch: batch
    return jax_trainer._distribute_data  # type: ignore[no-any-return]
