"""Runs functions in the thread that waits for their results, so that a debugger can follow them."""

from __future__ import annotations

from collections import deque

from feedline import _native
from feedline._mapped.run_functions import FunctionResult, FunctionRunner, FunctionTask, Plan, Watcher
from feedline._workers.death import Death
from feedline._workers.retries import Retries
from feedline._workers.worker_pool import Handle

__all__ = ["ThisThread"]


class ThisThread:
    """Runs tasks when their results are asked for. What a function raises passes unchanged."""

    where = "in Loader.replay"
    may_be_whole = False
    count = 1

    def __init__(self, plan: Plan, *, seeds_all: bool) -> None:
        """With `seeds_all`, the global generators are seeded for each sample, as in worker processes."""
        self.deaths: list[Death] = []
        self.workers: list[Handle] = []
        self._tasks: deque[tuple[int, FunctionTask]] = deque()
        retries = Retries(plan.policy, stage="worker", folders=plan.folders)
        self._runner = FunctionRunner(plan, retries, Watcher(), seeds_all=seeds_all, copies=True)

    def start(self) -> None:
        """Does nothing: there is nothing to start."""

    def wake_by(self, epoch: _native.Epoch) -> None:
        """Does nothing: `next` always has a result."""

    def delivered(self, waited: float) -> None:
        """Does nothing: there is nothing to tune."""

    def forget(self) -> None:
        """Drops all tasks: their epoch is over."""
        self._tasks.clear()

    def submit(self, number: int, task: FunctionTask) -> None:
        self._tasks.append((number, task))

    def next(self, oldest: int, *, polls: bool) -> tuple[int, FunctionResult, None]:
        """Runs the oldest task."""
        number, task = self._tasks.popleft()
        try:
            return number, self._runner.run(task, lambda: task.content), None
        except StopIteration as raised:
            raise RuntimeError("a function raised StopIteration, which would end the epoch") from raised

    def close(self) -> None:
        self.forget()
