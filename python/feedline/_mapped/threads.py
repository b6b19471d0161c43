"""Functions in threads of the trainer: for those that release the GIL, or where there is none."""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._account import Outages
from feedline._mapped.run_functions import FunctionRunner, Job, Made, Plan, Watcher
from feedline._workers.children import end_child
from feedline._workers.death import Death
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import Retries
from feedline._workers.worker_pool import Handle

__all__ = ["Threads"]

# How long a wait goes on before it is looked whether there is something else to do, in seconds.
_LOOK = 0.002
# How long a wait goes on before Ctrl-C is looked for.
_CHECK = 0.05
# How long closing waits for a thread that is at a function, in seconds.
_GRACE = 0.3


class Threads:
    """A few threads that do jobs."""

    where = "in a thread of feedline.Loader"
    # A job may have to be done a second time otherwise, and functions may have changed what it has.
    may_be_whole = False

    def __init__(self, plan: Plan, count: int, event: Callable[[str, dict[str, Any]], None]) -> None:
        """`event` hears what becomes of the sources that functions read."""
        self.count = count
        self._event = event
        self._away = Outages()
        self._plan = plan
        self.deaths: list[Death] = []
        self.workers: list[Handle] = []
        self._jobs: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Made | RemoteError] | _Note] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = threading.Event()

    def start(self) -> None:
        """They start with the first job."""

    def wake_by(self, epoch: _native.Epoch) -> None:
        """Who waits looks around now and then."""

    def forget(self) -> None:
        """What was handed in so far is of an epoch that is over."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()

    def submit(self, task: int, job: Job) -> None:
        if not self._threads:
            for number in range(self.count):
                thread = threading.Thread(
                    target=_live,
                    args=(self._plan, self._jobs, self._done, self._is_closed),
                    name=f"feedline-map-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
        self._jobs.put((task, job))

    def next(self, oldest: int, *, looks: bool) -> tuple[int, Made | RemoteError, None] | None:
        """What came of a job; None if nothing did, and it is to be looked for other things."""
        wait = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                came = self._done.get(timeout=wait)
                break
            if looks and wait:
                return None
            # Only where there is nothing: signals that come in a row must not keep results from being taken.
            _native.check_interrupts()
            wait = _LOOK if looks else _CHECK
        if not isinstance(came, _Note):
            return (*came, None)
        news = self._away.news(came.name, came.details, came.thread)
        if news is not None:
            self._event(came.name, news)
        return None

    def close(self) -> None:
        """Ends the threads; one that is at a function ends after it."""
        if self._is_closed.is_set():
            # Not again: what tells a thread to end may still lie in the queue.
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
    """What a thread has to tell of a source."""

    name: str
    details: dict[str, Any]
    thread: int


def _live(
    plan: Plan,
    jobs: queue.SimpleQueue[tuple[int, Job] | None],
    done: queue.SimpleQueue[tuple[int, Made | RemoteError] | _Note],
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
        made = _done(runner, job, home, keeps=plan.may_retry)
        done.put((task, made))
        del given, job, made


def _done(runner: FunctionRunner, job: Job, home: int, *, keeps: bool) -> Made | RemoteError:
    # What functions change in place must be as it was when they are called again.
    kept = copy.deepcopy(job.content) if keeps else None
    try:
        made = runner.do(job, lambda: kept)
        if os.getpid() != home:
            raise _native.ForkReturned
        return made
    except BaseException as raised:
        if os.getpid() != home:
            end_child("a thread that calls the functions of a pipeline", raised)
        return RemoteError.of(raised, stage="worker")
