"""Native memory as NumPy arrays, and NumPy's global generator, the same with every NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline import _native

__all__ = ["array_on", "seed_global"]


def array_on(tensor: _native.Tensor) -> np.ndarray[Any, Any]:
    """An array on the memory of a batch. It can be written to, unlike what `numpy.from_dlpack` makes of it
    before NumPy 2.1."""
    return np.asarray(tensor.memory())


def seed_global(seed: Any) -> None:
    """As `numpy.random.seed`, whatever bit generator is in use."""
    np.random.seed(seed)
    if not isinstance(np.random.mtrand._rand._bit_generator, np.random.MT19937):
        # NumPy leaves the second half of a pair of normal numbers waiting then.
        np.random.set_state({**np.random.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})
