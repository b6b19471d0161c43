"""The samples of a batch, made as the policy for faults says; in a worker or in the trainer itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from feedline._torch.collatable import Fitting, Misfit, name_misfits
from feedline._workers.retries import BAD, PendingFault, Retries
from feedline.faults import FaultPolicy

__all__ = [
    "Amended",
    "Failing",
    "Maker",
    "UnequalSamples",
    "bears",
    "getter",
    "is_list_of",
    "unfinished",
    "wants_fill",
]

# This many samples of an iterator that fail in a row are allowed if the policy sets no limit: one that
# fails whenever it is asked would be asked for ever.
_MOST = 1000


@dataclass
class Amended:
    """A batch that is to be completed: what stands in the place of its bad samples."""

    index: list[Any]
    # The number under which the worker may still hold the good samples.
    of: int
    # Positions whose own sample is not made again: it kills, or was taken for another batch.
    dead: frozenset[int] = frozenset()
    # Whether samples are made one at a time, though the data set can make them all by one call.
    is_apart: bool = False
    # Position -> index of another sample.
    fills: dict[int, Any] = field(default_factory=dict)
    # Position -> position whose sample moves here.
    moves: dict[int, int] = field(default_factory=dict)
    # Positions that stay empty.
    left_out: frozenset[int] = frozenset()
    # Positions at which the sample stands that the user gave for this.
    given: frozenset[int] = frozenset()
    # Positions of which it is not decided what stands there: the others are made, and held.
    lost: frozenset[int] = frozenset()
    # What the worker's journal said when the batch was begun.
    before: bytes | None = None
    # The number of the batch in the epoch: what random numbers a filling sample draws depends on it.
    batch: int = 0

    def wanted(self, position: int) -> Any:
        """The index of the sample at a position."""
        return self.fills.get(position, self.index[self.moves.get(position, position)])


def getter(dataset: Any) -> Callable[[Any], Any]:
    """How one sample of a map-style data set is made."""
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
    # The index of the sample at a position, as far as it is known.
    index: Callable[[int], Any]

    @classmethod
    def found(
        cls, raised: BaseException, samples: list[Any], fitting: Fitting, index: Callable[[int], Any]
    ) -> UnequalSamples:
        """Looks for them, and names them in a note. Places that are BAD are empty."""
        places = [place for place, sample in enumerate(samples) if sample is not BAD]
        misfits = [
            Misfit(places[misfit.position], misfit.text)
            for misfit in fitting.misfits([samples[place] for place in places])
        ]
        name_misfits(raised, misfits, index)
        return cls(samples, misfits, raised, index)

    @property
    def places(self) -> set[int]:
        return {misfit.position for misfit in self.misfits}

    def about(self, misfit: Misfit) -> str:
        return misfit.about(self.index(misfit.position))


class Maker:
    """Makes samples of a map-style data set one by one, and bears those that fail."""

    def __init__(self, dataset: Any, retries: Retries, replacement: Any = BAD) -> None:
        """`replacement` stands in the place of a sample that is to be replaced; if it is BAD, the sample of
        another index does, which the trainer chooses."""
        self.dataset = dataset
        self.retries = retries
        self.replacement = replacement
        self.has_getitems = bool(getattr(dataset, "__getitems__", None))
        self.get = getter(dataset)

    def make(
        self, indices: Iterable[Any], where: Callable[[], int], key: int, samples: list[Any]
    ) -> list[Any]:
        """Appends a sample for each index; BAD in the place of one that is to be judged."""
        get = self.get if self.has_getitems else self.dataset.__getitem__
        for index in indices:
            try:
                samples.append(get(index))
            except (Exception, SystemExit) as raised:
                samples.append(self.again(raised, index, where(), key))
        return samples

    def again(self, raised: BaseException, index: Any, position: int, key: int) -> Any:
        """One sample after it failed for the first time."""
        return self.tried(raised, lambda: self.get(index), position, key)

    def tried(self, raised: BaseException, make: Callable[[], Any], position: int, key: int) -> Any:
        """What `make` gives after it failed for the first time."""
        return self._or_replacement(self.retries.again(raised, make, position, key))

    def _or_replacement(self, sample: Any) -> Any:
        if sample is BAD and self.replacement is not BAD and self.retries.bad[-1].action == "replace":
            return self.replacement
        return sample

    def refit(
        self, odd: UnequalSamples, fitting: Fitting, key: int, make: Callable[[int], Any] | None
    ) -> None:
        """Judges the samples that do not fit to the others of their batch. `make` makes the sample of a
        position once more; None where that cannot be done. What comes of it stands in `odd.samples`."""
        samples = odd.samples
        good = [
            place for place, sample in enumerate(samples) if sample is not BAD and place not in odd.places
        ]
        for misfit in odd.misfits:
            position, about = misfit.position, odd.about(misfit)
            odd.raised.__notes__ = [f"feedline: {about}"]
            if samples[position] is self.replacement:
                odd.raised.add_note("feedline: it is the replacement that FaultPolicy was given")
                raise odd.raised
            known = len(self.retries.bad)
            if make is None:
                sample = self.retries.given_up(odd.raised, position)
            else:
                again = functools.partial(_refitted, position, make, odd, good, fitting)
                sample = self.retries.again(odd.raised, again, position, key)
            for bad in self.retries.bad[known:]:
                bad.remote_error.message = f"it {misfit.text}"
                bad.remote_error.stage = "collate"
            samples[position] = self._or_replacement(sample)
            if sample is not BAD:
                good = sorted([*good, position])

    def together(self, indices: list[Any]) -> list[Any] | None:
        """All samples by one call, where the data set can do that. None if it raised: then each is made
        alone, to find out which it was."""
        if not self.has_getitems:
            return None
        try:
            samples: list[Any] = self.dataset.__getitems__(indices)
        except (Exception, SystemExit) as raised:
            self.retries.end_if_forked(raised)
            return None
        return samples


def _refitted(
    position: int, make: Callable[[int], Any], odd: UnequalSamples, good: list[int], fitting: Fitting
) -> Any:
    """Another try of a sample, which has to fit to those that are good."""
    sample = make(position)
    places = sorted([*good, position])
    samples = [sample if place == position else odd.samples[place] for place in places]
    try:
        fitting.check(samples)
    except Exception as raised:
        name_misfits(raised, fitting.misfits(samples), lambda at: odd.index(places[at]))
        raise
    return sample


def is_list_of(samples: Any, count: int) -> bool:
    """Whether what `__getitems__` has returned has a sample for each index."""
    return isinstance(samples, (list, tuple)) and len(samples) == count


def unfinished(samples: list[Any]) -> Iterator[int]:
    """The positions that are bad."""
    return (position for position, sample in enumerate(samples) if sample is BAD)


def wants_fill(bad: list[PendingFault], *, fill: bool) -> bool:
    """Whether another sample must come from elsewhere before the batch can be collated."""
    return any(one.action == "replace" or (one.action == "skip" and fill) for one in bad)


def bears(policy: FaultPolicy, bad: int) -> bool:
    """Whether an iterator is asked for more after this many faults in one batch. If not, the judge has to
    hear of them now: they are more than the limit."""
    if policy.limit is None:
        return True
    return bad <= (policy.window if isinstance(policy.limit, float) else policy.limit)


class Failing:
    """How many samples of an iterator have failed in a row."""

    def __init__(self, iterator: Any, policy: FaultPolicy) -> None:
        self._is_generator = inspect.isgenerator(iterator)
        self._has_limit = policy.limit is not None
        self._count = 0

    def good(self) -> None:
        self._count = 0

    def bear(self, raised: BaseException) -> None:
        """Raises what was raised, if it makes no sense to ask for the next sample."""
        self._count += 1
        if self._is_generator:
            raised.add_note("feedline: a generator ends when it raises, so no sample of it can be left out")
            raise raised
        if self._count > _MOST and not self._has_limit:
            raised.add_note(f"feedline: the {_MOST} samples before it have failed as well")
            raise raised
