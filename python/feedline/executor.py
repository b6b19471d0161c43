"""A `concurrent.futures` pool that survives its workers."""

from __future__ import annotations

import concurrent.futures
import difflib
import inspect
import itertools
import os
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from feedline import _native
from feedline._account import OVERDUE, Account, check
from feedline._arguments import suggests_all
from feedline._call import FailedCall, Function, Skipped, key, shown
from feedline._call_queue import CallChunk, CallQueue
from feedline._code import users_line, warn_user
from feedline._config import Auto, call_as_json, check_finite
from feedline._described import described
from feedline._mapped.builder import start_method
from feedline._workers.calls import ExecutorWork
from feedline._workers.deadline import deadline_config
from feedline._workers.death import Death
from feedline._workers.open_files import warn_of_shared_files
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline._workers.sources import NamedFolders
from feedline._workers.tuning import Tuning
from feedline._workers.worker_count import tuned_workers
from feedline._workers.worker_pool import Handle
from feedline.errors import InvalidArgumentError
from feedline.events import Event
from feedline.faults import FaultPolicy
from feedline.report import CallReport

__all__ = ["Executor", "FailedCall", "Results", "Skipped", "map"]

_HINT = "see help(feedline.Executor)"
# How long a wait goes on before Ctrl-C is looked for, in seconds.
_CHECK = 0.05

P = ParamSpec("P")
R = TypeVar("R")


