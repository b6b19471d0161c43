"""A batch as the trainer knows it: what it is made of, and what has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any

from feedline._torch.dataset_state import DatasetPlace
from feedline._workers.retries import PendingFault

__all__ = ["Batch"]


class Batch:
    """A batch that is to be made. Attributes that a batch without faults does not need are class
    attributes: assign a new value, never change one in place."""

    # As the engine counts it.
    planned: int = -1
    # Its first samples are its own; others were taken to fill slots of earlier batches.
    own: int = 0
    # By offset: indices of other samples, offsets that samples come from, and what has no sample of its own.
    fills: Mapping[int, Any] = MappingProxyType({})
    moves: Mapping[int, int] = MappingProxyType({})
    left_out: AbstractSet[int] = frozenset()
    substituted: AbstractSet[int] = frozenset()
    # Samples that were made after some tries, to be reported in order.
    retried: Sequence[PendingFault] = ()
    # The place in the data set behind it, if that has one.
    place: DatasetPlace | None = None
    # What is delivered, and how many samples that are.
    content: Any = None
    samples: int = 0
    is_settled: bool = False

    def __init__(self, number: int, index: Any, size: int, worker: int | None) -> None:
        """`number` is as messages count it."""
        self.number, self.index, self.size, self.worker = number, index, size, worker

    def sample(self, offset: int, *, is_batched: bool) -> Any:
        """The index of what is made at an offset."""
        if offset in self.fills:
            return self.fills[offset]
        return self.index[self.moves.get(offset, offset)] if is_batched else self.index
