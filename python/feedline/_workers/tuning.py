"""How many workers run at once, tuned while they run. The same for every front."""

from __future__ import annotations

import time
from typing import Any, Protocol

from feedline import _native
from feedline._workers.pool_reports import PoolReports
from feedline._workers.worker_pool import WorkerPool

__all__ = ["Tuning"]

# Seconds between two measurements.
_INTERVAL = 0.5


class Tuner(Protocol):
    """Decides; `feedline._native.Tuner` outside of tests."""

    def measure(self, seconds: float, results: int, waited: float) -> _native.TuningChange | None: ...


class Tuning:
    """Measures how long the consumer waits, and lets more or fewer workers run.

    If any worker may do a task, workers that are not to run end. With `has_fixed_ids`, tasks belong to
    workers, as in torch's loader, where random numbers depend on the worker: then all workers keep their
    process, and only some compute at once. Either way results are the same for any number.
    """

    def __init__(self, first: int, most: int, *, has_fixed_ids: bool = False) -> None:
        self.running = first
        self.most = most
        self._has_fixed_ids = has_fixed_ids
        self._is_announced = False
        self._tuner: Tuner = _native.Tuner(first, most)
        self._since: float | None = None
        self._results = 0
        self._waited = 0.0

    def __reduce__(self) -> Any:
        # In another process, perhaps on another machine, it begins again.
        return _made, (self.running, self.most, self._has_fixed_ids)

    def start(self, worker_pool: WorkerPool, reports: PoolReports) -> None:
        """Before the first task: only some of the workers run."""
        if not self._is_announced:
            self._is_announced = True
            reports.chosen(self.running, self.most)
        if self._has_fixed_ids:
            worker_pool.limit(self.running, ends_others=False)
            return
        for worker_id in range(self.running, self.most):
            worker_pool.retire(worker_id)

    def begin_epoch(self) -> None:
        """What the consumer did between two epochs says nothing, nor how long workers took to start."""
        self._since = None

    def delivered(self, waited: float, worker_pool: WorkerPool, reports: PoolReports) -> None:
        """The consumer got a batch, for which it waited this long, in seconds."""
        self.passed(1, waited, worker_pool, reports)

    def passed(self, results: int, waited: float, worker_pool: WorkerPool, reports: PoolReports) -> None:
        """The number of results since the last call, and how long the consumer has waited, in seconds."""
        now = time.perf_counter()
        if self._since is None:
            self._since, self._results, self._waited = now, 0, 0.0
            return
        self._results += results
        self._waited += waited
        if now - self._since < _INTERVAL:
            return
        change = self._tuner.measure(now - self._since, self._results, self._waited)
        self._since, self._results, self._waited = now, 0, 0.0
        if change is not None:
            self._apply(change, worker_pool, reports)

    def _apply(self, change: _native.TuningChange, worker_pool: WorkerPool, reports: PoolReports) -> None:
        before, count = self.running, change.workers
        self.running = count
        if self._has_fixed_ids:
            worker_pool.limit(count, ends_others=change.ends_others)
        else:
            for worker_id in range(before, count):
                worker_pool.restore(worker_id)
            for worker_id in range(count, before):
                worker_pool.retire(worker_id)
        reports.tuned(before, count, self.most, change.reason)


def _made(running: int, most: int, has_fixed_ids: bool) -> Tuning:
    return Tuning(running, most, has_fixed_ids=has_fixed_ids)
