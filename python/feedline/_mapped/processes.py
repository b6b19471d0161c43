"""Functions in supervised worker processes, from the trainer's side."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._event_log import EventLog
from feedline._mapped.run_functions import FunctionResult, FunctionTask, Plan
from feedline._mapped.worker import MapWork, pack_task, reducers
from feedline._workers.death import Death
from feedline._workers.open_files import warn_of_shared_files
from feedline._workers.pickling import ERRORS, Packer, not_picklable
from feedline._workers.pool_reports import PoolOwner, PoolReports, TaskPlace
from feedline._workers.remote_error import RemoteError
from feedline._workers.tuning import Tuning
from feedline._workers.worker_pool import GaveUp, Handle, WorkerPool, load
from feedline.errors import FeedlineWarning, replay_line
from feedline.faults import FaultPolicy

__all__ = ["Workers"]


@dataclass
class _PackedContent:
    """The pickled content of a task; its buffers are in shared memory."""

    pickled: bytes
    task_buffers: _native.TaskBuffers | None


class Workers(PoolOwner):
    """Worker processes that run tasks, for all epochs; they start with the first."""

    where = "in a worker of feedline.Loader"
    # Whether one task may call the functions of samples and then those of their batch.
    may_be_whole = True

    def __init__(
        self,
        plan: Plan,
        config: dict[str, Any],
        events: EventLog,
        *,
        fresh: bool,
        location: Callable[[int], tuple[str, int | None] | None],
        tuning: Tuning | None,
    ) -> None:
        """`location` returns the file of a sample; `tuning` decides how many workers run at once."""
        self._tuning = tuning
        self._location = location
        self.count: int = config["workers"]
        self._plan = plan
        self._config = config
        self._events = events
        self._fresh = fresh
        self._worker_pool: WorkerPool | None = None
        self._tasks: dict[int, FunctionTask] = {}
        self.deaths: list[Death] = []
        self._has_checked_files = False

    @property
    def workers(self) -> list[Handle]:
        return [] if self._worker_pool is None else self._worker_pool.workers

    def start(self) -> None:
        if self._worker_pool is None:
            self._check_open_files()
            work = MapWork(self._plan, self.count, values=self._fresh)
            policy = self._plan.faults or FaultPolicy()
            retried = "its samples are recomputed"
            self._reports = PoolReports(self._events, policy, self.deaths, self._config, retried)
            self._worker_pool = WorkerPool(
                work, self._config, fresh=self._fresh, name="Loader", owner=self, reports=self._reports
            )
            if self._tuning is not None:
                self._tuning.start(self._worker_pool, self._reports)
            self._worker_pool.start()
        if self._tuning is not None:
            self._tuning.begin_epoch()

    def _check_open_files(self) -> None:
        """Warns once of files whose offset several workers would share."""
        if self._fresh or self.count < 2 or self._has_checked_files:
            return
        self._has_checked_files = True
        for step in self._plan.steps:
            warn_of_shared_files(step.function, step.name)

    def wake_by(self, epoch: _native.Epoch) -> None:
        assert self._worker_pool is not None
        self._worker_pool.wake_by(epoch)

    def forget(self) -> None:
        """Drops all tasks: their epoch is over."""
        self._tasks.clear()

    def submit(self, number: int, task: FunctionTask) -> None:
        assert self._worker_pool is not None
        if not isinstance(task.content, _PackedContent):
            # Once: if the task is submitted again, workers read the same shared memory.
            task.content = self._pack(task.content)
        self._tasks[number] = task
        self._worker_pool.submit(
            number, pack_task(task, task.content.pickled), task_buffers=task.content.task_buffers
        )

    def _pack(self, content: Any) -> _PackedContent:
        assert self._worker_pool is not None
        try:
            pickled, *buffers = Packer(reducers(), values=self._fresh).pack(content)
        except ERRORS as raised:
            raise not_picklable(content, "batch", raised, pickle.dumps) from raised
        return _PackedContent(bytes(pickled), self._worker_pool.load(buffers))

    def next(
        self, oldest: int, *, polls: bool
    ) -> tuple[int, FunctionResult | RemoteError | GaveUp, _native.TaskResult | None] | None:
        """The next result of a task; None if something else has happened."""
        assert self._worker_pool is not None
        try:
            result = self._worker_pool.next(oldest)
        except FeedlineWarning:
            raise
        except Exception:
            # The next epoch starts new workers.
            self.close()
            raise
        if result is None or self._tasks.pop(result.task, None) is None:
            return None
        if isinstance(result, GaveUp):
            return result.task, result, None
        return result.task, load(result), result

    def delivered(self, waited: float) -> None:
        """The consumer got a batch, for which it waited so many seconds."""
        if self._tuning is not None and self._worker_pool is not None:
            self._tuning.delivered(waited, self._worker_pool, self._reports)

    def close(self) -> None:
        worker_pool, self._worker_pool = self._worker_pool, None
        self._tasks.clear()
        if worker_pool is not None:
            worker_pool.close()

    def __del__(self) -> None:
        if getattr(self, "_worker_pool", None) is not None:
            self.close()

    # ---- events of the worker pool ----

    def locate(self, number: int, offset: int | None, stage: str) -> TaskPlace | None:
        task = self._tasks.get(number)
        if task is None:
            return None
        if not task.is_of_samples or offset is None or offset >= len(task.indices):
            return TaskPlace(task.indices)
        index = task.indices[offset]
        path, _ = self._location(index) or (None, None)
        return TaskPlace(index, path, offset, replay=replay_line(index, task.epoch))
