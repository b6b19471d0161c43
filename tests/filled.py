"""The batches of an epoch with skipped samples: the rule of docs/faults.md as plain code."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


def filled_batches(
    order: Sequence[int], bad: Collection[int], size: int, *, drop_last: bool = False
) -> list[list[int]]:
    """Fills the slot of a skipped sample with the last sample that is not used yet."""
    planned = [list(order[first : first + size]) for first in range(0, len(order), size)]
    batches, _ = filled(planned, bad)
    return [batch for batch in batches if not (drop_last and len(batch) < size)]


def filled(
    planned: Sequence[Sequence[int]], bad: Collection[int], *, drop_last: bool = False
) -> tuple[list[list[int]], list[int]]:
    """The same for batches of any sizes, and the samples that are skipped. With `drop_last` a batch that is
    shorter than planned is left out."""
    order = [sample for batch in planned for sample in batch]
    batches, skipped, first, end = [], [], 0, len(order)
    for size in map(len, planned):
        if first >= end:
            break
        slots: list[int | None] = [None] * size
        retries = deque((offset, first + offset) for offset in range(size))
        own = len(retries)
        while retries:
            offset, sequence = retries.popleft()
            own -= 1
            if own >= 0 and sequence >= end:
                continue
            if order[sequence] not in bad:
                slots[offset] = order[sequence]
                continue
            skipped.append(order[sequence])
            judged = first + offset + 1 if own >= 0 else first + size
            if end > judged:
                end -= 1
                retries.append((offset, end))
        batch = [sample for sample in slots if sample is not None]
        if batch and not (drop_last and len(batch) < size):
            batches.append(batch)
        first += size
    return batches, skipped
