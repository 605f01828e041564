"""Arrays as Keras converts, checks and splits them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xptrain.data.arrays import ArraySource, Shuffle
from xptrain.data.passes import Passes
from xptrain.errors import UsageError


def split_validation(x: Any, y: Any, sample_weight: Any, fraction: float) -> tuple[Any, Any]:
    """Return ((x, y, sample_weight), validation_data): the last `fraction` of the samples is held out."""
    from keras.src.trainers.data_adapters import array_slicing

    train, held_out = array_slicing.train_validation_split((x, y, sample_weight), validation_split=fraction)
    return train, held_out


def are_arrays(data: Any) -> bool:
    """Tell whether all of `data` are arrays, data frames or sparse matrices, nested or not."""
    from keras.src.trainers.data_adapters import array_data_adapter

    return bool(array_data_adapter.can_convert_arrays(data))


def weights_of(y: Any, class_weight: dict[int, float]) -> Any:
    """Return the sample weights that weights by class mean for these targets."""
    from keras.src.trainers.data_adapters import data_adapter_utils

    return data_adapter_utils.class_weight_to_sample_weights(y, class_weight)


def placed(batch: Any) -> Any:
    """Return a batch on the devices where the current distribution wants it."""
    from keras.src.backend.jax import trainer as jax_trainer

    return jax_trainer._distribute_data(batch)


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
    restarts: bool = False,
) -> ArraySource:
    """Return a source over arrays, converted and checked as Keras does it."""
    import keras
    from keras.src.trainers.data_adapters import array_data_adapter, array_slicing

    adapter = array_data_adapter.ArrayDataAdapter(
        x, y, sample_weight, batch_size=batch_size, steps=steps_per_epoch, class_weight=class_weight
    )
    sliceables = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="jax")

    def part(sliceable: Any, indices: Any) -> Any:
        return None if sliceable is None else sliceable.convert_to_jax_compatible(sliceable[indices])

    def take(indices: Any) -> Any:
        return keras.tree.map_structure(lambda s: part(s, indices), sliceables)

    def take_flat(indices: Any) -> Any:
        return tuple(part(sliceable, indices) for sliceable in sliceables)

    # Walking a nested structure costs as much as slicing the arrays: not where there is none.
    is_flat = isinstance(sliceables, tuple) and not any(map(keras.tree.is_nested, sliceables))
    take = take_flat if is_flat else take
    size = adapter._num_samples
    passes = Passes(math.ceil(size / adapter.batch_size), steps_per_epoch, first_epoch, restarts)
    return ArraySource(take, size, adapter.batch_size, shuffle, seed, passes)


def placer() -> Callable[[Any], Any]:
    """Return the function that puts a batch where the current distribution wants it (else: leaves it)."""
    import keras

    return placed if keras.distribution.distribution() is not None else lambda batch: batch


def joined(outputs: list[Any], *, as_numpy: bool = False) -> Any:
    """Return batches of outputs, in the structure of one of them, joined along the samples.

    Args:
        outputs: At least one batch.
        as_numpy: Return NumPy arrays, not JAX arrays.
    """
    import jax.numpy as jnp
    import keras
    import numpy as np

    if len(outputs) == 1 and not as_numpy:
        return outputs[0]
    join: Callable[..., Any] = np.concatenate if as_numpy else jnp.concatenate
    return keras.tree.map_structure(lambda *parts: join(parts), *outputs)


def on_host(outputs: Any) -> Any:
    """Return the outputs of one batch as NumPy arrays, in their structure."""
    import keras
    import numpy as np

    return keras.tree.map_structure(np.array, outputs)


def have_one_shape(batches: Sequence[Any]) -> bool:
    """Tell whether all batches have one structure, and the same shapes and dtypes."""
    import jax

    def shape(batch: Any) -> Any:
        leaves, structure = jax.tree.flatten(batch)
        return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]

    first = shape(batches[0])
    return all(shape(batch) == first for batch in batches[1:])


def shapes(batch: Any) -> str:
    """Return the dtypes and shapes of a batch's arrays as text, such as `float32[8,4] float32[8,1]`."""
    import jax
    import numpy as np

    def text(leaf: Any) -> str:
        return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}".replace(" ", "")

    return " ".join(map(text, jax.tree.leaves(batch)))


def stacked(batches: Sequence[Any]) -> Any:
    """Return batches of one shape as one, stacked along a new first axis.

    Raises:
        UsageError: If they are sparse.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.sparse import JAXSparse

    def stack(*leaves: Any) -> Any:
        if isinstance(leaves[0], JAXSparse):
            raise UsageError(
                "fused=True needs dense arrays",
                found=f"a {type(leaves[0]).__name__}",
                remedy="leave out fused=True, or make the data dense",
            )
        return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves)

    return jax.tree.map(stack, *batches, is_leaf=lambda leaf: isinstance(leaf, JAXSparse))
