"""Native memory as NumPy arrays, the same with every NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline import _native

__all__ = ["array_on"]


def array_on(tensor: _native.Tensor) -> np.ndarray[Any, Any]:
    """An array on the memory of a batch. It can be written to, unlike what `numpy.from_dlpack` makes of it
    before NumPy 2.1."""
    return np.asarray(tensor.memory())
