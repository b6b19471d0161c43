"""What the sampler gives, without what is to be left out, and what fills the places of bad samples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from feedline._account import in_json

__all__ = ["Batch", "Indices", "keys", "plainly", "without"]

# So many samples of the start of an epoch are remembered, to be repeated where ranks must stay even.
_REMEMBERED = 4096

# Indices, and how many of them, at the end, repeat others.
Batch = tuple[list[Any], int]


def keys(excluded: Iterable[Any]) -> frozenset[Any]:
    """The indices of a quarantine file as they can be looked up: numbers and texts as they are, others in
    words, as the file has them of a loader."""
    return frozenset(in_json(_as_tuple(index)) for index in excluded)


def _as_tuple(index: Any) -> Any:
    return tuple(map(_as_tuple, index)) if isinstance(index, list) else index


def plainly(batches: Iterable[Iterable[Any]]) -> Iterator[Batch]:
    """Batches of which nothing is left out."""
    return ((list(batch), 0) for batch in batches)


def without(
    batches: Iterable[Iterable[Any]],
    excluded: frozenset[Any],
    *,
    left_out: Callable[[int], None],
    dropped: Callable[[int], None],
    ranks: int,
    drop_last: bool,
) -> Iterator[Batch]:
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


class Indices:
    """The indices of an epoch, a list for each batch, or one by one without batches.

    A place that a bad sample leaves is filled from the end of the epoch, so that the order of all others
    stays as it is. With several ranks it is filled by repeating samples of the first batch instead: every
    rank must have as many batches as without faults. Either way it does not depend on how far ahead workers
    are.
    """

    def __init__(
        self, given: Iterator[Batch], *, is_batched: bool, drop_last: bool, ranks: int, has_end: bool
    ) -> None:
        """Without an end known, places are filled from what the sampler gives next."""
        self._given = given
        self._has_end = has_end
        self._is_batched = is_batched
        self._drop_last = drop_last
        self.ranks = ranks
        # What was read of the sampler, and not asked for yet.
        self._ahead: deque[Batch] = deque()
        # How many of what was asked for last repeat others; they are at its end.
        self.repeats = 0
        # What is left of a batch that others were taken from.
        self.spares: list[Any] = []
        # The first samples, how many of them are repeated, and whose turn it is.
        self._first: list[Any] = []
        self._first_size = 0
        self._repeated = 0
        self._turn = 0
        self._bad: set[Any] = set()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ahead or self._read():
            batch, self.repeats = self._ahead.popleft()
        elif self.spares and not self._drop_last:
            batch, self.repeats, self.spares = self.spares[::-1], 0, []
        else:
            raise StopIteration
        return batch if self._is_batched else batch[0]

    def _read(self) -> bool:
        """Reads a batch more of the sampler. False at its end."""
        given = next(self._given, None)
        if given is None:
            return False
        self._ahead.append(given)
        if len(self._first) < _REMEMBERED:
            self._first_size = self._first_size or len(given[0])
            self._first += given[0]
        return True

    def ends_within(self, batches: int) -> bool:
        """Whether no more than so many are to come; also if that is not known."""
        while self._has_end and self._read():
            pass
        return not self._has_end or len(self._ahead) <= batches

    def is_bad(self, index: Any) -> None:
        """This one is never repeated."""
        if self.ranks > 1:
            self._bad.add(in_json(index))

    def spare(self) -> tuple[Any, bool] | None:
        """The index of a sample for an empty place, and whether it repeats one; None if there is none."""
        if self.ranks > 1:
            return self._repeat()
        if not self._has_end:
            return self._next_spare()
        while self._read():
            pass
        if not self.spares and self._ahead:
            self.spares, _ = self._ahead.pop()
        if not self.spares:
            return None
        spare = self.spares.pop()
        if self.spares and not self._drop_last:
            self._ahead.append((self.spares, 0))
            self.spares = []
        return spare, False

    def _next_spare(self) -> tuple[Any, bool] | None:
        if not self.spares:
            if not self._ahead and not self._read():
                return None
            self.spares = self._ahead.popleft()[0][::-1]
        return self.spares.pop(), False

    def _repeat(self) -> tuple[Any, bool] | None:
        """The samples of the first batch in turn, but for bad ones. If all are bad, those of the next too."""
        while True:
            for _ in range(self._repeated):
                index = self._first[self._turn % self._repeated]
                self._turn += 1
                if in_json(index) not in self._bad:
                    return index, True
            wanted = self._repeated + max(1, self._first_size)
            while len(self._first) < wanted and len(self._first) < _REMEMBERED and self._read():
                pass
            if len(self._first) == self._repeated:
                return None
            # Only now: what was read last may be shorter than the first.
            self._repeated = min(wanted, len(self._first))
