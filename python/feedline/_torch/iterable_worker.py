"""A worker of a torch loader with an iterable data set: draws samples from its own iterator."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from feedline import _native
from feedline._native import WorkerActivity
from feedline._torch.batch_maker import ConsecutiveFailures, is_within_limit
from feedline._torch.batch_worker import BatchWorker, IterablePlace, with_place
from feedline._torch.dataset_state import DatasetPlace, DatasetTracker, restore
from feedline._torch.random_state import State
from feedline._workers.retries import BAD, FaultyResult
from feedline._workers.worker import EXHAUSTED, Buffers

if TYPE_CHECKING:
    from feedline._torch.worker import LoaderWork

__all__ = ["IterableWorker"]


class IterableWorker(BatchWorker):
    """Fills its batches from an iterator over the data set."""

    def __init__(self, work: LoaderWork, worker_id: int, connection: _native.WorkerConnection) -> None:
        self._iterator: Iterator[Any] = iter(())
        # The iterator as the data set gave it; None once its end was reported.
        self._source: Iterator[Any] | None = None
        self._is_exhausted = False
        self._failures: ConsecutiveFailures | None = None
        # How many samples were drawn in this epoch: a replacement draws as many.
        self._drawn = 0
        self._first_state: State | None = None
        super().__init__(work, worker_id, connection)

    def _begin(self) -> None:
        self._drawn = 0
        self._first_state = self._draws.state()
        # Iterating may be expensive, so it is begun once: after the data set has its state, if it gets one.
        if self._is_placed or self._start is None or self._start.state is None:
            self._take(iter(self._dataset))
        self._is_exhausted = False

    def _take(self, iterator: Iterator[Any]) -> None:
        self._iterator = self._source = iterator
        if self._work.faults is not None:
            self._failures = ConsecutiveFailures(iterator, self._work.faults)

    def resume(self, body: bytes) -> None:
        # If the data set cannot be iterated again, this worker has no more samples.
        self._is_exhausted = True
        super().resume(body)

    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        return False

    def _load_place(self, place: DatasetPlace) -> None:
        begun: Iterator[Any] | None = self._iterator
        if place.state is not None:
            if self._first_state is not None:
                self._draws.restore(self._first_state)
            super()._load_place(place)
            begun = None
        self._drawn = place.drawn
        self._take(restore(self._dataset, begun, place, self._connection.reach))

    def _stated(self, result: object, tracker: DatasetTracker) -> object:
        has_ended = result is EXHAUSTED or self._iterator is not self._source
        if result is EXHAUSTED and self._source is None:
            return EXHAUSTED
        place = tracker.place(self._dataset, self._source, self._drawn, has_ended=has_ended)
        if result is not EXHAUSTED:
            return with_place(result, place)
        # Once.
        self._source = None
        return EXHAUSTED if place.state is None else FaultyResult(None, place=place, has_ended=True)

    def _do(self, task: int, body: bytes) -> object:
        return EXHAUSTED if self._is_exhausted else super()._do(task, body)

    def _batch(self, order: Any, task: int) -> object:
        samples = self._draw([], len(order) if self._work.auto_collation else 1)
        batch: Any = BAD
        while batch is BAD and samples is not BAD and samples is not EXHAUSTED:
            if self._maker is None or not self._work.auto_collation:
                batch = self._collate(samples, _unknown if self._work.auto_collation else None)
                break
            batch = self._fitted(samples, samples, _unknown, self._drawn, None)
            if batch is BAD:
                samples = self._draw_more(order, samples)
        bad = [] if self._maker is None else self._maker.retries.take()
        if samples is EXHAUSTED and not bad:
            self._is_exhausted = True
            return EXHAUSTED
        if samples is BAD or samples is EXHAUSTED:
            self._connection.made(0)
            return FaultyResult(None, bad)
        return FaultyResult(batch, bad) if bad else batch

    def _draw_more(self, index: Any, samples: list[Any]) -> Any:
        """Removes the bad samples of a batch, and draws others from the iterator if batches are filled."""
        faults, maker = self._work.faults, self._maker
        assert faults is not None
        assert maker is not None
        good = [sample for sample in samples if sample is not BAD]
        if faults.fill is False or not is_within_limit(faults, len(maker.retries.bad)):
            return good or BAD
        self._stage = "fetching"
        self._connection.enter(WorkerActivity.Fetching)
        return self._draw(good, len(index))

    def _draw(self, samples: list[Any], places: int) -> Any:
        """Fills a batch from the iterator; returns a single sample if there are no batches."""
        if not self._work.auto_collation:
            self._connection.reach(0)
            return self._next(0)
        while len(samples) < places:
            self._connection.reach(len(samples))
            sample = self._next(len(samples))
            if sample is EXHAUSTED:
                # This batch is the last one and may be short; the next task finds the end.
                self._iterator = iter(())
                return EXHAUSTED if not samples or self._work.drop_last else samples
            if sample is not BAD:
                samples.append(sample)
                continue
            faults, maker = self._work.faults, self._maker
            assert faults is not None
            assert maker is not None
            if not is_within_limit(faults, len(maker.retries.bad)):
                return BAD
            if faults.fill is False:
                places -= 1
        return samples or BAD

    def _next(self, offset: int) -> Any:
        """The next sample of an iterable data set; BAD for one that fails, unless the policy raises."""
        iterator = self._iterator
        if self._maker is None or self._failures is None:
            return self._pull(iterator)
        try:
            sample = self._pull(iterator)
        except (Exception, SystemExit) as raised:
            failed = raised
            self._failures.add(failed)
            return self._maker.retry(failed, lambda: self._pull_again(iterator, failed), offset, self._drawn)
        self._failures.reset()
        return sample

    def _pull(self, iterator: Iterator[Any]) -> Any:
        self._drawn += 1
        return next(iterator, EXHAUSTED)

    def _pull_again(self, iterator: Iterator[Any], failed: BaseException) -> Any:
        """A retry. At the end of the iterator there is no sample to retry with, so the failure is raised."""
        sample = self._pull(iterator)
        if sample is EXHAUSTED:
            raise failed
        return sample

    def _journal(self, state: State) -> bytes:
        assert self._first_state is not None
        start = self._start if self._is_placed else None
        place: IterablePlace = (self._drawn, self._is_exhausted, self._shared_seed, self._first_state, start)
        return pickle.dumps((state, place, self._fitting.memory, None), protocol=5)

    def _return_to(self, iterable: IterablePlace | None) -> None:
        """Draws the samples that were already drawn, and throws them away."""
        if iterable is None:
            super()._return_to(iterable)
            return
        drawn, self._is_exhausted, seed, first_state, start = iterable
        self._start, self._is_placed = start, start is None or self._is_exhausted
        if self._is_exhausted:
            return
        self._draws.restore(first_state)
        if seed != self._shared_seed:
            self._shared_seed = seed
            self._share(seed)
        self._begin()
        if not self._is_placed:
            self._go_to_place()
        for offset in range(self._drawn, drawn):
            self._connection.reach(offset)
            try:
                if next(self._iterator, EXHAUSTED) is EXHAUSTED:
                    break
            except (Exception, SystemExit):
                if self._connection.is_forked:
                    raise
                # It was reported the first time.
                continue
        self._drawn = drawn


def _unknown(offset: int) -> None:
    """The index of a sample of an iterator: there is none."""
