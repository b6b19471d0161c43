"""Native memory as NumPy arrays, and NumPy's global generator, independent of NumPy's version."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline import _native

__all__ = ["array_on", "seed_global"]


def array_on(tensor: _native.Tensor) -> np.ndarray[Any, Any]:
    """An array on the memory of a batch. It is writable, unlike that of `numpy.from_dlpack` before NumPy
    2.1."""
    return np.asarray(tensor.memory())


def seed_global(seed: Any) -> None:
    """Does what `numpy.random.seed` does, for every bit generator."""
    np.random.seed(seed)
    if not isinstance(np.random.mtrand._rand._bit_generator, np.random.MT19937):
        # For these NumPy keeps the second of a pair of normal numbers, which the next draw would return.
        np.random.set_state({**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
