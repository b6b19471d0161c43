"""A `concurrent.futures` pool that survives its workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from feedline import _native, errors
from feedline._account import OVERDUE, Account, check
from feedline._words import call_in_words
from feedline._workers.crew import Crew, GaveUp, Handle, load
from feedline._workers.death import Death, Standstill, describe
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline._workers.tries import BAD, Bad, Faulty, Tries
from feedline._workers.trouble import Trouble
from feedline._workers.worker import FETCHING, PAUSING
from feedline.errors import BadSetting, DeadlinePassed, WorkerDied, WorkerDiedWarning, WorkerStalledWarning
from feedline.events import Event
from feedline.faults import FaultPolicy, symptom
from feedline.report import Report

__all__ = ["Executor", "map"]

P = ParamSpec("P")
R = TypeVar("R")
_NO_ONE_IS_OLDEST = 2**63
# A call that was made after all.
_MADE: Any = object()
# How often the listening thread looks whether there is still something to listen to, in seconds.
_LOOK = 0.2


class _RemoteTraceback(Exception):
    """The traceback of the worker, as the cause of its exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass
class _Raised:
    """An exception of a call."""

    exception: bytes | None
    name: str
    text: str

    def made(self) -> BaseException:
        exception: BaseException
        try:
            exception = (
                RuntimeError(f"{self.name} in a worker") if self.exception is None else _unpickle(self)
            )
        except Exception:
            exception = RuntimeError(f"{self.name} in a worker")
        exception.__cause__ = _RemoteTraceback(self.text)
        return exception


def _unpickle(raised: _Raised) -> BaseException:
    assert raised.exception is not None
    exception: BaseException = pickle.loads(raised.exception)
    return exception


class _Calls:
    """What the zygote holds for an executor."""

    def __init__(
        self,
        initializer: Callable[..., object] | None,
        arguments: tuple[Any, ...],
        posts: int,
        faults: FaultPolicy | None,
    ) -> None:
        self.initializer = initializer
        self.initargs = arguments
        self.posts = posts
        self.values = True
        self.faults = faults

    def start(self, post: int, station: _native.Station) -> _Caller:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        if self.initializer is not None:
            self.initializer(*self.initargs)
        return _Caller(station, self.faults)


class _Caller:
    """Calls functions, in a worker."""

    def __init__(self, station: _native.Station, faults: FaultPolicy | None) -> None:
        self._station = station
        self._tries = None if faults is None else self._make_tries(faults)

    def _make_tries(self, faults: FaultPolicy) -> Tries:
        return Tries(faults, stage="calling", pause=self._pause, tell=self._tell)

    def _pause(self, seconds: float) -> None:
        self._station.enter(PAUSING)
        time.sleep(seconds)
        self._station.enter(FETCHING)

    def _tell(self, name: str, details: dict[str, Any]) -> None:
        self._station.tell(json.dumps([name, details]).encode())

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        if "torch" not in sys.modules:
            return {}
        import torch

        from feedline._torch.tensors import reduce_tensor

        return {torch.Tensor: reduce_tensor}

    def do(self, task: int, body: bytes) -> object:
        results = []
        try:
            length = int.from_bytes(body[:8], "little")
            function = pickle.loads(body[8 : 8 + length])
            calls = pickle.loads(memoryview(body)[8 + length :])
            for position, (arguments, keywords) in enumerate(calls):
                self._station.reach(position)
                try:
                    results.append(function(*arguments, **keywords))
                except (Exception, SystemExit) as raised:
                    if self._tries is None:
                        raise
                    call = functools.partial(function, *arguments, **keywords)
                    results.append(self._tries.again(raised, call, position, task))
        except BaseException as raised:
            if self._tries is not None:
                self._tries.take()
            return self._raised(raised)
        self._station.made()
        bad = [] if self._tries is None else self._tries.take()
        if bad:
            return Faulty([None if result is BAD else result for result in results], bad)
        return results

    def alone(self, body: bytes, position: int) -> bool:
        """A call is made or not: its result counts, also when it was made alone."""
        return False

    def _raised(self, raised: BaseException) -> _Raised:
        text = "".join(traceback.format_exception(raised))
        pickled: bytes | None
        try:
            pickled = pickle.dumps(raised)
            pickle.loads(pickled)
        except Exception:
            pickled = None
        return _Raised(pickled, type(raised).__name__, text)

    def resume(self, body: bytes) -> None:
        """There are no epochs."""

    def where(self) -> tuple[int | None, str]:
        return None, "calling"

    def journal(self) -> bytes | None:
        """A call depends on nothing that came before."""
        return None

    def recall(self, journal: bytes | None) -> None:
        """As above."""

    def blamed(self, result: Any) -> tuple[str, object]:
        return ("result", result[0]) if isinstance(result, list) and len(result) == 1 else ("results", result)


