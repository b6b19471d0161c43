"""A worker of a torch loader with a map-style data set: loads the samples of the indices in its tasks."""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from feedline import _native
from feedline._native import WorkerActivity
from feedline._numpy import seed_global
from feedline._torch.batch_maker import AmendedBatch, SampleLoader, getter, unfinished, wants_fill
from feedline._torch.batch_worker import BatchWorker
from feedline._workers.retries import BAD, FaultyResult
from feedline._workers.worker import Buffers

if TYPE_CHECKING:
    from feedline._torch.worker import LoaderWork

__all__ = ["MapWorker"]


class MapWorker(BatchWorker):
    """Loads samples by index. With a policy for faults, it holds the good samples of a batch until the
    trainer has decided about the bad ones."""

    def __init__(self, work: LoaderWork, worker_id: int, connection: _native.WorkerConnection) -> None:
        # Good samples of batches that are not complete yet, by task.
        self._held: dict[int, list[Any]] = {}
        super().__init__(work, worker_id, connection)

    def _begin(self) -> None:
        self._held.clear()

    def _batch(self, order: Any, task: int) -> object:
        if type(order) is AmendedBatch:
            return self._complete(order, task)
        if self._maker is not None:
            return self._make(order, task)
        samples = self._fetch(order)
        has_index = self._work.auto_collation and len(samples) == len(order)
        return self._collate(samples, order.__getitem__ if has_index else None)

    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        if not self._work.auto_collation:
            return False
        order = pickle.loads(body)
        wanted = order.wanted(offset) if type(order) is AmendedBatch else order[offset]
        getter(self._dataset)(wanted)
        return True

    def _fetch(self, index: Any) -> Any:
        dataset = self._dataset if self._seeding is None else self._samples
        if not self._work.auto_collation:
            self._connection.reach(0)
            return dataset[index]
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            self._connection.reach_all()
            return dataset.__getitems__(index)
        indices = list(index)
        self._walk = self._connection.walk(indices)
        samples: list[Any] = []
        if self._rows.is_useful:
            self._rows.collect(samples, partial(operator.getitem, dataset), self._walk, len(indices))
        else:
            samples = [dataset[sample] for sample in self._walk]
            self._rows.look(samples)
        return samples

    # ---- with a policy for faults ----

    def _make(self, index: Any, task: int) -> object:
        assert self._maker is not None
        before = self._before()
        if not self._work.auto_collation:
            self._connection.reach(0)
            samples = self._maker.make([index], lambda: 0, task, [])
            if samples[0] is not BAD and not self._maker.retries.bad:
                return self._collate(samples[0], None)
            return self._settled(samples, [index], task, before)
        indices = list(index)
        together = None
        if self._maker.has_getitems:
            self._connection.reach_all()
            together = self._maker.together(index)
        if together is not None and not (
            isinstance(together, (list, tuple)) and len(together) == len(indices)
        ):
            # `__getitems__` returned a batch, in which samples cannot be told apart.
            return self._collate(together, None)
        samples = self._make_each(self._maker, indices, task) if together is None else list(together)
        if not self._maker.retries.bad:
            batch = self._fitted(samples, samples, indices.__getitem__, task, self._loader_of(indices))
            if batch is not BAD:
                return batch
        return self._settled(samples, indices, task, before)

    def _make_each(self, maker: SampleLoader, indices: list[Any], task: int) -> list[Any]:
        """Does what `SampleLoader.make` does, but without its overhead until a sample fails."""
        walk = self._walk = self._connection.walk(indices)
        samples: list[Any] = []
        raised: BaseException | None = None
        try:
            get = maker.get if maker.has_getitems else maker.dataset.__getitem__
            if self._rows.is_useful:
                self._rows.collect(samples, get, walk, len(indices))
            else:
                samples.extend(map(get, walk))
                if len(samples) < len(indices):
                    # The data set raised StopIteration, which `map` takes for the end of `walk`.
                    raise StopIteration
                self._rows.look(samples)
        except (Exception, SystemExit) as caught:
            raised = caught
        try:
            if raised is not None:
                samples.append(maker.again(raised, indices[walk.offset], walk.offset, task))
                maker.make(walk, lambda: walk.offset, task, samples)
        finally:
            # Breaks a cycle: the frames of the exception refer to this variable.
            del raised
        return samples

    def _settled(
        self,
        samples: list[Any],
        indices: list[Any],
        task: int,
        before: bytes | None,
        order: AmendedBatch | None = None,
    ) -> object:
        """The batch with its faults, which the trainer judges; or what the trainer needs to complete it."""
        maker = self._maker
        assert maker is not None
        if maker.retries.bad and any(sample is not BAD for sample in samples):
            maker.retries.note_success()
        left_out = frozenset() if order is None else order.left_out
        while True:
            is_open = any(offset not in left_out for offset in unfinished(samples))
            is_lost = order is not None and bool(order.undecided)
            if is_lost or (is_open and wants_fill(maker.retries.bad, fill=self._work.fill)):
                self._held[task] = samples
                self._connection.made(0)
                return FaultyResult(None, maker.retries.take(), is_held=True, before=before)
            batch = self._finished(samples, indices, task if order is None else order.batch)
            if batch is not BAD:
                bad = maker.retries.take()
                return FaultyResult(batch, bad) if bad or batch is None else batch

    def _finished(self, samples: list[Any], indices: list[Any], key: int) -> Any:
        """Collates the good samples; None if there are none; BAD if some of them do not fit."""
        good = [sample for sample in samples if sample is not BAD]
        self._walk = None
        if not good:
            self._connection.made(0)
            return None
        if not self._work.auto_collation:
            return self._collate(good[0], None)
        return self._fitted(samples, good, indices.__getitem__, key, self._loader_of(indices))

    def _loader_of(self, indices: list[Any]) -> Callable[[int], Any]:
        """A function that loads the sample of an offset again."""

        def load(offset: int) -> Any:
            assert self._maker is not None
            self._connection.enter(WorkerActivity.Fetching)
            self._reach(offset)
            return self._maker.get(indices[offset])

        return load

    def _complete(self, order: AmendedBatch, task: int) -> object:
        """Replaces bad samples by others, with random numbers of their own, so that those of later batches do
        not depend on when this happens."""
        maker = self._maker
        assert maker is not None
        state = self._draws.state()
        samples = self._held.pop(order.held_task, None)
        try:
            if samples is None:
                samples = self._reload(order)
            # For samples that were moved here from other batches.
            samples += [BAD] * (len(order.index) - len(samples))
            for offset in order.substituted:
                samples[offset] = maker.replacement
            for offset, source in order.moves.items():
                if samples[offset] is BAD:
                    samples[offset], samples[source] = samples[source], BAD
                for bad in maker.retries.bad:
                    bad.offset = offset if bad.offset == source else bad.offset
            for offset, index in sorted(order.fills.items()):
                if samples[offset] is not BAD:
                    continue
                self._seed(order.batch, offset)
                self._reach(offset)
                try:
                    samples[offset] = maker.get(index)
                except (Exception, SystemExit) as raised:
                    samples[offset] = maker.again(raised, index, offset, order.batch)
            self._offset = None
        finally:
            self._draws.restore(state)
        indices = [order.wanted(offset) for offset in range(len(order.index))]
        return self._settled(samples, indices, task, order.journal_before, order)

    def _reload(self, order: AmendedBatch) -> list[Any]:
        """Loads the good samples again, as the worker that held them did. The bad ones are loaded too,
        because they draw random numbers."""
        maker = self._maker
        assert maker is not None
        if order.journal_before is not None and self._seeding is None:
            self._draws.restore(pickle.loads(order.journal_before)[0])
        # Offsets that were judged the first time.
        moved = order.moves.values()
        judged = order.left_out.union(
            order.fills, order.moves, order.substituted, order.undecided
        ).difference(moved)
        samples: list[Any] = []
        if maker.has_getitems and not order.one_at_a_time and not order.not_reloaded:
            self._connection.reach_all()
            together = maker.together(order.index)
            if together is not None:
                samples = [BAD if offset in judged else sample for offset, sample in enumerate(together)]
        for offset in range(len(samples), len(order.index)):
            if offset in order.not_reloaded:
                samples.append(BAD)
                continue
            self._reach(offset)
            known = len(maker.retries.bad)
            maker.make([order.index[offset]], lambda: len(samples), order.batch, samples)
            if offset in judged:
                samples[offset] = BAD
                del maker.retries.bad[known:]
        return samples

    def _reach(self, offset: int) -> None:
        self._offset = offset
        self._connection.reach(offset)

    def _seed(self, batch: int, offset: int) -> None:
        key = [self._work.base_seed % 2**64, batch, offset]
        seed = _native.keyed_bits(key) & 0xFFFFFFFF
        random.seed(seed)
        torch.manual_seed(seed)
        seed_global(seed)

    def _before(self) -> bytes | None:
        """The current journal. Called before each batch, so it must not be computed each time."""
        if not self._noted[1]:
            self.journal()
        return self._noted[1]
