"""What the sampler gives, without what is to be left out, and what fills the places of bad samples."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Indices", "singly_without", "without"]

# So many samples of the start of an epoch are remembered, to be repeated where ranks must stay even.
_REMEMBERED = 4096


def without(
    batches: Iterable[Iterable[Any]],
    excluded: frozenset[Any],
    left_out: Callable[[int], None],
    *,
    ranks: int,
    drop_last: bool,
) -> Iterator[list[Any]]:
    """Batches of the same sizes without some samples: what follows moves up. With several ranks the last
    ones are filled by repeating the first samples, so that each rank has as many as the others."""
    waiting: deque[Any] = deque()
    sizes: deque[int] = deque()
    first: list[Any] = []
    for given in batches:
        batch = list(given)
        good = [sample for sample in batch if not _is_in(sample, excluded)]
        left_out(len(batch) - len(good))
        sizes.append(len(batch))
        waiting.extend(good)
        if len(first) < _REMEMBERED:
            first += good
        while sizes and len(waiting) >= sizes[0]:
            yield [waiting.popleft() for _ in range(sizes.popleft())]
    repeats = itertools.cycle(first)
    for size in sizes:
        batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        if ranks > 1:
            batch += itertools.islice(repeats, size - len(batch))
        if batch and (len(batch) == size or not drop_last):
            yield batch


def singly_without(
    samples: Iterable[Any], excluded: frozenset[Any], left_out: Callable[[int], None]
) -> Iterator[Any]:
    """The same without batches."""
    for sample in samples:
        if _is_in(sample, excluded):
            left_out(1)
        else:
            yield sample


class Indices:
    """The indices of an epoch, a list for each batch, or one by one without batches.

    A place that a bad sample leaves is filled from the end of the epoch, so that the order of all others
    stays as it is. With several ranks it is filled by repeating samples of the first batch instead: every
    rank must have as many batches as without faults. Either way it does not depend on how far ahead workers
    are.
    """

    def __init__(
        self, given: Iterator[Any], *, is_batched: bool, drop_last: bool, ranks: int, has_end: bool
    ) -> None:
        """Without an end known, places are filled from what the sampler gives next."""
        self._given = given
        self._has_end = has_end
        self._is_batched = is_batched
        self._drop_last = drop_last
        self._ranks = ranks
        # From the first spare on, all that is to come: only so its end can be taken from.
        self._rest: deque[Any] | None = None
        # What is left of a last batch that is too short to be delivered.
        self.spares: list[Any] = []
        self._first: list[Any] = []
        self._repeats: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._rest is not None:
            if not self._rest:
                raise StopIteration
            return self._rest.popleft()
        given = next(self._given)
        if self._is_batched:
            given = list(given)
        if not self._first:
            self._first = given[:] if self._is_batched else [given]
        return given

    def spare(self) -> tuple[Any, bool] | None:
        """The index of a sample for an empty place, and whether it repeats one; None if there is none."""
        if self._ranks > 1:
            self._repeats = self._repeats or itertools.cycle(self._first)
            repeated = next(self._repeats, None)
            return None if repeated is None else (repeated, True)
        if not self._has_end:
            return self._next_spare()
        if self._rest is None:
            self._rest = deque(list(batch) if self._is_batched else batch for batch in self._given)
        if not self.spares and self._rest:
            last = self._rest.pop()
            self.spares = last if self._is_batched else [last]
        if not self.spares:
            return None
        spare = self.spares.pop()
        if self.spares and not self._drop_last:
            self._rest.append(self.spares)
            self.spares = []
        return spare, False

    def _next_spare(self) -> tuple[Any, bool] | None:
        if not self.spares:
            given = next(self._given, None)
            if given is None:
                return None
            self.spares = list(given)[::-1] if self._is_batched else [given]
        return self.spares.pop(), False


def _is_in(sample: Any, excluded: frozenset[Any]) -> bool:
    try:
        return sample in excluded
    except TypeError:
        # A list, say: nothing like it was ever quarantined.
        return False