@dataclass
class _Call:
    """Calls that go to a worker together, and the future of their results."""

    future: Future[Any]
    function: bytes
    calls: list[Any]
    body: bytes
    # The name of the function.
    name: str
    # Whether its results are one, and not a list.
    is_single: bool
    # Results that are known already, by position among all of them: of calls that were judged.
    settled: dict[int, Any] = field(default_factory=dict)
    # The position among all of them of each call that is still to be made.
    positions: list[int] = field(default_factory=list)

    def what(self, position: int | None = None) -> str:
        """One of the calls that are still to be made, in words; all of them if it is not known which."""
        count = len(self.calls)
        if position is None or position >= count:
            more = f" and {count - 1} more" if count > 1 else ""
            return self.what(0) + more
        return f"{self.name}({', '.join(_shown(self.calls[position][0]))})"

    def settle(self, results: list[Any]) -> None:
        """`results` are those of the calls that were made last; _LEFT_OUT stands for no result."""
        known = {**self.settled, **dict(zip(self.positions, results, strict=True))}
        every = [known[position] for position in sorted(known)]
        kept = [result for result in every if not isinstance(result, _LeftOut)]
        if not self.is_single:
            self.future.set_result(kept)
        elif kept:
            self.future.set_result(kept[0])
        else:
            self.future.set_exception(every[0].error)


@dataclass
class _LeftOut:
    """In the place of a result that is left out."""

    error: BaseException


@dataclass
class _Stopped:
    """In the place of a result that is an error after all, whatever the policy."""

    error: BaseException


