"""Threads that libraries start in workers: each worker gets its share of the processors.

A library reads these variables when it is imported. What was imported before the fork keeps its number.
"""

from __future__ import annotations

import os

from feedline import _native

__all__ = ["share_processors"]

# Those of OpenMP also hold for the libraries below it, unless they have their own.
_OPENMP = "OMP_NUM_THREADS"
_BELOW_OPENMP = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_OTHERS = ("VECLIB_MAXIMUM_THREADS", "OPENCV_FOR_THREADS_NUM")

# What was set here, and not by the user.
_set: dict[str, str] = {}


def share_processors(worker_count: int, *, is_nested: bool) -> None:
    """Sets how many threads the libraries of a worker start; what the user has set stays. `is_nested` if this
    process may be a worker itself, whose share is not to be exceeded."""
    share = max(1, _native.processors() // max(1, worker_count))
    if is_nested and _OPENMP in _set:
        share = min(share, int(_set[_OPENMP]))
    names = [*_OTHERS] if _is_users(_OPENMP) else [_OPENMP, *_BELOW_OPENMP, *_OTHERS]
    for name in names:
        if not _is_users(name):
            os.environ[name] = _set[name] = str(share)


def _is_users(name: str) -> bool:
    value = os.environ.get(name)
    return value is not None and value != _set.get(name)
