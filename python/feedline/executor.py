"""A `concurrent.futures` pool that survives its workers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
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
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from feedline import _native
from feedline._words import call_in_words
from feedline._workers.crew import Crew, Death, GaveUp, Handle, load
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline.errors import WorkerDied, WorkerDiedWarning

__all__ = ["Executor", "map"]

P = ParamSpec("P")
R = TypeVar("R")
_NO_ONE_IS_OLDEST = 2**63
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

    def __init__(self, initializer: Callable[..., object] | None, arguments: tuple[Any, ...], posts: int):
        self.initializer = initializer
        self.initargs = arguments
        self.posts = posts
        self.values = True

    def start(self, post: int, station: _native.Station) -> _Caller:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        if self.initializer is not None:
            self.initializer(*self.initargs)
        return _Caller()


class _Caller:
    """Calls functions, in a worker."""

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        if "torch" not in sys.modules:
            return {}
        import torch

        from feedline._torch.tensors import reduce_tensor

        return {torch.Tensor: reduce_tensor}

    def do(self, task: int, body: bytes) -> object:
        try:
            length = int.from_bytes(body[:8], "little")
            function = pickle.loads(body[8 : 8 + length])
            calls = pickle.loads(memoryview(body)[8 + length :])
            return [function(*arguments, **keywords) for arguments, keywords in calls]
        except BaseException as raised:
            return self._raised(raised)

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
    future: Future[Any]
    body: bytes
    what: str
    # Whether its results are one, and not a list.
    is_single: bool

    def settle(self, results: list[Any]) -> None:
        self.future.set_result(results[0] if self.is_single else results)


class _Pool:
    """What is behind an executor: its calls, its workers, and the thread that hears of both. The thread
    keeps it alive until the last call is made, also when nobody has the executor any more."""

    def __init__(self, work: _Calls, words: dict[str, Any], *, fresh: bool) -> None:
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
            explain=self._explain,
            told=self._tell,
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
                task = next(self._numbers)
                self._running[task] = call
                self._crew.submit(task, call.body)

    def _listen(self) -> None:
        crew = self._crew
        assert crew is not None
        try:
            while not self._is_done():
                answer = crew.next(_NO_ONE_IS_OLDEST, _LOOK)
                if answer is None:
                    continue
                with self._lock:
                    call = self._running.pop(answer.task, None)
                    self._hand_in()
                if call is not None:
                    self._settle(call, answer)
        except Exception as raised:
            self._break(raised)
        finally:
            self._crew = None
            crew.close()
            del crew

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_shut and not self._running and not self._waiting

    def _settle(self, call: _Call, answer: _native.Answer | GaveUp) -> None:
        if isinstance(answer, GaveUp):
            deaths = [death for death in self.deaths if answer.task in death.tasks]
            text = f"{call.what} was at hand each time a worker died:" + "".join(
                f"\n  {death}" for death in deaths[-5:]
            )
            hint = "look at what this call does, or raise attempts="
            return call.future.set_exception(WorkerDied.explained(text, hint))
        try:
            result = load(answer)
        except Exception as raised:
            return call.future.set_exception(raised)
        if answer.kind == "raised":
            return call.future.set_exception(result.exception("in a worker of feedline.Executor", ""))
        if isinstance(result, _Raised):
            return call.future.set_exception(result.made())
        return call.settle(result)

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

    def _explain(self, death: Death) -> Death:
        for task in death.tasks:
            call = self._running.get(task)
            if call is not None:
                return replace(death, what=call.what, position=None)
        return replace(death, position=None)

    def _tell(self, death: Death) -> None:
        self.deaths.append(death)
        # Where warnings are errors there is nobody here to whom one could be raised.
        with contextlib.suppress(WorkerDiedWarning):
            warnings.warn(f"{death}; it is replaced", WorkerDiedWarning, stacklevel=2)

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
        attempts: how often a call is made that is at hand when its worker dies. Then its future gets a
            `feedline.errors.WorkerDied`, and all the others go on. 1 for calls that must not be repeated.
        max_deaths, death_window, memory: as for `feedline.torch.DataLoader`.

    """

    def __init__(
        self,
        workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_workers: int | None = None,
        attempts: int = 2,
        max_deaths: int | str = "auto",
        death_window: float = 60.0,
        memory: int | str = "auto",
    ) -> None:
        if workers is not None and max_workers is not None:
            raise TypeError(
                f"workers={workers} and max_workers={max_workers} mean the same: give one of them"
            )
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer must be callable, got {initializer!r}")
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
        }
        _native.check_workers(call_in_words(words))
        self._pool = _Pool(_Calls(initializer, initargs, self._count), words, fresh=is_fresh)
        # When nobody has the executor any more, its workers end after what they were given.
        self._dropped = weakref.finalize(self, self._pool.shut)
        self._dropped.atexit = False

    @property
    def deaths(self) -> list[Death]:
        """All deaths of workers."""
        return self._pool.deaths

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
        body = len(pickled).to_bytes(8, "little") + pickled + self._arguments(calls)
        future: Future[Any] = Future()
        name = getattr(function, "__qualname__", repr(function))
        what = f"{name}({', '.join(_shown(calls[0][0]))})"
        if len(calls) > 1:
            what += f" and {len(calls) - 1} more"
        self._pool.add(_Call(future, body, what, is_single))
        return future

    def _pickled(self, function: Any) -> bytes:
        try:
            return by_value(function)
        except ERRORS as reason:
            raise not_picklable(function, "function", reason, by_value) from reason

    def _arguments(self, calls: list[Any]) -> bytes:
        try:
            return pickle.dumps(calls, protocol=5)
        except ERRORS:
            pass
        try:
            return by_value(calls)
        except ERRORS as reason:
            raise not_picklable(calls[0][0], "arguments", reason, by_value) from reason

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
