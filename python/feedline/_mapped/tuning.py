"""How many workers of a pipeline run at once, tuned while it runs."""

from __future__ import annotations

import time

from feedline import _native
from feedline._workers.pool_reports import PoolReports
from feedline._workers.worker_pool import WorkerPool

__all__ = ["Tuning"]

# Seconds between two measurements.
_INTERVAL = 1.0


class Tuning:
    """Measures how long the consumer waits, and lets more or fewer workers run. Which worker runs a function
    does not matter, so batches stay the same."""

    def __init__(self, first: int, most: int) -> None:
        self.running = first
        self.most = most
        self._tuner = _native.Tuner(first, most)
        self._since = time.perf_counter()
        self._results = 0
        self._waited = 0.0

    def start(self, worker_pool: WorkerPool) -> None:
        """Before the first task: only some of the workers run."""
        for worker_id in range(self.running, self.most):
            worker_pool.retire(worker_id)

    def begin_epoch(self) -> None:
        """What the consumer did between two epochs says nothing."""
        self._since, self._results, self._waited = time.perf_counter(), 0, 0.0

    def delivered(self, waited: float, worker_pool: WorkerPool, reports: PoolReports) -> None:
        """The consumer got a batch, for which it waited so many seconds."""
        self._results += 1
        self._waited += waited
        now = time.perf_counter()
        if now - self._since < _INTERVAL:
            return
        change = self._tuner.measure(now - self._since, self._results, self._waited)
        self._since, self._results, self._waited = now, 0, 0.0
        if change is not None:
            self._apply(*change, worker_pool, reports)

    def _apply(self, count: int, why: str, worker_pool: WorkerPool, reports: PoolReports) -> None:
        before, self.running = self.running, count
        for worker_id in range(before, count):
            worker_pool.restore(worker_id)
        for worker_id in range(count, before):
            worker_pool.retire(worker_id)
        reports.tuned(before, count, self.most, why)
