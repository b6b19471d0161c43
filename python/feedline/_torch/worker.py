"""The worker process of a torch loader: seeds, fetches and collates as torch's does, with batches in the
arena."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterDataPipe, _utils
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.graph_settings import apply_random_seed

from feedline import _native

# Imports NumPy before workers are forked: otherwise each of them would have to load it.
from feedline._numpy import seed_global
from feedline._torch.batch_maker import (
    Amended,
    ConsecutiveFailures,
    Maker,
    UnequalSamples,
    getter,
    is_within_limit,
    unfinished,
    wants_fill,
)
from feedline._torch.collatable import Fitting
from feedline._torch.random_state import Draws, State
from feedline._torch.tensors import reducers, tensor_in_arena
from feedline._workers.retries import BAD, FaultyResult
from feedline._workers.worker import COLLATING, EXHAUSTED, FETCHING, Buffers, Worker
from feedline.faults import FaultPolicy

__all__ = ["LoaderWork"]

# A batch of at most this many bytes is sent inline, and need not be in the arena.
_SMALL = 4096


class LoaderWork:
    """Everything that the workers of one loader need."""

    def __init__(
        self,
        *,
        dataset: Any,
        kind: int,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        base_seed: int,
        worker_init_fn: Callable[[int], None] | None,
        num_workers: int,
        shared_seed: int | None,
        values: bool,
        faults: FaultPolicy | None,
        fill: bool,
        folders: frozenset[str] = frozenset(),
    ) -> None:
        self.dataset = dataset
        self.kind = kind
        self.auto_collation = auto_collation
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.base_seed = base_seed
        self.worker_init_fn = worker_init_fn
        self.worker_count = num_workers
        self.shared_seed = shared_seed
        self.values = values
        self.faults = faults
        self.fill = fill
        self.folders = folders

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> _LoaderWorker:
        return _LoaderWorker(self, worker_id, connection)


class _LoaderWorker(Worker):
    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        return reducers()

    def __init__(self, work: LoaderWork, worker_id: int, connection: _native.WorkerConnection) -> None:
        super().__init__(connection)
        self._work = work
        self._walk: _native.Walk | None = None
        # The offset of the current sample if there is no walk.
        self._offset: int | None = None
        self._stage = "fetching"
        self._iterator: Iterator[Any] | None = None
        self._is_exhausted = False
        self._failures: ConsecutiveFailures | None = None
        # How many samples were drawn from the iterator in this epoch: a replacement draws as many.
        self._drawn = 0
        self._draws = Draws()
        self._fitting = Fitting(work.collate_fn, self._draws)
        self._first_state: State | None = None
        self._noted: tuple[State | None, bytes] = (None, b"")
        # Good samples of batches that are not complete yet, by task.
        self._held: dict[int, list[Any]] = {}
        self._maker = self._make_maker()

        torch.set_num_threads(1)
        seed = work.base_seed + worker_id
        random.seed(seed)
        torch.manual_seed(seed)
        seed_global(_utils.worker._generate_state(work.base_seed, worker_id))
        self._shared = torch.Generator()
        self._dataset = work.dataset
        self._shared_seed = work.shared_seed
        self._share(work.shared_seed)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=worker_id, num_workers=work.worker_count, seed=seed, dataset=self._dataset
        )
        _collate_into(connection)
        if work.worker_init_fn is not None:
            work.worker_init_fn(worker_id)
        self._begin()

    def _make_maker(self) -> Maker | None:
        policy, work = self._work.faults, self._work
        if policy is None:
            return None
        retries = self._retries(policy, seed=work.base_seed, folders=work.folders, leaves=True)
        return Maker(work.dataset, retries, policy.replacement if policy.has_replacement else BAD)

    def _share(self, seed: int | None) -> None:
        if isinstance(self._dataset, IterDataPipe):
            assert seed is not None
            self._shared.manual_seed(seed)
            self._dataset = apply_random_seed(self._dataset, self._shared)

    def _begin(self) -> None:
        self._drawn = 0
        self._held.clear()
        if self._work.kind == _DatasetKind.Iterable:
            self._first_state = self._draws.state()
            self._iterator = iter(self._dataset)
            if self._work.faults is not None:
                self._failures = ConsecutiveFailures(self._iterator, self._work.faults)
        self._is_exhausted = False

    def resume(self, body: bytes) -> None:
        """Starts a new epoch in a persistent worker."""
        # If the data set cannot be iterated again, this worker has no more samples.
        self._is_exhausted = True
        self._shared_seed = pickle.loads(body)
        self._share(self._shared_seed)
        self._begin()

    def do(self, task: int, body: bytes, received: Buffers) -> object:
        if self._is_exhausted:
            return EXHAUSTED
        order = pickle.loads(body)
        self._stage = "fetching"
        self._walk = None
        self._offset = None
        if type(order) is Amended:
            return self._complete(order, task)
        if self._iterator is not None:
            return self._drawn_batch(order)
        if self._maker is not None:
            return self._make(order, task)
        samples = self._fetch(order)
        has_index = self._work.auto_collation and len(samples) == len(order)
        return self._collate(samples, order.__getitem__ if has_index else None)

    def _drawn_batch(self, index: Any) -> object:
        samples = self._draw([], len(index) if self._work.auto_collation else 1)
        batch: Any = BAD
        while batch is BAD and samples is not BAD and samples is not EXHAUSTED:
            if self._maker is None or not self._work.auto_collation:
                batch = self._collate(samples, _unknown if self._work.auto_collation else None)
                break
            batch = self._fitted(samples, samples, _unknown, self._drawn, None)
            if batch is BAD:
                samples = self._draw_more(index, samples)
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
        self._connection.enter(FETCHING)
        return self._draw(good, len(index))

    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        """Loads one sample alone; False for an iterable data set, where that is not possible."""
        order = pickle.loads(body)
        if self._iterator is not None or not self._work.auto_collation:
            return False
        wanted = order.wanted(offset) if type(order) is Amended else order[offset]
        getter(self._dataset)(wanted)
        return True

    def _fetch(self, index: Any) -> Any:
        dataset = self._dataset
        if not self._work.auto_collation:
            self._connection.reach(0)
            return dataset[index]
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            self._connection.reach_all()
            return dataset.__getitems__(index)
        self._walk = self._connection.walk(list(index))
        return [dataset[sample] for sample in self._walk]

    def _collated(self, samples: Any) -> Any:
        self._connection.made(len(samples) if self._work.auto_collation and self._walk is None else None)
        # From here on no sample is being loaded.
        self._walk = self._offset = None
        self._stage = "collating"
        self._connection.enter(COLLATING)
        batch = self._work.collate_fn(samples)
        if self._fitting.memory is None and self._work.auto_collation:
            self._remember(samples)
        return batch

    def _collate(self, samples: Any, index: Callable[[int], Any] | None) -> Any:
        """Collates a batch without a policy. If that fails, the exception names the samples that are the
        cause. `index` returns the index of an offset; None if samples cannot be told apart."""
        try:
            return self._collated(samples)
        except Exception as raised:
            if index is not None and isinstance(samples, (list, tuple)):
                misfits = UnequalSamples.found(raised, list(samples), self._fitting, index).misfits
                self._offset = misfits[0].offset if misfits else None
            raise

    def _remember(self, samples: Any) -> None:
        self._fitting.remember(samples)
        # The journal contains it too, so that a replacement decides as this worker would.
        self._noted = (None, b"")

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

    def _make_each(self, maker: Maker, indices: list[Any], task: int) -> list[Any]:
        """Does what `Maker.make` does, but without its overhead until a sample fails."""
        walk = self._walk = self._connection.walk(indices)
        samples: list[Any] = []
        raised: BaseException | None = None
        try:
            samples.extend(map(maker.get if maker.has_getitems else maker.dataset.__getitem__, walk))
            if len(samples) < len(indices):
                # The data set raised StopIteration, which `map` takes for the end of `walk`.
                raised = StopIteration()
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
        order: Amended | None = None,
    ) -> object:
        """The batch with its faults, which the trainer judges; or what the trainer needs to complete it."""
        maker = self._maker
        assert maker is not None
        if maker.retries.bad and any(sample is not BAD for sample in samples):
            maker.retries.note_success()
        left_out = frozenset() if order is None else order.left_out
        while True:
            is_open = any(offset not in left_out for offset in unfinished(samples))
            is_lost = order is not None and bool(order.lost)
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
            self._connection.enter(FETCHING)
            self._reach(offset)
            return self._maker.get(indices[offset])

        return load

    def _fitted(
        self,
        samples: list[Any],
        good: list[Any],
        index: Callable[[int], Any],
        key: int,
        make: Callable[[int], Any] | None,
    ) -> Any:
        """Collates the `good` samples. BAD if some of them do not fit the others and the policy does not
        raise: these are then BAD in `samples`, unless `make` or the user's replacement gave others."""
        maker = self._maker
        assert maker is not None
        odd: UnequalSamples | None = None
        try:
            return self._collated(good)
        except Exception as raised:
            odd = UnequalSamples.found(raised, samples, self._fitting, index)
            if not odd.misfits:
                raise
            self._offset = odd.misfits[0].offset
            maker.refit(odd, self._fitting, key, make)
            self._offset = None
        finally:
            # Breaks a cycle: the frames of the exception refer to this variable.
            del odd
        return BAD

    def _complete(self, order: Amended, task: int) -> object:
        """Replaces bad samples by others, with random numbers of their own, so that those of later batches do
        not depend on when this happens."""
        maker = self._maker
        assert maker is not None
        state = self._draws.state()
        samples = self._held.pop(order.of, None)
        try:
            if samples is None:
                samples = self._reload(order)
            # For samples that were moved here from other batches.
            samples += [BAD] * (len(order.index) - len(samples))
            for offset in order.given:
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
        return self._settled(samples, indices, task, order.before, order)

    def _reload(self, order: Amended) -> list[Any]:
        """Loads the good samples again, as the worker that held them did. The bad ones are loaded too,
        because they draw random numbers."""
        maker = self._maker
        assert maker is not None
        if order.before is not None:
            self._draws.restore(pickle.loads(order.before)[0])
        # Offsets that were judged the first time.
        moved = order.moves.values()
        judged = order.left_out.union(order.fills, order.moves, order.given, order.lost).difference(moved)
        samples: list[Any] = []
        if maker.has_getitems and not order.is_apart and not order.dead:
            self._connection.reach_all()
            together = maker.together(order.index)
            if together is not None:
                samples = [BAD if offset in judged else sample for offset, sample in enumerate(together)]
        for offset in range(len(samples), len(order.index)):
            if offset in order.dead:
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

    def _draw(self, samples: list[Any], places: int) -> Any:
        """Fills a batch from the iterator; returns a single sample if there are no batches."""
        assert self._iterator is not None
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
        assert iterator is not None
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

    def where(self) -> tuple[int | None, str]:
        if self._maker is not None:
            self._maker.retries.take()
        offset = self._offset if self._walk is None else self._walk.offset
        return offset, self._stage

    def journal(self) -> bytes:
        """The state that a replacement needs to continue exactly as this worker would."""
        state = self._draws.state()
        if self._iterator is None:
            # Usually no random numbers were drawn, and the last journal is still valid.
            if state != self._noted[0]:
                self._noted = (state, pickle.dumps((state, None, self._fitting.memory), protocol=5))
            return self._noted[1]
        iterable = (self._drawn, self._is_exhausted, self._shared_seed, self._first_state)
        return pickle.dumps((state, iterable, self._fitting.memory), protocol=5)

    def recall(self, journal: bytes | None) -> None:
        if journal is None:
            return
        state, iterable, self._fitting.memory = pickle.loads(journal)
        if iterable is not None:
            self._replay(*iterable)
        self._draws.restore(state)

    def blamed(self, result: Any) -> tuple[str, object]:
        return "batch", result

    def _replay(self, drawn: int, is_exhausted: bool, seed: int | None, first_state: State) -> None:
        """Draws the samples that were already drawn, and throws them away."""
        self._is_exhausted = is_exhausted
        if is_exhausted:
            return
        self._draws.restore(first_state)
        if seed != self._shared_seed:
            self._shared_seed = seed
            self._share(seed)
        self._begin()
        assert self._iterator is not None
        for offset in range(drawn):
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


def _collate_into(connection: _native.WorkerConnection) -> None:
    """Makes torch's default collation write batches directly into the arena."""
    table = _utils.collate.default_collate_fn_map
    plain = table[torch.Tensor]
    thread = threading.get_ident()

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        sample = batch[0]
        if sample.is_nested or sample.layout is not torch.strided or sample.device.type != "cpu":
            result: torch.Tensor = plain(batch, collate_fn_map=collate_fn_map)
            return result
        out: torch.Tensor | None = None
        size = len(batch) * sample.numel() * sample.element_size()
        if type(sample) is torch.Tensor and size > _SMALL and threading.get_ident() == thread:
            out = tensor_in_arena(connection, len(batch), sample)
        if out is None:
            out = sample.new_empty((len(batch), *sample.shape))
        return torch.stack(batch, 0, out=out)

    table[torch.Tensor] = collate_tensors
