"""What is done about the faults of one pass over a loader: the same with workers and without."""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from feedline import errors
from feedline._torch.indices import Batch, Indices, plainly, without
from feedline._workers.tries import Bad
from feedline._workers.trouble import place

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Judging"]

# Others that are tried in the place of a bad sample before the run is stopped.
_REPLACEMENTS = 8


class Judging:
    """Asks the account for verdicts, and finds other samples in the places of bad ones."""

    # Of the class: when the interpreter ends, the names of modules are gone before the last epoch is.
    _now = staticmethod(time.monotonic)

    def __init__(self, loader: DataLoader[Any], epoch: _BaseDataLoaderIter) -> None:
        self._account = loader._kept.account
        self._kept = loader._kept
        self._is_map = epoch._dataset_kind == _DatasetKind.Map
        self._is_batched = epoch._auto_collation
        self.drop_last = bool(epoch._drop_last)
        self._dataset: Any = epoch._dataset
        self.samples = loader._kept.samples
        self._base_seed = int(epoch._base_seed)
        self._has_end = _has_length(epoch._index_sampler)
        self._ranks, self._rank = _ranks(loader)
        self._excluded = loader._excluded
        policy = loader.faults
        self.has_replacement = policy is not None and policy.has_replacement
        self.fill = self._is_map and policy is not None and policy.fill is not False
        self._indices: Indices | None = None
        # What was asked for already, and waits for a place of a bad sample.
        self.spares: list[Any] = []
        self._tried: Counter[tuple[int, int]] = Counter()
        # Samples of short batches that are not delivered: of those that were asked for, and of others.
        self._dropped = 0
        self._never_asked_for = 0
        # The number of this epoch. A loader keeps account of its newest pass alone: one that was begun before
        # it and goes on beside it is not counted any more.
        self._number = -1
        self._is_open = False
        self._began = 0.0
        self.has_raised = False

    def begin(self, sampler: Iterator[Any]) -> Iterator[Any]:
        """An epoch begins; what the sampler gives, less what is excluded."""
        ledger = self._account.ledger
        ledger.epoch_abandoned()
        self._number = self._kept.epochs
        self._kept.epochs += 1
        ledger.epoch_started(self._number, None)
        self._began = self._now()
        self._is_open = True
        self.has_raised = False
        self._tried.clear()
        self.spares = []
        self._dropped = self._never_asked_for = 0
        if not self._is_map or not (self.fill or self._excluded):
            return sampler
        batches = sampler if self._is_batched else ([index] for index in sampler)
        self._indices = Indices(
            self._without(batches) if self._excluded else plainly(batches),
            is_batched=self._is_batched,
            drop_last=self.drop_last,
            ranks=self._ranks,
            has_end=self._has_end,
        )
        return self._indices

    def _without(self, batches: Iterator[Any]) -> Iterator[Batch]:
        def dropped(samples: int) -> None:
            self._never_asked_for += samples

        return without(
            batches,
            self._excluded,
            left_out=self._account.ledger.excluded,
            dropped=dropped,
            ranks=self._ranks,
            drop_last=self.drop_last,
        )

    @property
    def _counts(self) -> bool:
        return self._number == self._kept.epochs - 1

    def expect(self, index: Any) -> set[int]:
        """These are asked for; the positions of those that repeat others. How many an iterable data set has
        is known when they come."""
        if not self._is_map:
            return set()
        count = len(index) if self._is_batched else 1
        repeats = 0 if self._indices is None else self._indices.repeats
        self.expect_more(count - repeats)
        return set(range(count - repeats, count))

    def expect_more(self, samples: int) -> None:
        if self._counts:
            self._account.ledger.expect(samples)

    def good(self, samples: int) -> None:
        """So many samples were made, in their turn."""
        if self._counts:
            self._account.ledger.good(samples)

    def delivery(
        self, samples: int, waited: float, *, repeats: int = 0, is_counted: bool = False
    ) -> Callable[[], None] | None:
        """What is called when the consumer gets a batch."""
        if not self._counts:
            return None
        count = self._account.ledger.batch_delivered
        return functools.partial(count, samples, waited, is_counted, self._is_map, repeats)

    def drops(self, left_out: int) -> bool:
        """Whether a batch that so many places of are empty is not delivered: the last one may be short only
        where the loader may give short ones."""
        return left_out > 0 and self.fill and self.drop_last

    def drop(self, samples: int) -> None:
        """The good samples of such a batch."""
        self._dropped += samples

    def verdict(self, bad: Bad, sample: Any, batch: int, worker: int | None) -> str | BaseException:
        """What becomes of a fault: "good" if another try went well, "skip", "replace", or the error that
        ends the run."""
        name = None
        if self._is_map:
            bad.path = self.samples.path(sample) or bad.path
            name = self.samples.name
        verdict, stopped = self._account.judge(
            bad, sample, epoch=self._number, worker=worker, rank=self._rank, dataset=name
        )
        if verdict == "replace":
            self._account.replaced(bad, sample, worker, self._number)
        if verdict == "skip" and not (self._is_map and self._counts):
            # Nobody has expected it yet.
            self._account.ledger.expect(1)
        if verdict != "stop":
            return verdict
        self.has_raised = True
        where = place(sample, bad.position, batch, worker, "fetching", bad.path)
        known: dict[str, Any] = {
            "index": sample,
            "position": bad.position,
            "batch": batch,
            "worker": worker,
            **({} if bad.path is None else {"path": bad.path}),
        }
        cause = bad.trouble.exception("in a sample", f"\nfeedline: {where}", **known)
        if stopped is None:
            return cause
        kind, message = stopped
        error: BaseException = getattr(errors, kind, errors.FeedlineError).explained(message, **known)
        error.__cause__ = cause
        return error

    def is_bad(self, index: Any) -> None:
        """Known before its place is filled: it must not be repeated."""
        if self._indices is not None:
            self._indices.is_bad(index)

    def other(self, batch: int, position: int, verdict: str) -> tuple[Any, bool] | None:
        """The index of a sample for the place of a bad one, and whether it repeats one; None: it stays
        empty."""
        if verdict == "replace":
            tries = self._tried[batch, position]
            self._tried[batch, position] += 1
            if tries >= _REPLACEMENTS:
                message = f"{tries} samples tried in one place of batch {batch} were bad as well"
                raise errors.NoReplacementError.explained(message)
            seed = hash((self._base_seed, self._number, batch, position, tries))
            return random.Random(seed).randrange(len(self._dataset)), False
        if not self.fill or self._indices is None:
            return None
        if self.spares:
            return self.spares.pop(), False
        found = self._indices.spare()
        if found is None and self._ranks > 1:
            # A batch less than the other ranks have, and they would wait for ever.
            message = f"no sample is good that could be repeated in batch {batch}, for the ranks to stay even"
            hint = "use faults=FaultPolicy(fill=False) if ranks may have different numbers of batches"
            raise errors.NoReplacementError.explained(message, hint)
        if found is not None and not found[1]:
            self.expect_more(1)
        return found

    def ends_within(self, batches: int) -> bool:
        """Whether what fills a place may be taken from the next so many batches."""
        return (
            self.fill
            and self._indices is not None
            and self._indices.ranks == 1
            and not (self.spares or self._indices.spares)
            and self._indices.ends_within(batches)
        )

    def end(self) -> None:
        """The epoch came to its end: everything must add up."""
        if not self._is_open or not self._counts:
            return
        self._is_open = False
        ledger = self._account.ledger
        ledger.add_seconds(self._now() - self._began)
        never_asked_for = self._never_asked_for
        if self._indices is not None:
            never_asked_for += len(self._indices.spares)
        ledger.expect(never_asked_for)
        if self.has_raised:
            # What was in a batch that raised is named in the error.
            ledger.epoch_abandoned()
        else:
            try:
                ledger.epoch_ended(self._dropped + len(self.spares) + never_asked_for)
            finally:
                self._account.tell()

    def leave(self) -> None:
        """The epoch was left before its end. It may be the interpreter that ends: nobody is told."""
        if self._is_open and self._counts:
            self._is_open = False
            self._account.ledger.add_seconds(self._now() - self._began)
            self._account.ledger.epoch_abandoned()


def _has_length(sampler: Any) -> bool:
    try:
        len(sampler)
    except (TypeError, NotImplementedError):
        return False
    return True


def _ranks(loader: DataLoader[Any]) -> tuple[int, int | None]:
    """How many processes share the epoch, and which of them this is: as the sampler says, or
    torch.distributed."""
    import torch.distributed

    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None), loader.batch_sampler):
        ranks, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
        if isinstance(ranks, int):
            return ranks, rank if isinstance(rank, int) else None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, None
