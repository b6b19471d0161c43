"""The indices of the sampler, without the excluded ones."""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from feedline._account import json_index

__all__ = ["Given", "Planned", "keys", "without"]

# How many samples of the start of an epoch are remembered, to be repeated so that ranks stay even.
_REMEMBERED = 4096

# The indices of a batch, how many of them, at its end, are repeated samples, and whether it has fewer than
# the sampler gave.
Given = tuple[Any, int, bool]


def keys(excluded: Iterable[Any]) -> frozenset[Any]:
    """Keys to look up the indices of a quarantine file: numbers and text unchanged, others as text, in the
    form in which a loader writes them."""
    return frozenset(json_index(_as_tuple(index)) for index in excluded)


def _as_tuple(index: Any) -> Any:
    return tuple(map(_as_tuple, index)) if isinstance(index, list) else index


def without(
    batches: Iterable[Iterable[Any]],
    excluded: frozenset[Any],
    *,
    left_out: Callable[[int], None],
    ranks: int,
) -> Iterator[Given]:
    """Removes the excluded samples and keeps the sizes of batches: later samples move up. With several ranks
    the last batches are filled by repeating the first samples, so that each rank has the same number."""
    waiting: deque[Any] = deque()
    sizes: deque[int] = deque()
    first: list[Any] = []
    for given in batches:
        batch = list(given)
        good = [sample for sample in batch if json_index(sample) not in excluded]
        left_out(len(batch) - len(good))
        sizes.append(len(batch))
        waiting.extend(good)
        if len(first) < _REMEMBERED:
            first += good
        while sizes and len(waiting) >= sizes[0]:
            yield [waiting.popleft() for _ in range(sizes.popleft())], 0, False
    repeats = itertools.cycle(first)
    for size in sizes:
        batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        own = len(batch)
        if ranks > 1:
            batch += itertools.islice(repeats, size - own)
        if batch:
            yield batch, len(batch) - own, len(batch) < size


class Planned:
    """The indices of the sampler, by batch and by sequence, as long as they are needed."""

    def __init__(self, *, remembers: bool) -> None:
        """With `remembers`, the samples of settled batches are kept as well."""
        self._remembers = remembers
        self._batches: list[Any] = []
        self._starts: list[int] = []
        # The number of the first batch that is kept, and how many batches from there on may be dropped.
        self._first = 0
        self._stale = 0
        self._samples = 0

    def add(self, batch: Any, samples: int) -> None:
        self._batches.append(batch)
        self._starts.append(self._samples)
        self._samples += samples

    def skip(self, batches: int, samples: int) -> None:
        """Begins behind that many batches, which are not needed."""
        self._first, self._samples = batches, samples

    @property
    def samples(self) -> int:
        return self._samples

    def batch(self, number: int) -> Any:
        return self._batches[number - self._first]

    def index(self, sequence: int) -> Any:
        number = bisect.bisect_right(self._starts, sequence) - 1
        return self._batches[number][sequence - self._starts[number]]

    def forget(self, number: int) -> None:
        """Allows to drop all batches up to this one, which are settled."""
        self._stale = number + 1 - self._first
        if not self._remembers and self._stale > max(64, len(self._batches) // 2):
            del self._batches[: self._stale], self._starts[: self._stale]
            self._first += self._stale
