"""The order of the data: a function of (seed, fit, epoch, batch) and of nothing else (law L6).

A permutation is the stable argsort of 64-bit words from a Philox counter generator, keyed by BLAKE3 of the
names above. NumPy promises the raw stream of a bit generator for ever, not the stream of `permutation`
(NEP 19), so this order does not change with NumPy's version.
Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); NumPy NEP 19.
"""

from __future__ import annotations

import blake3
import numpy as np
import numpy.typing as npt


def permutation(n: int, *names: int | str) -> npt.NDArray[np.int64]:
    """Return a permutation of `range(n)` that depends on `names` only.

    Args:
        n: Number of elements.
        names: What the order is a function of, for example `seed, fit, epoch`.

    Returns:
        int64 array of shape (n,).

    Example:
        >>> permutation(5, 0, 0, 1).tolist() == permutation(5, 0, 0, 1).tolist()
        True
    """
    key = np.frombuffer(blake3.blake3(repr(names).encode()).digest(16), np.uint64)
    words = np.random.Philox(key=key).random_raw(n)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