class _Pool:
    """What is behind an executor: its calls, its workers, and the thread that hears of both. The thread
    keeps it alive until the last call is made, also when nobody has the executor any more."""

    def __init__(self, work: _Calls, words: dict[str, Any], account: Account, *, fresh: bool) -> None:
        self.account = account
        self._work = work
        self._words = words
        self._fresh = fresh
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._waiting: deque[_Call] = deque()
        self._running: dict[int, _Call] = {}
        self._numbers = itertools.count()
        self._is_shut = False
        self._broken: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.deaths: list[Death] = []

    @property
    def workers(self) -> list[Handle]:
        crew = self._crew
        return [] if crew is None else crew.workers

    def add(self, call: _Call) -> None:
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(call)
            self._start()
            self._hand_in()

    def _start(self) -> None:
        if self._crew is not None:
            return
        self._crew = Crew(
            self._work,
            self._words,
            fresh=self._fresh,
            name="Executor",
            front=self,
        )
        self._crew.start()
        self.thread = threading.Thread(target=self._listen, name="feedline-executor", daemon=True)
        _working.add(self)
        self.thread.start()

    def _hand_in(self) -> None:
        """Gives away what workers do next; the rest waits here, where it can be cancelled."""
        assert self._crew is not None
        while self._waiting and len(self._running) < 2 * self._work.posts:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                self.account.ledger.expect(len(call.calls))
                self._submit(call)

    def _submit(self, call: _Call) -> None:
        assert self._crew is not None
        task = next(self._numbers)
        self._running[task] = call
        self._crew.submit(task, call.body)

    def _listen(self) -> None:
        crew = self._crew
        assert crew is not None
        try:
            while not self._is_done():
                self._hear(crew)
        except Exception as raised:
            self._break(raised)
        finally:
            self._crew = None
            crew.close()
            del crew

    def _hear(self, crew: Crew) -> None:
        answer = crew.next(_NO_ONE_IS_OLDEST, _LOOK)
        self.account.tell()
        if answer is None:
            return
        with self._lock:
            call = self._running.pop(answer.task, None)
            self._hand_in()
        if call is None:
            return
        try:
            self._settle(call, answer)
        except Exception:
            # It must hear why the pool breaks, as all the others do.
            with self._lock:
                self._running[answer.task] = call
            raise
        self.account.tell()

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_shut and not self._running and not self._waiting

    def _settle(self, call: _Call, answer: _native.Answer | GaveUp) -> None:
        if isinstance(answer, GaveUp):
            return self._given_up(call, answer)
        slowest, seconds = answer.slowest
        if seconds > self.account.slow_bar:
            self.account.slow(call.what(slowest), seconds, answer.post)
        try:
            result = load(answer)
        except Exception as raised:
            return self._fail(call, raised)
        if answer.kind == "raised":
            return self._fail(call, result.exception("in a worker of feedline.Executor", ""))
        if isinstance(result, _Raised):
            return self._fail(call, result.made())
        if isinstance(result, Faulty):
            results = result.batch
            for bad in result.bad:
                verdict = self._judged(call, bad, answer.post)
                if isinstance(verdict, _Stopped):
                    return self._fail(call, verdict.error)
                if verdict is not _MADE:
                    results[bad.position] = verdict
        else:
            results = result
        made = sum(not isinstance(one, _LeftOut) for one in results)
        self.account.ledger.good(made)
        self.account.ledger.delivered(made, 0.0)
        return call.settle(results)

    def _judged(self, call: _Call, bad: Bad, worker: int | None) -> Any:
        """What stands in the place of a result, by the policy; _MADE if another try went well."""
        what = call.what(bad.position)
        verdict, stopped = self.account.judge(bad, what, worker=worker)
        if stopped is not None:
            kind, message = stopped
            raise getattr(errors, kind, errors.FeedlineError).explained(message)
        if verdict == "good":
            return _MADE
        if verdict == "stop":
            # Want of descriptors, say: no fault of the call, so it is not left out.
            return _Stopped(bad.trouble.exception("in a worker of feedline.Executor", ""))
        if verdict == "replace":
            self.account.replaced(bad, what, worker)
            return self.account.policy.replacement
        return _LeftOut(bad.trouble.exception("in a worker of feedline.Executor", ""))

    def _fail(self, call: _Call, error: BaseException) -> None:
        """The exception is what becomes of the calls, and their future has it."""
        self.account.ledger.delivered(len(call.positions), 0.0)
        call.future.set_exception(error)

    def _given_up(self, call: _Call, given_up: GaveUp) -> None:
        """A call that kills its worker, or takes longer than it may: a fault as any other."""
        deaths = [death for death in self.deaths if given_up.task in death.tasks]
        hint = deaths[-1].hint if deaths else ""
        what = call.what(given_up.at)
        error: BaseException
        if given_up.why == "hangs":
            text = f"{what} took longer than its deadline:{describe(deaths, 5)}"
            text += "".join(f"\n  code  {frame}" for frame in (deaths[-1].stack[:8] if deaths else ()))
            error = DeadlinePassed.explained(text, hint, deaths=tuple(deaths))
        else:
            text = f"{what} was at hand each time a worker died:{describe(deaths, 5)}"
            text += "".join(f"\n  why   {why}" for why in (deaths[-1].why if deaths else ()))
            error = WorkerDied.explained(text, hint, deaths=tuple(deaths))
        names, _ = symptom(error)
        then = self.account.then(names)
        position = given_up.at
        # Calls that must not be repeated: others of the same parcel may have been made already.
        is_once = self._words["attempts"] == 1
        if then == "raise" or is_once or position is None or position >= len(call.positions):
            return self._fail(call, error)
        trouble = Trouble.told(error, position=position, stage="calling")
        # A report has one line for it.
        trouble.message += f" {deaths[-1]}" if deaths else ""
        bad = Bad(int(position), names, None, trouble, None, len(deaths), then)
        verdict = self._judged(call, bad, deaths[-1].worker if deaths else None)
        if isinstance(verdict, _Stopped):
            return self._fail(call, error)
        if isinstance(verdict, _LeftOut):
            verdict = _LeftOut(error)
        else:
            self.account.ledger.delivered(1, 0.0)
        call.settled[call.positions.pop(int(position))] = verdict
        del call.calls[int(position)]
        if not call.calls:
            return call.settle([])
        # The others of the same parcel are made without it.
        call.body = _parcel(call.function, call.calls)
        with self._lock:
            self._submit(call)
        return None

    def _break(self, error: BaseException) -> None:
        # Its frames would keep the workers' memory.
        error = error.with_traceback(None)
        with self._lock:
            self._broken = error
            calls = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for call in calls:
            if call.future.cancelled():
                call.future.set_running_or_notify_cancel()
            elif not call.future.done():
                call.future.set_exception(error)

    def explain(self, death: Death) -> Death:
        for task in death.tasks:
            call = self._running.get(task)
            if call is not None:
                return death.explained(what=call.what(death.position), position=None)
        return death.explained(position=None)

    def died(self, death: Death) -> None:
        self.deaths.append(death)
        self.account.died(death)
        # Where warnings are errors there is nobody here to whom one could be raised.
        with contextlib.suppress(WorkerDiedWarning):
            warnings.warn(death.announced("it is replaced"), WorkerDiedWarning, stacklevel=2)

    def stalled(self, still: Standstill, *, is_reborn: bool) -> None:
        call = None if still.task is None else self._running.get(still.task)
        text = still.words("" if call is None else f"in {call.what(still.position)}")
        name = "zygote_reborn" if is_reborn else "worker_stalled"
        details = {"worker": still.worker, "text": text, "why": text, "stack": list(still.stack)}
        self.account.event(name, details)
        with contextlib.suppress(WorkerStalledWarning):
            warnings.warn(text, WorkerStalledWarning, stacklevel=2)

    def retired(self, told: dict[str, Any]) -> None:
        self.account.event("worker_retired", told)

    def noted(self, post: int, name: str, details: dict[str, Any]) -> None:
        self.account.noted(name, details, post)

    def shut(self, *, cancel: bool = False) -> None:
        """Takes no more calls. The thread ends the workers when the last one is made."""
        cancelled: list[_Call] = []
        with self._lock:
            self._is_shut = True
            if cancel:
                cancelled = list(self._waiting)
                self._waiting.clear()
        # Without the lock: who is told may come back with another call.
        for call in cancelled:
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()


