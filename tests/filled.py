"""What the batches of an epoch are when samples are skipped: the rule of docs/faults.md, as plain code."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


def filled_batches(
    order: Sequence[int], bad: Collection[int], size: int, *, drop_last: bool = False
) -> list[list[int]]:
    """The slot of a skipped sample is filled with the last sample that is not used yet."""
    batches, first, end = [], 0, len(order)
    while first < end:
        slots: list[int | None] = [None] * min(size, len(order) - first)
        tries = deque((offset, first + offset) for offset in range(len(slots)))
        own = len(tries)
        while tries:
            offset, sequence = tries.popleft()
            own -= 1
            if own >= 0 and sequence >= end:
                continue
            if order[sequence] not in bad:
                slots[offset] = order[sequence]
                continue
            judged = first + offset + 1 if own >= 0 else first + len(slots)
            if end > judged:
                end -= 1
                tries.append((offset, end))
        batch = [sample for sample in slots if sample is not None]
        if batch and not (drop_last and len(batch) < size):
            batches.append(batch)
        first += len(slots)
    return batches
