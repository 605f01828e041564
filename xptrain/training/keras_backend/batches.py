"""What datasets yield, as the train step gets it."""

from __future__ import annotations

from typing import Any

import numpy as np

from xptrain.state.digest import digest_array, digest_json


class Batches:
    """Turns what datasets yield into what the train step gets, as Keras does it, in memory of its own.

    Args:
        class_weight: Weight by class index.
    """

    def __init__(self, class_weight: dict[int, float] | None = None) -> None:
        from keras.src.trainers.data_adapters.py_dataset_adapter import PyDataset, PyDatasetAdapter

        self._adapter = PyDatasetAdapter(PyDataset(), class_weight=class_weight)

    def convert(self, batch: Any) -> Any:
        """Return a batch of arrays; a buffer that its maker uses again stays the maker's."""
        import keras
        from keras.src.trainers.data_adapters import data_adapter_utils

        standard = self._adapter._standardize_batch(batch)
        (converted,) = data_adapter_utils.get_jax_iterator([standard])
        # Keras lets the step read the very buffer, while a generator may fill it anew.
        return keras.tree.map_structure(lambda v: v.copy() if isinstance(v, np.ndarray) else v, converted)

    def convert_tensors(self, batch: Any) -> Any:
        """Return a batch of PyTorch tensors."""
        import keras

        return self.convert(
            keras.tree.map_structure(lambda v: v.detach().cpu().numpy() if hasattr(v, "detach") else v, batch)
        )

    def convert_tuple(self, batch: Any) -> Any:
        """Return a batch of a generator, which yields tuples."""
        if not isinstance(batch, tuple):
            raise ValueError(
                "a generator must yield tuples: (inputs,), (inputs, targets) or "
                f"(inputs, targets, sample_weights), not {type(batch).__name__}"
            )
        return self.convert(batch)


def digest_batch(batch: Any) -> str:
    """Return one digest of all arrays of a batch."""
    import jax

    # JAX's own view of the structure: a sparse array is its values and indices.
    return digest_json([digest_array(leaf) for leaf in jax.tree.leaves(batch)])


def is_indexed(data: Any) -> bool:
    """Tell whether `data` is a `keras.utils.PyDataset`."""
    import keras

    return isinstance(data, keras.utils.PyDataset)
