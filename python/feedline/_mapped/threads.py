"""Runs functions in threads of the trainer: for functions that release the GIL, or Python without a GIL."""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._event_log import EventLog
from feedline._mapped.run_functions import FunctionRunner, Job, JobResult, Plan, Watcher
from feedline._workers.children import end_child
from feedline._workers.death import Death
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import Retries
from feedline._workers.worker_pool import Handle

__all__ = ["Threads"]

# Seconds to wait for a result before the caller checks for other work.
_LOOK = 0.002
# Seconds to wait for a result before checking for Ctrl-C.
_CHECK = 0.05
# Seconds that closing waits for a thread that is running a function.
_GRACE = 0.3


class Threads:
    """Threads that run jobs."""

    where = "in a thread of feedline.Loader"
    # A whole batch may have to be computed a second time, and functions may have changed its arrays in place.
    may_be_whole = False

    def __init__(self, plan: Plan, count: int, events: EventLog) -> None:
        self.count = count
        self._events = events
        self._plan = plan
        self.deaths: list[Death] = []
        self.workers: list[Handle] = []
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, JobResult | RemoteError] | _Note] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = threading.Event()

    def start(self) -> None:
        """Does nothing: threads start with the first job."""

    def wake_by(self, epoch: _native.Epoch) -> None:
        """Does nothing: `next` polls."""

    def delivered(self, waited: float) -> None:
        """Does nothing: the number of threads is fixed."""

    def forget(self) -> None:
        """Drops all jobs: their epoch is over."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()

    def submit(self, task: int, job: Job) -> None:
        if not self._threads:
            for number in range(self.count):
                thread = threading.Thread(
                    target=_run_jobs,
                    args=(self._plan, self._jobs, self._done, self._is_closed),
                    name=f"feedline-map-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
        self._jobs.put((task, job))

    def next(self, oldest: int, *, looks: bool) -> tuple[int, JobResult | RemoteError, None] | None:
        """The next result of a job; None if there is none yet and, with `looks`, the caller has other
        work."""
        wait = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                done = self._done.get(timeout=wait)
                break
            if looks and wait:
                return None
            # Only if there is no result: a stream of signals must not keep results from being taken.
            _native.check_interrupts()
            wait = _LOOK if looks else _CHECK
        if not isinstance(done, _Note):
            return (*done, None)
        self._events.source_event(done.name, done.details, done.thread)
        return None

    def close(self) -> None:
        """Ends the threads; a thread that is running a function ends after it."""
        if self._is_closed.is_set():
            # Not again: `forget` would take the end markers of the threads from the queue.
            return
        self._is_closed.set()
        self.forget()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_GRACE)
        self._threads.clear()

    def __del__(self) -> None:
        self.close()


@dataclass
class _Note:
    """An event of a source, from a thread."""

    name: str
    details: dict[str, Any]
    thread: int


def _run_jobs(
    plan: Plan,
    jobs: queue.SimpleQueue[tuple[int, Job] | None],
    done: queue.SimpleQueue[tuple[int, JobResult | RemoteError] | _Note],
    is_closed: threading.Event,
) -> None:
    def pause(seconds: float) -> None:
        is_closed.wait(seconds)

    def note(name: str, details: dict[str, Any]) -> None:
        done.put(_Note(name, details, threading.get_ident()))

    retries = Retries(
        plan.policy,
        stage="worker",
        pause=pause,
        notify=note,
        raises=False,
        folders=plan.folders,
        home=os.getpid(),
    )
    runner = FunctionRunner(plan, retries, Watcher(), seeds_all=False)
    home = os.getpid()
    while (given := jobs.get()) is not None and not is_closed.is_set():
        task, job = given
        result = _run_job(runner, job, home, may_retry=plan.may_retry)
        done.put((task, result))
        del given, job, result


def _run_job(runner: FunctionRunner, job: Job, home: int, *, may_retry: bool) -> JobResult | RemoteError:
    # A retry needs the original content, which functions may have changed in place.
    original = copy.deepcopy(job.content) if may_retry else None
    try:
        result = runner.run(job, lambda: original)
        if os.getpid() != home:
            raise _native.ForkReturned
        return result
    except BaseException as raised:
        if os.getpid() != home:
            end_child("a thread that calls the functions of a pipeline", raised)
        return RemoteError.of(raised, stage="worker")
