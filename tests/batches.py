"""Helpers that compare batches of the native pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Batch = dict[str, Any]


def indices(batches: Iterable[Batch]) -> list[int]:
    return [int(index) for batch in batches for index in batch["index"]]


def kept(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    """Copies of batches, which do not depend on the memory of the loader."""
    return [{name: np.array(value) for name, value in batch.items()} for batch in batches]


def assert_same(ours: Sequence[Batch], theirs: Sequence[Batch]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
