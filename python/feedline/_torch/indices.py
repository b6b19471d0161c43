"""What the sampler gives, without what is to be left out."""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from feedline._account import in_json

__all__ = ["Given", "Planned", "keys", "without"]

# This many samples of the start of an epoch are remembered, to be repeated where ranks must stay even.
_REMEMBERED = 4096

# The indices of a batch, and how many of them, at the end, repeat others.
Given = tuple[Any, int]


def keys(excluded: Iterable[Any]) -> frozenset[Any]:
    """The indices of a quarantine file as they can be looked up: numbers and texts as they are, others in
    words, as the file has them of a loader."""
    return frozenset(in_json(_as_tuple(index)) for index in excluded)


def _as_tuple(index: Any) -> Any:
    return tuple(map(_as_tuple, index)) if isinstance(index, list) else index


def without(
    batches: Iterable[Iterable[Any]],
    excluded: frozenset[Any],
    *,
    left_out: Callable[[int], None],
    dropped: Callable[[int], None],
    ranks: int,
    drop_last: bool,
) -> Iterator[Given]:
    """Batches of the same sizes without some samples: what follows moves up. With several ranks the last
    ones are filled by repeating the first samples, so that each rank has as many as the others."""
    waiting: deque[Any] = deque()
    sizes: deque[int] = deque()
    first: list[Any] = []
    for given in batches:
        batch = list(given)
        good = [sample for sample in batch if in_json(sample) not in excluded]
        left_out(len(batch) - len(good))
        sizes.append(len(batch))
        waiting.extend(good)
        if len(first) < _REMEMBERED:
            first += good
        while sizes and len(waiting) >= sizes[0]:
            yield [waiting.popleft() for _ in range(sizes.popleft())], 0
    repeats = itertools.cycle(first)
    for size in sizes:
        batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        own = len(batch)
        if ranks > 1:
            batch += itertools.islice(repeats, size - own)
        if len(batch) < size and drop_last:
            dropped(own)
        elif batch:
            yield batch, len(batch) - own


class Planned:
    """What the sampler gave, by batch and by sequence, as long as it is needed."""

    def __init__(self, *, remembers: bool) -> None:
        """If it `remembers`, samples of batches that are settled are needed as well."""
        self._remembers = remembers
        self._batches: list[Any] = []
        self._starts: list[int] = []
        # Batches before these are forgotten, and these may be.
        self._first = 0
        self._stale = 0
        self._samples = 0

    def add(self, batch: Any, samples: int) -> None:
        self._batches.append(batch)
        self._starts.append(self._samples)
        self._samples += samples

    def batch(self, number: int) -> Any:
        return self._batches[number - self._first]

    def index(self, sequence: int) -> Any:
        place = bisect.bisect_right(self._starts, sequence) - 1
        return self._batches[place][sequence - self._starts[place]]

    def forget(self, number: int) -> None:
        """All batches up to this one are settled."""
        self._stale = number + 1 - self._first
        if not self._remembers and self._stale > max(64, len(self._batches) // 2):
            del self._batches[: self._stale], self._starts[: self._stale]
            self._first += self._stale
