"""Loads the samples of a batch and handles their faults as the policy says, in a worker or in the trainer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from feedline._torch.collatable import CollateCheck, Misfit, name_misfits
from feedline._workers.retries import BAD, PendingFault, Retries
from feedline.faults import FaultPolicy

__all__ = [
    "AmendedBatch",
    "ConsecutiveFailures",
    "SampleLoader",
    "UnequalSamples",
    "getter",
    "is_list_of",
    "is_within_limit",
    "unfinished",
    "wants_fill",
]

# How many samples of an iterator may fail in a row if the policy sets no limit: without a limit, an iterator
# that always fails would be called forever.
_MOST = 1000


@dataclass
class AmendedBatch:
    """The task to complete a batch: which samples take the place of its bad ones."""

    index: list[Any]
    # The number of the task whose good samples the worker may still hold.
    held_task: int
    # Offsets whose own sample is not loaded again: it kills its worker, or was moved to another batch.
    not_reloaded: frozenset[int] = frozenset()
    # Whether samples are loaded one at a time, though the data set has `__getitems__`.
    one_at_a_time: bool = False
    # Offset -> index of another sample.
    fills: dict[int, Any] = field(default_factory=dict)
    # Offset -> offset whose sample moves here.
    moves: dict[int, int] = field(default_factory=dict)
    # Offsets that stay empty.
    left_out: frozenset[int] = frozenset()
    # Offsets that get the replacement sample of the user.
    substituted: frozenset[int] = frozenset()
    # Offsets that are not decided yet: the worker loads the others and holds them.
    undecided: frozenset[int] = frozenset()
    # The worker's journal from before the batch.
    journal_before: bytes | None = None
    # The number of the batch in the epoch, from which the random numbers of a filling sample are seeded.
    batch: int = 0

    def wanted(self, offset: int) -> Any:
        """The index of the sample at an offset."""
        return self.fills.get(offset, self.index[self.moves.get(offset, offset)])


def getter(dataset: Any) -> Callable[[Any], Any]:
    """The function that loads one sample of a map-style data set."""
    if not getattr(dataset, "__getitems__", None):
        return lambda index: dataset[index]

    def get(index: Any) -> Any:
        (sample,) = dataset.__getitems__([index])
        return sample

    return get


@dataclass
class UnequalSamples:
    """A batch that could not be collated, and the samples that are the cause."""

    samples: list[Any]
    misfits: list[Misfit]
    raised: BaseException
    # The index of the sample at an offset, if it is known.
    index: Callable[[int], Any]

    @classmethod
    def found(
        cls, raised: BaseException, samples: list[Any], fitting: CollateCheck, index: Callable[[int], Any]
    ) -> UnequalSamples:
        """Finds the samples that are the cause, and names them in a note on the exception. Offsets that are
        BAD are ignored."""
        good = [offset for offset, sample in enumerate(samples) if sample is not BAD]
        misfits = [
            Misfit(good[misfit.offset], misfit.text)
            for misfit in fitting.misfits([samples[offset] for offset in good])
        ]
        name_misfits(raised, misfits, index)
        return cls(samples, misfits, raised, index)

    @property
    def offsets(self) -> set[int]:
        return {misfit.offset for misfit in self.misfits}

    def about(self, misfit: Misfit) -> str:
        return misfit.about(self.index(misfit.offset))


class SampleLoader:
    """Loads samples of a map-style data set one by one, and handles those that fail."""

    def __init__(self, dataset: Any, retries: Retries, replacement: Any = BAD) -> None:
        """`replacement` takes the place of a sample that is replaced; if it is BAD, the trainer chooses the
        sample of another index."""
        self.dataset = dataset
        self.retries = retries
        self.replacement = replacement
        self.has_getitems = bool(getattr(dataset, "__getitems__", None))
        self.get = getter(dataset)

    def make(
        self, indices: Iterable[Any], where: Callable[[], int], key: int, samples: list[Any]
    ) -> list[Any]:
        """Appends a sample for each index; BAD for one that fails, which the trainer judges."""
        get = self.get if self.has_getitems else self.dataset.__getitem__
        for index in indices:
            try:
                samples.append(get(index))
            except (Exception, SystemExit) as raised:
                samples.append(self.again(raised, index, where(), key))
        return samples

    def again(self, raised: BaseException, index: Any, offset: int, key: int) -> Any:
        """Retries a sample that failed for the first time."""
        return self.retry(raised, lambda: self.get(index), offset, key)

    def retry(self, raised: BaseException, make: Callable[[], Any], offset: int, key: int) -> Any:
        """Retries `make` after it failed for the first time."""
        return self._or_replacement(self.retries.again(raised, make, offset, key))

    def _or_replacement(self, sample: Any) -> Any:
        if sample is BAD and self.replacement is not BAD and self.retries.bad[-1].action == "replace":
            return self.replacement
        return sample

    def refit(
        self, odd: UnequalSamples, fitting: CollateCheck, key: int, make: Callable[[int], Any] | None
    ) -> None:
        """Handles the samples that do not fit the others of their batch, and changes `odd.samples`. `make`
        loads the sample of an offset again; None if that is not possible."""
        samples = odd.samples
        good = [
            offset for offset, sample in enumerate(samples) if sample is not BAD and offset not in odd.offsets
        ]
        for misfit in odd.misfits:
            offset, about = misfit.offset, odd.about(misfit)
            odd.raised.__notes__ = [f"feedline: {about}"]
            if samples[offset] is self.replacement:
                odd.raised.add_note("feedline: it is the replacement that FaultPolicy was given")
                raise odd.raised
            known = len(self.retries.bad)
            if make is None:
                sample = self.retries.given_up(odd.raised, offset)
            else:
                again = functools.partial(_refitted, offset, make, odd, good, fitting)
                sample = self.retries.again(odd.raised, again, offset, key)
            for bad in self.retries.bad[known:]:
                bad.remote_error.message = f"it {misfit.text}"
                bad.remote_error.stage = "collate"
            samples[offset] = self._or_replacement(sample)
            if sample is not BAD:
                good = sorted([*good, offset])

    def together(self, indices: list[Any]) -> list[Any] | None:
        """Loads all samples with one call of `__getitems__`. None if the data set has none or it raised: then
        the caller loads each sample alone, to find the one that fails."""
        if not self.has_getitems:
            return None
        try:
            samples: list[Any] = self.dataset.__getitems__(indices)
        except (Exception, SystemExit) as raised:
            self.retries.end_if_forked(raised)
            return None
        return samples


def _refitted(
    offset: int, make: Callable[[int], Any], odd: UnequalSamples, good: list[int], fitting: CollateCheck
) -> Any:
    """Loads a sample again, and checks that it fits the good ones."""
    sample = make(offset)
    offsets = sorted([*good, offset])
    samples = [sample if other == offset else odd.samples[other] for other in offsets]
    try:
        fitting.check(samples)
    except Exception as raised:
        name_misfits(raised, fitting.misfits(samples), lambda number: odd.index(offsets[number]))
        raise
    return sample


def is_list_of(samples: Any, count: int) -> bool:
    """Whether the result of `__getitems__` has a sample for each index."""
    return isinstance(samples, (list, tuple)) and len(samples) == count


def unfinished(samples: list[Any]) -> Iterator[int]:
    """The offsets that are bad."""
    return (offset for offset, sample in enumerate(samples) if sample is BAD)


def wants_fill(bad: list[PendingFault], *, fill: bool) -> bool:
    """Whether the batch needs another sample before it can be collated."""
    return any(fault.action == "replace" or (fault.action == "skip" and fill) for fault in bad)


def is_within_limit(policy: FaultPolicy, bad: int) -> bool:
    """Whether the faults of one batch are within the limit, so that the iterator may be called again.
    Otherwise they are reported at once."""
    if policy.limit is None:
        return True
    return bad <= (policy.window if isinstance(policy.limit, float) else policy.limit)


class ConsecutiveFailures:
    """Counts how many samples of an iterator fail in a row."""

    def __init__(self, iterator: Any, policy: FaultPolicy) -> None:
        self._is_generator = inspect.isgenerator(iterator)
        self._has_limit = policy.limit is not None
        self._count = 0

    def reset(self) -> None:
        self._count = 0

    def add(self, raised: BaseException) -> None:
        """Counts a failure. Raises it if calling the iterator again makes no sense."""
        self._count += 1
        if self._is_generator:
            raised.add_note(
                "feedline: a generator ends when it raises, so none of its samples can be skipped"
            )
            raise raised
        if self._count > _MOST and not self._has_limit:
            raised.add_note(f"feedline: the {_MOST} samples before it failed as well")
            raise raised
