"""One pass over a loader with workers: batches in the order of the sampler, whatever dies."""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterDataPipe, MapDataPipe, _utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _sharding_worker_init_fn,
)

from feedline import _native
from feedline._copied import warn_of_copies
from feedline._described import described
from feedline._torch.batch import Batch
from feedline._torch.batch_maker import AmendedBatch
from feedline._torch.dataset_state import Stated
from feedline._torch.driver import Driver
from feedline._torch.sampling import is_stateful
from feedline._torch.worker import LoaderWork
from feedline._workers.open_files import warn_of_shared_files
from feedline._workers.pool_reports import PoolOwner, PoolReports, TaskPlace, lost_task_error
from feedline._workers.remote_error import RemoteError, place
from feedline._workers.retries import FaultyResult, PendingFault
from feedline._workers.worker_pool import GaveUp, WorkerPool, load
from feedline.errors import FeedlineWarning

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["WithWorkers"]


class _Task(Batch):
    """A batch that a worker makes."""

    # Its number; -1 if no worker has it.
    task: int = -1
    # Whether the worker holds the good samples, and what its journal said when the batch was begun.
    is_held: bool = False
    # Whether its own samples are made as if they were others.
    is_remade: bool = False
    journal_before: bytes | None = None
    one_at_a_time: bool = False
    # By offset: samples that kill, reported with the result of the others; samples that are not made again.
    undecided: Mapping[int, PendingFault] = MappingProxyType({})
    not_reloaded: AbstractSet[int] = frozenset()
    # What has come and waits for its turn.
    arrival: _Arrival | None = None

    @property
    def worker_id(self) -> int:
        assert self.worker is not None
        return self.worker


@dataclass(slots=True)
class _Arrival:
    """The result of a batch of a data set whose batches are planned in order when they come."""

    content: Any
    samples: int
    bad: list[PendingFault]


