"""A `concurrent.futures` pool that survives its workers."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from feedline import _native
from feedline._account import OVERDUE, Account, check
from feedline._pool import Call, Pool, parcel
from feedline._words import call_in_words
from feedline._workers.calls import Calls
from feedline._workers.crew import Handle
from feedline._workers.death import Death
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline.errors import BadSetting
from feedline.events import Event
from feedline.faults import FaultPolicy
from feedline.report import Report

__all__ = ["Executor", "map"]

P = ParamSpec("P")
R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """A pool of worker processes, as `concurrent.futures.ProcessPoolExecutor`, that is never broken by
    the death of a worker: it is replaced, and its call is made again.

    with feedline.Executor(workers=8) as pool:
        futures = [pool.submit(load, path) for path in paths]

    Args:
        workers: how many; by default as many as this process may use processors.
        mp_context: how workers come to be: a `multiprocessing` context or its name. "fork" shares all
            that the program has loaded; "spawn" and "forkserver" start from a fresh interpreter.
        initializer, initargs: called once in each worker, before its first call.
        max_workers: the same as `workers`, under the name that `ProcessPoolExecutor` has for it.
        attempts: how often a call is made that is at hand when its worker dies; the third time it is made
            alone. Then its future gets a `feedline.errors.WorkerDied`, and all the others go on. 1 for
            calls that must not be repeated.
        faults: what is done about calls that raise, kill their worker or pass the deadline: a
            `feedline.FaultPolicy`. A call that is skipped is left out of `map`; the future of a `submit` gets
            its exception. `then="replace"` needs `replacement=`, which becomes the result.
        deadline: seconds that one call may take.
        stall: seconds after which a warning shows a call that does not come back, with its stack, once; None
            for never.
        max_deaths, death_window, memory, max_worker_memory, max_samples_per_worker, on_event: as for
            `feedline.torch.DataLoader`; a sample is a call here, and `on_event` is called in a thread of
            the pool.

    """

    def __init__(
        self,
        workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_workers: int | None = None,
        attempts: int = 3,
        max_deaths: int | str = "auto",
        death_window: float = 60.0,
        memory: int | str = "auto",
        faults: FaultPolicy | None = None,
        deadline: float | None = None,
        stall: float | None = 300.0,
        max_worker_memory: int | str | None = None,
        max_samples_per_worker: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if workers is not None and max_workers is not None:
            raise TypeError(
                f"workers={workers} and max_workers={max_workers} mean the same: give one of them"
            )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, got {initializer!r}")
        check(faults, on_event)
        if faults is not None and faults.then == "replace" and not faults.has_replacement:
            raise BadSetting.explained(
                'then="replace" needs replacement= in an Executor: it is the result',
                'give FaultPolicy(then="replace", replacement=...)',
            )
        account = Account(faults, on_event, raises=False)
        context = mp_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        asked = workers if workers is not None else max_workers
        self._count = len(os.sched_getaffinity(0)) if asked is None else asked
        is_fresh = context.get_start_method() != "fork"
        words = {
            "call": "Executor",
            "workers": self._count,
            "attempts": attempts,
            "max_deaths": max_deaths,
            "death_window": death_window,
            "memory": memory,
            "suspect_after": 2,
            "deadline": deadline,
            "hangs": 1 + account.retries(OVERDUE),
            "stall": stall,
            "max_worker_memory": max_worker_memory,
            "max_samples_per_worker": max_samples_per_worker,
        }
        _native.check_workers(call_in_words(words))
        work = Calls(initializer, initargs, self._count, faults)
        self._pool = Pool(work, words, account, fresh=is_fresh)
        # When nobody has the executor any more, its workers end after what they were given.
        self._dropped = weakref.finalize(self, self._pool.shut)
        self._dropped.atexit = False

    @property
    def deaths(self) -> list[Death]:
        """All deaths of workers."""
        return self._pool.deaths

    def report(self) -> Report:
        """What has become of all calls so far; a sample is a call here."""
        return self._pool.account.report()

    @property
    def workers(self) -> list[Handle]:
        """The workers, each as `multiprocessing.Process` would show it; none before the first call."""
        return self._pool.workers

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Has a call made in a worker."""
        return self._submit(fn, self._pickled(fn), [(args, kwargs)], is_single=True)

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """The results of calls, in order.

        Args:
            fn: what is called, with one argument from each iterable.
            iterables: end with the shortest.
            timeout: seconds after which waiting for a result ends with a TimeoutError.
            chunksize: how many calls go to a worker at once.
            buffersize: how many calls are made ahead of the consumer; all of them if None.
        """
        _check_counts(chunksize=chunksize, buffersize=buffersize)
        until = None if timeout is None else time.monotonic() + timeout
        calls: Iterator[Any] = ((arguments, {}) for arguments in zip(*iterables, strict=False))
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        ahead = None if buffersize is None else max(1, buffersize // chunksize)
        pickled = self._pickled(fn)
        futures = deque(self._submit(fn, pickled, chunk) for chunk in itertools.islice(chunks, ahead))

        def results() -> Iterator[R]:
            try:
                while futures:
                    left = None if until is None else until - time.monotonic()
                    result = futures.popleft().result(left)
                    futures.extend(self._submit(fn, pickled, chunk) for chunk in itertools.islice(chunks, 1))
                    yield from result
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def _submit(
        self, function: Any, pickled: bytes, calls: list[Any], *, is_single: bool = False
    ) -> Future[Any]:
        body = parcel(pickled, calls)
        future: Future[Any] = Future()
        name = getattr(function, "__qualname__", type(function).__qualname__)
        positions = list(range(len(calls)))
        self._pool.add(Call(future, pickled, calls, body, name, is_single, positions=positions))
        return future

    def _pickled(self, function: Any) -> bytes:
        try:
            return by_value(function)
        except ERRORS as reason:
            raise not_picklable(function, "function", reason, by_value) from reason

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were taken, then ends the workers."""
        self._pool.shut(cancel=cancel_futures)
        thread = self._pool.thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def map(
    function: Callable[..., R],
    *iterables: Iterable[Any],
    workers: int | None = None,
    ahead: int | None = None,
    chunksize: int = 1,
    **options: Any,
) -> Iterator[R]:
    """`function` called in supervised workers for each item, in order; for endless iterables too.

    for picture in feedline.map(load, paths, workers=8):
        ...

    Args:
        function: what is called, with one argument from each iterable.
        iterables: end with the shortest.
        workers: how many; by default as many as this process may use processors.
        ahead: how many results are made ahead of the consumer; by default four for each worker.
        chunksize: how many calls go to a worker at once.
        options: as for `feedline.Executor`.
    """
    pool = Executor(workers, **options)
    buffersize = ahead if ahead is not None else 4 * pool._count * chunksize
    _check_counts(chunksize=chunksize, buffersize=buffersize)

    def run() -> Iterator[R]:
        try:
            yield from pool.map(function, *iterables, chunksize=chunksize, buffersize=buffersize)
        finally:
            pool.shutdown(cancel_futures=True)

    return run()
