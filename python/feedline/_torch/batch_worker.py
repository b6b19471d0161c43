"""A worker process of a torch loader, as far as it does not depend on the kind of data set: it seeds and
collates as torch's does, with batches in the arena, and follows the state of the data set."""

from __future__ import annotations

import pickle
import random
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterDataPipe, _utils
from torch.utils.data.graph_settings import apply_random_seed

from feedline import _native
from feedline._native import WorkerActivity

# Imports NumPy before workers are forked: otherwise each of them would have to load it.
from feedline._numpy import seed_global
from feedline._torch.batch_maker import AmendedBatch, SampleLoader, UnequalSamples
from feedline._torch.batch_rows import BatchRows
from feedline._torch.collatable import CollateCheck
from feedline._torch.dataset_state import DatasetPlace, DatasetTracker, Stated, load_dataset
from feedline._torch.random_state import GeneratorStates, State
from feedline._torch.seeding import SampleSeeding, SeededDataset
from feedline._torch.tensors import reducers, tensor_in_arena
from feedline._workers.retries import BAD, FaultyResult
from feedline._workers.worker import Buffers, Worker

if TYPE_CHECKING:
    from feedline._torch.worker import LoaderWork

__all__ = ["BatchWorker", "IterablePlace", "with_place"]

# Where a worker of an iterable data set is: samples drawn, whether there are no more, the seed that workers
# share, the states of the generators before the first sample, and where the worker began.
IterablePlace = tuple[int, bool, int | None, State, DatasetPlace | None]

# A batch of at most this many bytes is sent inline, and need not be in the arena.
_SMALL = 4096