class WithWorkers(_native.BatchIterator, PoolOwner, _BaseDataLoaderIter):
    """With workers. A signal handler that raises (Ctrl-C) loses no batch."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._in_order = loader.in_order
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 with workers")
        self._ahead = loader.prefetch_factor * self._num_workers
        self._tasks = itertools.count()
        self._shutdown = False
        self._is_fresh = loader._is_fresh
        self._has_policy = loader.faults is not None
        self._loader_state = loader._loader_state
        self._driver: Driver[_Task] = Driver(loader, self, self, _Task, self._ahead)
        self._account = loader._loader_state.account
        self._look_for_open_files(loader)
        self._look_for_copies(loader)
        work = LoaderWork(
            dataset=self._dataset,
            kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=int(self._base_seed),
            worker_init_fn=self._init_fn(loader),
            num_workers=self._num_workers,
            shared_seed=self._shared_seed,
            values=loader._is_fresh,
            faults=loader.faults,
            fill=self._driver.fill != _native.Fill.Never,
            folders=loader._loader_state.folders,
            epoch=loader._loader_state.epochs if loader.seeding == "sample" else None,
            tracks=self._dataset_kind == _DatasetKind.Iterable or is_stateful(self._dataset),
            snapshot_every=loader._snapshot_every,
            places=loader._loader_state.progress.worker_places(self._num_workers),
        )
        # Called when the batch that was made last is the consumer's.
        self._confirm: Callable[[], None] | None = None
        self._worker_pool: WorkerPool | None = None
        config = loader._config()
        account, deaths = self._account, self._loader_state.deaths
        self._reports = PoolReports(account, account.policy, deaths, config, "its batch is recomputed")
        self._worker_pool = WorkerPool(
            work,
            config,
            fresh=loader._is_fresh,
            name="DataLoader",
            owner=self,
            reports=self._reports,
            zygote=self._loader_state.take(),
        )
        if self._loader_state.tuning is not None:
            self._loader_state.tuning.start(self._worker_pool, self._reports)
        self._worker_pool.start()
        self._workers = self._worker_pool.workers
        self._reset(loader, first_iter=True)

    def _look_for_open_files(self, loader: DataLoader[Any]) -> None:
        """Once for each loader. One worker alone has nobody to share an offset with."""
        if self._is_fresh or self._num_workers < 2 or self._loader_state.has_warned_of_files:
            return
        self._loader_state.has_warned_of_files = True
        warn_of_shared_files(loader.dataset, "dataset", "worker_init_fn")

    def _look_for_copies(self, loader: DataLoader[Any]) -> None:
        """Once for each loader. A fresh interpreter gets a copy in any case."""
        if self._is_fresh or self._loader_state.has_looked_for_copies:
            return
        self._loader_state.has_looked_for_copies = True
        warn_of_copies(loader.dataset, self._num_workers)

    def _init_fn(self, loader: DataLoader[Any]) -> Any:
        if not isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            return loader.worker_init_fn
        return functools.partial(
            _sharding_worker_init_fn, loader.worker_init_fn, self._world_size, self._rank
        )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if first_iter:
            self._loader_state.progress.sampler_begun_again()
        super()._reset(loader, first_iter)
        self._driver.begin(self._sampler_iter)
        if self._loader_state.tuning is not None:
            self._loader_state.tuning.begin_epoch()
        # Batches that are not delivered, in order, and those that a worker has, by the number of their task.
        self._waiting: dict[int, _Task] = {}
        self._sent: dict[int, _Task] = {}
        # Batches that were ordered, and those that the consumer has or never gets.
        self._ordered = self._consumed = 0
        self._active = [True] * self._num_workers
        self._assigned = [0] * self._num_workers
        self._num_yielded = self._driver.start.batches
        turn = self._driver.start.next_worker
        self._cycle = itertools.cycle([(turn + at) % self._num_workers for at in range(self._num_workers)])
        # By worker id, the first and the last batch that its current process has made.
        self._first_and_last: dict[int, tuple[_Task, _Task]] = {}
        self._resuming: dict[int, int] = {}
        if not first_iter:
            assert self._worker_pool is not None
            for worker_id in range(self._num_workers):
                task = next(self._tasks)
                self._resuming[task] = worker_id
                body = pickle.dumps((self._shared_seed, self._driver.number))
                self._worker_pool.submit(task, body, worker_id, resume=True)
        self._order_ahead()

    def _order_ahead(self) -> None:
        """Has batches made, as far ahead as the loader is to be."""
        while self._ordered < self._consumed + self._ahead:
            worker_id = self._next_worker() if self._driver.plans_on_arrival else 0
            batch = None if worker_id is None else self._driver.next_batch()
            if batch is None:
                return
            if self._driver.plans_on_arrival:
                batch.worker = worker_id
            self.order(batch)

    def _next_worker(self) -> int | None:
        """The worker whose turn it is."""
        for _ in range(self._num_workers):
            worker_id = next(self._cycle)
            if self._active[worker_id] and (
                self._in_order or self._assigned[worker_id] < self._ahead // sum(self._active)
            ):
                return worker_id
        return None

    # ---- what the driver wants ----

    def order(self, batch: _Task) -> None:
        self._wait_for(batch)
        if batch.left_out:
            batch.not_reloaded |= batch.left_out
        is_whole = not self._auto_collation or batch.own in (0, batch.size)
        self._submit(batch, batch.index if is_whole else batch.index[: batch.own])

    def remake(self, batch: _Task) -> None:
        """With random numbers that depend on the batch alone, as if all its places were to be filled."""
        self._sent.pop(batch.task, None)
        batch.task, batch.is_held, batch.journal_before, batch.arrival = -1, False, None, None
        batch.undecided = {}
        batch.not_reloaded = set(range(batch.size))
        batch.is_remade = True
        if batch.own:
            self.amend(batch)

    def amend(self, batch: _Task) -> None:
        if batch.number not in self._waiting:
            # It has no samples of its own.
            self._wait_for(batch)
            batch.not_reloaded = set(range(batch.size))
        held, batch.is_held = batch.task if batch.is_held else -1, False
        fills = (
            set(batch.fills).union(range(batch.own) if batch.is_remade else ()).difference(batch.undecided)
        )
        fills -= batch.left_out | batch.moves.keys() | batch.substituted
        amended = AmendedBatch(
            index=batch.index if self._auto_collation else [batch.index],
            held_task=held,
            not_reloaded=frozenset(batch.not_reloaded),
            one_at_a_time=batch.one_at_a_time,
            fills={offset: batch.sample(offset, is_batched=self._auto_collation) for offset in fills},
            moves=dict(batch.moves),
            left_out=frozenset(batch.left_out),
            substituted=frozenset(batch.substituted),
            undecided=frozenset(batch.undecided),
            journal_before=batch.journal_before,
            batch=batch.number,
        )
        self._submit(batch, amended)

    def discard(self, batch: _Task) -> None:
        self._leave(batch)

    def _wait_for(self, batch: _Task) -> None:
        self._ordered += 1
        self._assigned[batch.worker_id] += 1
        self._waiting[batch.number] = batch

    def _submit(self, batch: _Task, body: Any) -> None:
        assert self._worker_pool is not None
        self._sent.pop(batch.task, None)
        batch.task = next(self._tasks)
        self._sent[batch.task] = batch
        self._worker_pool.submit(batch.task, pickle.dumps(body, protocol=5), batch.worker_id)

    def _leave(self, batch: _Task) -> None:
        """Nobody waits for a batch any more."""
        self._sent.pop(batch.task, None)
        if self._waiting.pop(batch.number, None) is not None:
            self._assigned[batch.worker_id] -= 1
        self._consumed += 1

    # ---- what the consumer gets ----

    # Torch's own, with no frame of ours between it and the user's code: its warnings name that.
    _produce = _BaseDataLoaderIter.__next__

    def _next_data(self) -> Any:
        began = time.perf_counter()
        while True:
            # Here, where nothing is lost if a warning is an error.
            self._account.notify()
            self._account.notices.issue()
            if self._driver.ready:
                return self._deliver(self._driver.ready.popleft(), time.perf_counter() - began)
            if not self._waiting:
                self._driver.plan_ends()
            if self._driver.ready:
                continue
            if self._driver.has_ended or not self._waiting:
                if not self._persistent_workers:
                    self._shutdown_workers()
                self._driver.end()
                self._account.notices.issue()
                raise StopIteration
            if self._worker_pool is None:
                raise RuntimeError("the workers of this iterator were shut down")
            self._wait()

    def _wait(self) -> None:
        assert self._worker_pool is not None
        oldest = next(iter(self._waiting.values())).task if self._in_order else 2**63
        try:
            answer = self._worker_pool.next(oldest, self._timeout or None)
            self._account.notify()
        except FeedlineWarning:
            raise
        except Exception:
            self._shutdown_workers()
            self._driver.leave()
            raise
        if answer is None:
            raise RuntimeError(self._late())
        if isinstance(answer, GaveUp):
            self._given_up(answer)
        else:
            self._arrived(answer)
        # Some may have turned out to have nothing to deliver.
        self._order_ahead()

    def _arrived(self, answer: _native.TaskResult) -> None:
        worker_id = self._resuming.pop(answer.task, None)
        if worker_id is not None and answer.kind == "raised":
            raise load(answer).exception(f"in DataLoader worker process {worker_id}", "", exact=False)
        batch = self._sent.pop(answer.task, None)
        if batch is None:
            # Of an epoch that was left, of a batch that is made again, or of a worker that has nothing more.
            return
        if answer.kind == "exhausted":
            self._exhausted(answer.worker_id)
            return
        # When it has arrived, not when it is delivered: the worker may be replaced in between.
        self._first_and_last[batch.worker_id] = (
            self._first_and_last.get(batch.worker_id, (batch,))[0],
            batch,
        )
        if answer.kind == "faulty":
            self._faulty(batch, load(answer), answer.samples)
            return
        if answer.kind != "raised":
            offset, seconds = answer.slowest
            if self._account.ledger.is_slow(seconds):
                self._account.slow(self._sample(batch, offset, "fetching")[0], seconds, batch.worker_id)
        if self._driver.plans_on_arrival or answer.kind == "raised":
            self._keep(batch, _Arrival(answer, answer.samples, []))
        else:
            self._driver.add_result(batch, content=answer, samples=answer.samples)

    def _exhausted(self, worker_id: int) -> None:
        assert self._worker_pool is not None
        self._active[worker_id] = False
        if not self._persistent_workers:
            self._worker_pool.retire(worker_id)
        for batch in [
            batch
            for batch in self._waiting.values()
            if batch.worker_id == worker_id and batch.arrival is None
        ]:
            self._leave(batch)
        self._plan_arrived()

    def _faulty(self, batch: _Task, faulty: FaultyResult, samples: int) -> None:
        if faulty.has_ended:
            self._loader_state.progress.note_end(batch.worker_id, faulty.place)
            self._exhausted(batch.worker_id)
            return
        batch.place = faulty.place
        batch.journal_before = batch.journal_before or faulty.before
        bad = faulty.bad + list(batch.undecided.values())
        batch.undecided = {}
        if faulty.is_held:
            batch.is_held = True
            self._driver.add_result(batch, sorted(bad, key=lambda one: one.offset), is_collated=False)
        else:
            self._keep(batch, _Arrival(faulty.batch, 0 if faulty.batch is None else samples, bad))

    def _keep(self, batch: _Task, arrival: _Arrival) -> None:
        """A batch that is collated has come, or what was raised."""
        if not self._driver.plans_on_arrival or batch.planned >= 0:
            self._notify(batch, arrival)
            return
        batch.arrival = arrival
        self._plan_arrived()

    def _plan_arrived(self) -> None:
        """Tells the driver of batches that have come, in their order if there is one."""
        for batch in list(self._waiting.values()) if self._driver.plans_on_arrival else ():
            if batch.arrival is None:
                if self._in_order:
                    return
                continue
            if batch.planned < 0:
                self._notify(batch, batch.arrival)

    def _notify(self, batch: _Task, arrival: _Arrival) -> None:
        content = arrival.content
        if isinstance(content, BaseException):
            self._driver.add_raised(batch, content)
        elif getattr(content, "kind", None) == "raised":
            self._lose(batch, content)
        else:
            self._driver.add_result(batch, arrival.bad, content=content, samples=arrival.samples)

    def _lose(self, batch: _Task, result: _native.TaskResult) -> None:
        """A batch raised. With a policy, the sample that raised is a fault like any other."""
        if not self._has_policy:
            self._driver.add_raised(batch, result)
            return
        remote_error: RemoteError = load(result)
        offset = remote_error.offset
        if offset is None and self._dataset_kind == _DatasetKind.Iterable:
            # Its samples have no index; all of the batch are lost with the one that raised.
            offset = 0
        if offset is None or remote_error.stage not in ("fetching", "collating"):
            self._driver.add_raised(batch, remote_error)
            return
        error = self._raised(remote_error, batch)
        fault = PendingFault.raised(remote_error.again(), remote_error, offset, getattr(error, "path", None))
        self._driver.add_raised(batch, error, fault)

    def _deliver(self, arrival: _Task | BaseException, waited: float) -> Any:
        error: Any = arrival
        if isinstance(arrival, _Task):
            self._leave(arrival)
            self._order_ahead()
            error = arrival.content
        if isinstance(error, BaseException):
            # By the policy, or because there is none, this ends the run.
            self._shutdown_workers()
            self._driver.leave()
            self._account.notify()
            try:
                raise error
            finally:
                # A frame that holds what was raised in it keeps itself alive, and the arenas with it.
                del error, arrival
        assert isinstance(arrival, _Task)
        data = arrival.content
        if isinstance(data, _native.TaskResult):
            data = load(data)
        if isinstance(data, RemoteError):
            raise self._raised(data, arrival)
        if type(data) is Stated:
            data, arrival.place = data.batch, data.place
        arrival.content = None
        self._confirm = self._driver.delivery(arrival, waited)
        if self._loader_state.tuning is not None and self._worker_pool is not None:
            self._loader_state.tuning.delivered(waited, self._worker_pool, self._reports)
        self._account.notify()
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _raised(self, remote_error: RemoteError, batch: _Task) -> BaseException:
        stage = remote_error.stage
        if stage == "collating" and remote_error.offset is not None:
            # It does not fit the others, so it is the sample that is to be named.
            stage = "fetching"
        sample, offset = self._sample(batch, remote_error.offset, stage)
        path = self._path(sample, offset)
        where = place(sample, offset, batch.number, batch.worker_id, stage, path)
        is_alone = offset is not None and remote_error.stage != "collating"
        return remote_error.exception(
            f"in DataLoader worker process {batch.worker_id}",
            f"\nfeedline: {where}",
            replay=self._driver.replay_line(sample, batch.number, is_alone=is_alone),
            # Without a policy what arrives is what torch's own loader would raise.
            exact=self._has_policy,
            index=sample,
            batch_offset=offset,
            batch=batch.number,
            worker=batch.worker_id,
            epoch=self._driver.number,
            **({} if path is None else {"path": path}),
        )

    # ---- samples that kill ----

    def _given_up(self, given_up: GaveUp) -> None:
        """A sample kills its worker, or takes longer than it may: that is a fault as any other."""
        batch = self._sent.get(given_up.task)
        if batch is None or self._worker_pool is None:
            return
        # Of this pass alone: numbers of tasks begin again with each.
        deaths = [death for death in self._worker_pool.deaths if given_up.task in death.tasks]
        error = lost_task_error(deaths, given_up.why, "a sample")
        fault = PendingFault.of_error(error, given_up.offset, "fetching", len(deaths))
        fault.action = action = self._account.action(fault.names)
        is_map = self._dataset_kind == _DatasetKind.Map
        can_continue = (
            is_map and action != "raise" and (given_up.offset is not None or not batch.one_at_a_time)
        )
        if not can_continue:
            self._sent.pop(given_up.task)
            self._keep(batch, _Arrival(error, 0, []))
            return
        batch.journal_before = batch.journal_before or given_up.journal
        if given_up.offset is None:
            # The data set makes all samples at once: one at a time, it will be seen which of them it is.
            batch.one_at_a_time = True
        else:
            offset = int(given_up.offset)
            if offset not in batch.fills:
                batch.not_reloaded |= {batch.moves.get(offset, offset)}
            batch.undecided = {**batch.undecided, offset: fault}
        self.amend(batch)

    # ---- what is known of the workers ----

    def _sample(self, batch: _Task, offset: int | None, stage: str) -> tuple[Any, int | None]:
        """The index of a sample at an offset of a batch, as far as it is known."""
        if self._dataset_kind == _DatasetKind.Iterable:
            return None, offset
        if not self._auto_collation:
            return batch.sample(0, is_batched=False), 0
        if offset is None or stage not in ("fetching", "waiting for memory", "waiting for its source"):
            return batch.index, None
        try:
            return batch.sample(offset, is_batched=True), offset
        except (LookupError, TypeError):
            return batch.index, None

    def _path(self, sample: Any, offset: int | None) -> str | None:
        """The file of one sample of a map-style data set."""
        if offset is None or self._dataset_kind == _DatasetKind.Iterable:
            return None
        return self._loader_state.samples.path(sample)

    def locate(self, task: int, offset: int | None, stage: str) -> TaskPlace | None:
        batch = self._sent.get(task)
        if batch is None:
            return None
        sample, offset = self._sample(batch, offset, stage)
        replay = self._driver.replay_line(sample, batch.number, is_alone=offset is not None)
        return TaskPlace(sample, self._path(sample, offset), offset, batch.number, replay=replay)

    def forget_process(self, worker_id: int) -> str:
        first, last = self._first_and_last.pop(worker_id, (None, None))
        if first is None or last is None:
            return ""
        text = f", between batch {first.number} and batch {last.number}"
        if self._dataset_kind == _DatasetKind.Map:
            ends = (self._sample(first, 0, "fetching")[0], self._sample(last, -1, "fetching")[0])
            text += f", samples {described(ends[0])} to {described(ends[1])}"
        return text

    def _late(self) -> str:
        text = f"DataLoader timed out after {self._timeout} seconds"
        batch = next(iter(self._waiting.values()))
        worker_id, number = batch.worker_id, batch.number
        assert self._worker_pool is not None
        doing = self._worker_pool.activity(worker_id)
        if doing is None:
            return f"{text}\nfeedline: worker {worker_id}, which has batch {number}, has not started yet"
        if doing.task != batch.task:
            return f"{text}\nfeedline: worker {worker_id} has batch {number} and is {doing.stage}"
        sample, offset = self._sample(batch, doing.offset, doing.stage)
        where = place(sample, offset, number, worker_id, doing.stage, self._path(sample, offset))
        return f"{text}\nfeedline: it was {doing.stage} {where}"

    def _shutdown_workers(self) -> None:
        worker_pool, self._worker_pool = self._worker_pool, None
        if worker_pool is None:
            return
        self._shutdown = True
        # What is ready may be in the arenas of workers.
        self._driver.ready.clear()
        for batch in self._waiting.values():
            batch.content = batch.arrival = None
        worker_pool.close(keep_zygote=self._is_fresh)
        if worker_pool.zygote is not None:
            self._loader_state.put(worker_pool.zygote)

    def __del__(self) -> None:
        if getattr(self, "_worker_pool", None) is not None:
            self._shutdown_workers()
            self._driver.leave()