# Pools that may have calls to make; as the standard library's, they are made before Python ends.
_working: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _finish_all() -> None:
    for pool in list(_working):
        pool.shut()
        if pool.thread is not None:
            pool.thread.join()


# Before threads are waited for: later no thread can be started, and workers may have to be replaced.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_working.clear)


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
        stall: seconds after which a call that does not come back is told of in a warning; by default never,
            since calls may be long.
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
        stall: float | None = None,
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
            raise BadSetting.explained('then="replace" needs replacement= in an Executor: it is the result')
        account = Account(faults, on_event)
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
        work = _Calls(initializer, initargs, self._count, faults)
        self._pool = _Pool(work, words, account, fresh=is_fresh)
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
        body = _parcel(pickled, calls)
        future: Future[Any] = Future()
        name = getattr(function, "__qualname__", repr(function))
        positions = list(range(len(calls)))
        self._pool.add(_Call(future, pickled, calls, body, name, is_single, positions=positions))
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


def _parcel(function: bytes, calls: list[Any]) -> bytes:
    """What goes to a worker: a function, and the arguments of each call."""
    return len(function).to_bytes(8, "little") + function + _arguments(calls)


def _arguments(calls: list[Any]) -> bytes:
    try:
        return pickle.dumps(calls, protocol=5)
    except ERRORS:
        pass
    try:
        return by_value(calls)
    except ERRORS as reason:
        raise not_picklable(calls[0][0], "arguments", reason, by_value) from reason


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def _shown(arguments: Iterable[object]) -> Iterator[str]:
    """Arguments as they are shown in a message, cut where they are long."""
    for argument in arguments:
        text = (
            repr(argument)
            if isinstance(argument, (str, int, float, os.PathLike))
            else f"<{type(argument).__name__}>"
        )
        yield text if len(text) <= 80 else text[:77] + "..."


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