class BatchWorker(Worker):
    """Makes the batches of its tasks."""

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
        # Where this worker begins in the epoch, and whether it is there.
        self._start: DatasetPlace | None = work.places[worker_id] if work.places else None
        self._is_placed = self._start is None
        self._tracker = DatasetTracker(work.snapshot_every) if work.tracks else None
        self._draws = GeneratorStates()
        self._fitting = CollateCheck(work.collate_fn, self._draws)
        self._rows = BatchRows(connection, work.collate_fn)
        # The last journal, and the states of the generators in it.
        self._noted: tuple[State | None, bytes] = (None, b"")
        self._seeding = None if work.epoch is None else SampleSeeding(work.base_seed, work.epoch)
        # What samples are taken from.
        self._samples = work.dataset
        if self._seeding is not None:
            self._samples = SeededDataset(work.dataset, self._seeding)
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
        _collate_into(connection, self._rows)
        if work.worker_init_fn is not None:
            work.worker_init_fn(worker_id)
        self._begin()

    def _make_maker(self) -> SampleLoader | None:
        policy, work = self._work.faults, self._work
        if policy is None:
            return None
        retries = self._retries(policy, seed=work.base_seed, folders=work.folders, leaves=True)
        return SampleLoader(self._samples, retries, policy.replacement if policy.has_replacement else BAD)

    def _share(self, seed: int | None) -> None:
        if isinstance(self._dataset, IterDataPipe):
            assert seed is not None
            self._shared.manual_seed(seed)
            self._dataset = apply_random_seed(self._dataset, self._shared)

    def _begin(self) -> None:
        """Begins an epoch."""

    def resume(self, body: bytes) -> None:
        """Starts a new epoch in a persistent worker."""
        self._start, self._is_placed = None, True
        if self._tracker is not None:
            self._tracker.begin()
        self._shared_seed, epoch = pickle.loads(body)
        self._begin_seeding(epoch)
        self._share(self._shared_seed)
        self._begin()

    def _begin_seeding(self, epoch: int | None) -> None:
        if self._seeding is not None and epoch is not None:
            self._seeding.epoch = epoch
            self._noted = (None, b"")

    def do(self, task: int, body: bytes, received: Buffers) -> object:
        try:
            if not self._is_placed:
                self._go_to_place()
            result = self._do(task, body)
            return result if self._tracker is None else self._stated(result, self._tracker)
        finally:
            self._rows.release()

    def _go_to_place(self) -> None:
        """Begins where a worker of the run that is continued was."""
        place, self._is_placed = self._start, True
        assert place is not None
        if self._tracker is not None:
            self._tracker.begin(place)
        self._load_place(place)

    def _load_place(self, place: DatasetPlace) -> None:
        load_dataset(self._dataset, place)

    def _stated(self, result: object, tracker: DatasetTracker) -> object:
        """A result with the place in the data set behind it."""
        return with_place(result, tracker.place(self._dataset, None, 0))

    def _do(self, task: int, body: bytes) -> object:
        order = pickle.loads(body)
        self._stage = "fetching"
        self._walk = None
        self._offset = None
        if self._seeding is not None:
            self._seeding.note_batch(order.index if type(order) is AmendedBatch else order)
        return self._batch(order, task)

    @abstractmethod
    def _batch(self, order: Any, task: int) -> object:
        """The result of a task."""

    def _collated(self, samples: Any) -> Any:
        self._connection.made(len(samples) if self._work.auto_collation and self._walk is None else None)
        # From here on no sample is being loaded.
        self._walk = self._offset = None
        self._stage = "collating"
        self._connection.enter(WorkerActivity.Collating)
        if self._seeding is not None:
            self._seeding.begin_batch()
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

    def where(self) -> tuple[int | None, str]:
        if self._maker is not None:
            self._maker.retries.take()
        offset = self._offset if self._walk is None else self._walk.offset
        return offset, self._stage

    def journal(self) -> bytes:
        """The state that a replacement needs to continue exactly as this worker would."""
        if self._seeding is not None:
            # No sample depends on what was drawn before.
            if not self._noted[1]:
                journal = (None, None, self._fitting.memory, self._seeding.epoch)
                self._noted = (None, pickle.dumps(journal, protocol=5))
            return self._noted[1]
        return self._journal(self._draws.state())

    def _journal(self, state: State) -> bytes:
        # Usually no random numbers were drawn, and the last journal is still valid.
        if state != self._noted[0]:
            self._noted = (state, pickle.dumps((state, None, self._fitting.memory, None), protocol=5))
        return self._noted[1]

    def recall(self, journal: bytes | None) -> None:
        if journal is None:
            return
        state, iterable, self._fitting.memory, epoch = pickle.loads(journal)
        self._begin_seeding(epoch)
        self._return_to(iterable)
        if state is not None:
            self._draws.restore(state)

    def _return_to(self, iterable: IterablePlace | None) -> None:
        """Goes where the predecessor was."""
        if not self._is_placed:
            self._go_to_place()

    def blamed(self, result: Any) -> tuple[str, object]:
        return "batch", result.batch if type(result) is Stated else result


def with_place(result: object, place: DatasetPlace) -> object:
    if isinstance(result, FaultyResult):
        result.place = place
        return result
    return Stated(result, place)


def _collate_into(connection: _native.WorkerConnection, rows: BatchRows) -> None:
    """Makes torch's default collation write batches directly into the arena."""
    table = _utils.collate.default_collate_fn_map
    plain = table[torch.Tensor]
    thread = threading.get_ident()

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        sample = batch[0]
        if sample.is_nested or sample.layout is not torch.strided or sample.device.type != "cpu":
            result: torch.Tensor = plain(batch, collate_fn_map=collate_fn_map)
            return result
        out = rows.batch_of(batch)
        if out is not None:
            return out
        size = len(batch) * sample.numel() * sample.element_size()
        if type(sample) is torch.Tensor and size > _SMALL and threading.get_ident() == thread:
            out = tensor_in_arena(connection, len(batch), sample.dtype, sample.shape)
        if out is None:
            out = sample.new_empty((len(batch), *sample.shape))
        return torch.stack(batch, 0, out=out)

    table[torch.Tensor] = collate_tensors
