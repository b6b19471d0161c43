"""Runs functions in threads of the trainer: for functions that release the GIL, or Python without a GIL."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._event_log import EventLog
from feedline._mapped.run_functions import FunctionResult, FunctionRunner, FunctionTask, Plan, Watcher
from feedline._mapped.turns import Turns
from feedline._workers.children import end_child
from feedline._workers.death import Death
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import Retries
from feedline._workers.shortage import ShortagesMet, step_back
from feedline._workers.worker_pool import Handle

__all__ = ["Threads"]

# Seconds to wait for a result before the caller checks for other work.
_POLL_SECONDS = 0.002
# Seconds to wait for a result before checking for Ctrl-C.
_CHECK = 0.05
# Seconds that closing waits for a thread that is running a function.
_GRACE = 0.3


class Threads:
    """Threads that run tasks."""

    where = "in a thread of feedline.Loader"
    # A whole batch may have to be computed a second time, and functions may have changed its arrays in place.
    may_be_whole = False

    def __init__(self, plan: Plan, count: int, events: EventLog) -> None:
        self.count = count
        self._events = events
        self._plan = plan
        self.deaths: list[Death] = []
        self.workers: list[Handle] = []
        self._tasks: queue.SimpleQueue[tuple[int, FunctionTask] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, FunctionResult | RemoteError] | _Note] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = threading.Event()
        self._turns = Turns()
        self._shortages = ShortagesMet()

    def start(self) -> None:
        """Does nothing: threads start with the first task."""

    def wake_by(self, epoch: _native.Epoch) -> None:
        """Does nothing: `next` polls."""

    def delivered(self, waited: float) -> None:
        """Does nothing: the number of threads is fixed."""

    def forget(self) -> None:
        """Drops all tasks: their epoch is over."""
        self._shortages = ShortagesMet()
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()

    def submit(self, number: int, task: FunctionTask) -> None:
        if not self._threads:
            self._start_threads()
        self._tasks.put((number, task))

    def _start_threads(self) -> None:
        """Starts the threads. If the system refuses some, the others do the work; one is enough."""
        steps_back = 0
        while len(self._threads) < self.count:
            thread = threading.Thread(
                target=_run_jobs,
                args=(self._plan, self._tasks, self._done, self._is_closed, self._turns),
                name=f"feedline-map-{len(self._threads)}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError as refused:
                if self._threads:
                    self._events.event("threads_refused", _refused(self.count, len(self._threads)))
                    return
                if not step_back(refused, steps_back, self._is_closed.wait, self._events.event):
                    raise
                steps_back += 1
            else:
                self._threads.append(thread)

    def next(self, oldest: int, *, polls: bool) -> tuple[int, FunctionResult | RemoteError, None] | None:
        """The next result of a task; None if there is none yet and, with `polls`, the caller has other
        work."""
        wait = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                done = self._done.get(timeout=wait)
                break
            if polls and wait:
                return None
            # Only if there is no result: a stream of signals must not keep results from being taken.
            _native.check_interrupts()
            wait = _POLL_SECONDS if polls else _CHECK
        if not isinstance(done, _Note):
            return (*done, None)
        if self._shortages.is_news(done.name, done.details):
            self._events.source_event(done.name, done.details, done.thread)
        return None

    def close(self) -> None:
        """Ends the threads; a thread that is running a function ends after it."""
        if self._is_closed.is_set():
            # Not again: `forget` would take the end markers of the threads from the queue.
            return
        self._is_closed.set()
        self._turns.close()
        self.forget()
        for _ in self._threads:
            self._tasks.put(None)
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


def _refused(wanted: int, got: int) -> dict[str, Any]:
    text = f"the system allowed {got} of {wanted} threads for functions"
    return {"text": text, "level": "warning", "wanted": wanted, "got": got}


class _Turn(Watcher):
    """Lets other threads run alone between two samples."""

    def __init__(self, turns: Turns) -> None:
        self.reach = turns.reach  # type: ignore[method-assign]


def _run_jobs(
    plan: Plan,
    tasks: queue.SimpleQueue[tuple[int, FunctionTask] | None],
    done: queue.SimpleQueue[tuple[int, FunctionResult | RemoteError] | _Note],
    is_closed: threading.Event,
    turns: Turns,
) -> None:
    def pause(seconds: float) -> None:
        with turns.paused():
            is_closed.wait(seconds)

    def note(name: str, details: dict[str, Any]) -> None:
        done.put(_Note(name, details, threading.get_ident()))

    home = os.getpid()
    retries = Retries(
        plan.policy,
        stage="worker",
        pause=pause,
        notify=note,
        raises=False,
        folders=plan.folders,
        home=home,
        alone=turns.alone,
    )
    # Any sample may have to be made again, if the machine is short of something.
    runner = FunctionRunner(plan, retries, _Turn(turns), seeds_all=False, copies=True)
    while (given := tasks.get()) is not None and not is_closed.is_set():
        number, task = given
        turns.begin()
        try:
            result = _run_task(runner, task, home, pause, note, turns)
        finally:
            turns.end()
        done.put((number, result))
        del given, task, result


def _run_task(
    runner: FunctionRunner,
    task: FunctionTask,
    home: int,
    pause: Callable[[float], None],
    note: Callable[[str, dict[str, Any]], None],
    turns: Turns,
) -> FunctionResult | RemoteError:
    steps_back = 0
    while True:
        try:
            with turns.alone() if steps_back else contextlib.nullcontext():
                result = runner.run(task, lambda: task.content)
            if os.getpid() != home:
                raise _native.ForkReturned
            return result
        except BaseException as raised:
            if os.getpid() != home:
                end_child("a thread that calls the functions of a pipeline", raised)
            # Not of a function, which was called again already: the results need memory too.
            if not step_back(raised, steps_back, pause, note):
                return RemoteError.of(raised, stage="worker")
            steps_back += 1