@suggests_all(inside={"faults": FaultPolicy})
class Executor(concurrent.futures.Executor):
    """A pool of worker processes, as `concurrent.futures.ProcessPoolExecutor`, that is never broken by
    the death of a worker: it is replaced, and its call is made again.

    with feedline.Executor(workers=8) as pool:
        futures = [pool.submit(load, path) for path in paths]

    Args:
        workers: how many; "auto", the default, begins with as many as this process may use processors, by
            affinity and CPU quota, and tunes the number: more run while calls wait and processors are idle,
            fewer if memory is short.
        mp_context: how workers are started: a `multiprocessing` context or its name. "fork" shares all
            that the program has loaded; "spawn" and "forkserver" start from a fresh interpreter.
        initializer, initargs: called once in each worker, before its first call.
        max_workers: the same as `workers`, under the name that `ProcessPoolExecutor` has for it.
        attempts: how often a call is made whose worker dies; the third time it is made alone. Then its
            future gets a `feedline.errors.WorkerDiedError`, and all the others go on. 1 for calls that must
            not be repeated.
        faults: what is done about calls that raise, kill their worker or pass the deadline: a
            `feedline.FaultPolicy`. A call that is skipped has a `feedline.Skipped` in its place in `map`; the
            future of a `submit` gets its exception. `action="replace"` needs `replacement=`, which becomes
            the result.
        exclude: the quarantine file of an earlier run, or a folder of such: calls of the same function with
            the same arguments are not made.
        deadline: seconds that one call may take. "auto": no call is ended, because a call may wait for hours
            for something outside; one that neither returns nor uses the processor for 5 to 9 minutes is
            reported once, with its stack. None for no such report.
        stall: seconds after which a warning shows a call that does not return, with its stack, once; None
            for never.
        max_deaths, death_window, memory, max_worker_memory, max_samples_per_worker, on_event: as for
            `feedline.torch.DataLoader`; a sample is a call here, and `on_event` is called in a thread of
            the pool.

    """

    def __init__(
        self,
        workers: int | Auto | None = None,
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
        exclude: str | os.PathLike[str] | None = None,
        deadline: float | str | None = "auto",
        stall: float | None = 300.0,
        max_worker_memory: int | str | None = None,
        max_samples_per_worker: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if workers is not None and max_workers is not None:
            raise TypeError(
                f"workers={described(workers)} and max_workers={described(max_workers)} mean the same: "
                "give one of them"
            )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, got {described(initializer)}")
        check(faults, on_event)
        if faults is not None and "replace" in faults._actions() and not faults.has_replacement:
            raise InvalidArgumentError.explained(
                'action="replace" needs replacement= in an Executor: it is the result',
                'write FaultPolicy("replace", replacement=...)',
            )
        self._excluded = _excluded(exclude)
        account = Account(faults, on_event, is_of_calls=True, raises=False)
        # A worker whose first call cannot read its folder must know that it was there, to wait for it.
        waits = faults is not None and account.rules.patience > 0
        self._folders = NamedFolders() if waits else None
        method = start_method(mp_context, "Executor")
        asked = workers if workers is not None else max_workers
        tuning = None
        if asked is None or (isinstance(asked, str) and asked == "auto"):
            tuning = Tuning(*tuned_workers())
            asked = tuning.most
        self._count = asked
        is_fresh = method != "fork"
        config = {
            "call": "Executor",
            "workers": self._count,
            "attempts": attempts,
            "max_deaths": max_deaths,
            "death_window": death_window,
            "memory": memory,
            "suspect_after": 2,
            **deadline_config(deadline, account.retries(OVERDUE)),
            "stall": stall,
            "max_worker_memory": max_worker_memory,
            "max_samples_per_worker": max_samples_per_worker,
        }
        _native.check_workers(call_as_json(config))
        # What was looked at for open files; None where workers share none.
        self._looked_at: weakref.WeakSet[Any] | None = None
        if not is_fresh and self._count > 1:
            self._looked_at = weakref.WeakSet()
            warn_of_shared_files(initializer, "initializer", "the initializer")
            warn_of_shared_files(initargs, "initargs", "the initializer")
        work = ExecutorWork(initializer, initargs, self._count, faults)
        self._pool = CallQueue(work, config, account, fresh=is_fresh, tuning=tuning)
        # When nobody has the executor any more, its workers end after what they were given.
        self._dropped = weakref.finalize(self, self._pool.shut)
        self._dropped.atexit = False

    @property
    def deaths(self) -> list[Death]:
        """All deaths of workers."""
        return self._pool.deaths

    def report(self) -> CallReport:
        """What has become of all calls so far."""
        return self._pool.account.call_report()

    @property
    def workers(self) -> list[Handle]:
        """The workers, each as `multiprocessing.Process` would show it; none before the first call."""
        return self._pool.workers

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Has a call made in a worker. A call that `exclude` names is not made: its future is cancelled."""
        return self._submit(self._function(fn), [(args, kwargs)], is_single=True)

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """The results of calls, in order, one for each: a call that is skipped or excluded has a
        `feedline.Skipped` in its place, which counts as false.

        Args:
            fn: what is called, with one argument from each iterable.
            iterables: end with the shortest.
            timeout: seconds after which waiting for a result ends with a TimeoutError.
            chunksize: how many calls go to a worker at once.
            buffersize: how many calls are made ahead of the consumer; all of them if None.
        """
        _check_counts(chunksize=chunksize, buffersize=buffersize)
        if timeout is not None:
            check_finite("Executor.map", "timeout", timeout)
        arguments = _zipped("Executor.map", fn, iterables)
        results: Results[R] = Results(
            self, fn, arguments, timeout=timeout, chunksize=chunksize, buffersize=buffersize
        )
        results._begin()
        return results

    def _submit(self, function: Function, calls: list[Any], *, is_single: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        call = CallChunk(future, function, calls, is_single, users_line(), list(range(len(calls))))
        if self._excluded:
            self._exclude(call)
        if call.calls:
            if self._folders is not None:
                named = (self._folders.of_arguments(*each) for each in call.calls)
                call.folders = list(function.folders.union(*named))
            call.pack()
            if call.sent_descriptors:
                # Also when it is cancelled, or the pool breaks.
                future.add_done_callback(lambda _: call.sent_descriptors.release())
            try:
                self._pool.add(call)
            except BaseException:
                call.sent_descriptors.release()
                raise
        elif is_single:
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            call.resolve()
        return future

    def _exclude(self, call: CallChunk) -> None:
        """Leaves out what an earlier run has written down."""
        before = len(call.calls)
        for offset in reversed(range(before)):
            arguments = call.calls[offset]
            if key(call.function.as_json(*arguments)) in self._excluded:
                call.leave_out(offset, Skipped(call.function.describe(*arguments), None))
        self._pool.account.ledger.excluded(before - len(call.calls))

    def _function(self, function: Any) -> Function:
        if not callable(function):
            raise TypeError(f"what is called must be a function, got {shown(function)}")
        looked_at = self._looked_at
        if looked_at is not None and isinstance(function, types.FunctionType) and function not in looked_at:
            looked_at.add(function)
            warn_of_shared_files(function, function.__name__, "the initializer")
        try:
            folders = frozenset() if self._folders is None else self._folders.of_function(function)
            return Function(function, by_value(function), folders)
        except ERRORS as reason:
            raise not_picklable(function, "function", reason, by_value) from reason

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were taken, then ends the workers."""
        self._pool.shut(cancel=cancel_futures)
        thread = self._pool.thread
        if wait and thread is not None and thread is not threading.current_thread():
            while thread.is_alive():
                thread.join(_CHECK)
                _native.check_interrupts()


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is None:
            continue
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name} must be a whole number from 1, got {shown(count)}")
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _zipped(name: str, function: Any, iterables: tuple[Iterable[Any], ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments of each call; what cannot be gone over is refused at once."""
    if not callable(function):
        raise TypeError(f"{name}: the first argument must be a function, got {shown(function)}")
    if not iterables:
        called = getattr(function, "__name__", "function")
        raise TypeError(f"{name} needs the items to call {called} with: {name}({called}, items)")
    for iterable in iterables:
        if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
            raise TypeError(f"{name} goes over items, and cannot go over {shown(iterable)}")
    return zip(*iterables, strict=False)


def _excluded(path: str | os.PathLike[str] | None) -> set[str]:
    """The calls that a quarantine file of an earlier run names."""
    if path is None:
        return set()
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InvalidArgumentError.explained(f"Executor: exclude must be a path, got {shown(path)}", _HINT)
    name = os.fsdecode(path)
    found = _native.excluded_calls(name)
    strange = sum(call is None for call in found)
    if strange:
        raise InvalidArgumentError.explained(
            f"Executor: exclude={name!r} names samples of a loader, and not calls: {strange} of {len(found)}",
            "give the quarantine file of an Executor",
        )
    keys = [key(call) for call in found]
    unknown = keys.count(None)
    if unknown:
        text = f"exclude={name!r}: {unknown} of {len(keys)} calls cannot be recognised and are made, since "
        warn_user(text + "JSON cannot have their arguments, or they are too long", UserWarning)
    return {found for found in keys if found is not None}


class Results(_native.BatchIterator, Iterator[R]):
    """The results of calls, in order. `close()` makes no more calls, as does dropping it; for `feedline.map`
    it ends the workers too. A signal handler that raises (Ctrl-C) loses no result."""

    def __init__(
        self,
        pool: Executor,
        function: Callable[..., R],
        arguments: Iterator[tuple[Any, ...]],
        *,
        chunksize: int,
        buffersize: int | Auto | None,
        timeout: float | None = None,
        owns_pool: bool = False,
    ) -> None:
        """With `buffersize="auto"`, four chunks are made ahead for each worker that runs."""
        self._pool = pool
        self._owns_pool = owns_pool
        self._function = pool._function(function)
        calls: Iterator[Any] = ((each, {}) for each in arguments)
        self._chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        self._ahead = _chunks_ahead(pool, chunksize, buffersize)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._futures: deque[Future[list[R]]] = deque()
        self._ready: deque[R] = deque()
        self._is_begun = False
        # What ends it, until it has been raised: Ctrl-C may come while the workers are ended.
        self._end: BaseException | None = None
        # Results need no confirmation: nothing counts them when they are taken.
        self._confirm = None

    def _begin(self) -> None:
        self._is_begun = True
        self._submit()

    def _submit(self) -> None:
        left = None if self._ahead is None else max(0, self._ahead() - len(self._futures))
        for chunk in itertools.islice(self._chunks, left):
            self._futures.append(self._pool._submit(self._function, chunk))

    def _produce(self) -> R:
        if self._end is None:
            try:
                return self._next_result()
            except _native.Interrupted:
                raise
            except BaseException as raised:
                self._end = raised
        self.close()
        end, self._end = self._end, None
        try:
            raise end
        finally:
            # Its frames would keep this object.
            del end

    def _next_result(self) -> R:
        if not self._is_begun:
            self._begin()
        while not self._ready:
            if not self._futures:
                raise StopIteration
            results = self._wait(self._futures[0])
            self._futures.popleft()
            self._ready.extend(results)
            self._submit()
        return self._ready.popleft()

    def _wait(self, future: Future[list[R]]) -> list[R]:
        try:
            while True:
                left = None if self._until is None else self._until - time.monotonic()
                try:
                    return future.result(_CHECK if left is None else max(0.0, min(left, _CHECK)))
                except TimeoutError:
                    # The call itself may have raised one.
                    if future.done() or (left is not None and left <= _CHECK):
                        raise
                    _native.check_interrupts()
        finally:
            # The frames of its exception would keep it, and it them.
            del future

    def report(self) -> CallReport:
        """What has become of all calls so far."""
        return self._pool.report()

    @property
    def deaths(self) -> list[Death]:
        """All deaths of workers."""
        return self._pool.deaths

    def close(self) -> None:
        """Makes no more calls."""
        self._leave(wait=True)

    def _leave(self, *, wait: bool) -> None:
        self._is_begun = True
        self._chunks = iter(())
        self._ready.clear()
        while self._futures:
            self._futures.pop().cancel()
        if self._owns_pool:
            self._pool.shutdown(wait, cancel_futures=True)

    def __del__(self) -> None:
        # Not if the constructor refused its arguments. A finalizer runs in the middle of anything: it must
        # neither wait nor be interrupted.
        if hasattr(self, "_is_begun"):
            self._leave(wait=False)

    def __enter__(self) -> Results[R]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def map(
    function: Callable[..., R],
    *iterables: Iterable[Any],
    workers: int | Auto | None = None,
    ahead: int | None = None,
    chunksize: int = 1,
    **options: Any,
) -> Results[R]:
    """`function` called in supervised workers for each item, in order; for endless iterables too.

    for picture in feedline.map(load, paths, workers=8):
        ...

    There is one result for each item: a call that is skipped or excluded has a `feedline.Skipped` in its
    place, which counts as false. `report()` of what is returned tells what has become of the calls.

    Args:
        function: what is called, with one argument from each iterable.
        iterables: end with the shortest.
        workers: how many; "auto", the default, tunes the number as `feedline.Executor` does.
        ahead: how many results are made ahead of the consumer; by default four for each worker that runs.
        chunksize: how many calls go to a worker at once.
        options: as for `feedline.Executor`.
    """
    arguments = _zipped("feedline.map", function, iterables)
    _check_counts(chunksize=chunksize, ahead=ahead)
    _check_options(options)
    pool = Executor(workers, **options)
    buffersize: int | Auto = ahead if ahead is not None else "auto"
    return Results(pool, function, arguments, chunksize=chunksize, buffersize=buffersize, owns_pool=True)


def _chunks_ahead(pool: Executor, chunksize: int, buffersize: int | Auto | None) -> Callable[[], int] | None:
    """How many chunks are made ahead at present; None for all."""
    if buffersize is None:
        return None
    if isinstance(buffersize, str):
        # Not the executor itself: it keeps what it is asked for.
        queue = pool._pool
        return lambda: 4 * queue.running
    chunks = max(1, buffersize // chunksize)
    return lambda: chunks


def _check_options(options: dict[str, Any]) -> None:
    known = {*inspect.signature(Executor).parameters, "ahead", "chunksize"}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"feedline.map() got an unexpected keyword argument {name!r}{meant}")
