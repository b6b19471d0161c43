"""A `concurrent.futures` pool that survives its workers."""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from feedline import _native
from feedline._workers.crew import Crew, Death, GaveUp, Handle, load
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline.errors import WorkerDied, WorkerDiedWarning

__all__ = ["Executor", "map"]

P = ParamSpec("P")
R = TypeVar("R")
# Calls that a worker has at hand: the next one is there when it is done with the first.
_DEPTH = 2
_NO_ONE_IS_OLDEST = 2**63


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


@dataclass
class _Call:
    future: Future[Any]
    body: bytes
    what: str


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

    Attributes:
        deaths: all deaths of workers, as `feedline.Death`.
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
        self._workers = workers or max_workers or len(os.sched_getaffinity(0))
        if (workers if workers is not None else max_workers) == 0:
            self._workers = 0
        self._fresh = context.get_start_method() != "fork"
        self._words = {
            "call": "Executor",
            "workers": self._workers,
            "depth": _DEPTH,
            "attempts": attempts,
            "max_deaths": max_deaths,
            "death_window": death_window,
            "memory": memory,
        }
        import json

        _native.check_workers(json.dumps(self._words))
        self._work = _Calls(initializer, initargs, self._workers)
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._thread: threading.Thread | None = None
        self._waiting: deque[_Call] = deque()
        self._running: dict[int, _Call] = {}
        self._numbers = itertools.count()
        self._is_shut = False
        self._broken: BaseException | None = None
        self._function: tuple[object, bytes] = (None, b"")
        self.deaths: list[Death] = []

    @property
    def workers(self) -> list[Handle]:
        """The workers, each as `multiprocessing.Process` would show it; none before the first call."""
        return [] if self._crew is None else self._crew.workers

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Has a call made in a worker."""
        return self._submit(fn, [(args, kwargs)], single=True)

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
        if chunksize < 1:
            raise ValueError(f"chunksize must be at least 1, got {chunksize}")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize must be at least 1, got {buffersize}")
        import time

        until = None if timeout is None else time.monotonic() + timeout
        calls: Iterator[Any] = ((arguments, {}) for arguments in zip(*iterables, strict=False))
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        ahead = None if buffersize is None else max(1, buffersize // chunksize)
        futures = deque(self._submit(fn, chunk) for chunk in itertools.islice(chunks, ahead))

        def results() -> Iterator[R]:
            try:
                while futures:
                    left = None if until is None else until - time.monotonic()
                    result = futures.popleft().result(left)
                    futures.extend(self._submit(fn, chunk) for chunk in itertools.islice(chunks, 1))
                    yield from result
            finally:
                for future in futures:
                    future.cancel()

        return results()

    def _submit(self, function: Any, calls: list[Any], *, single: bool = False) -> Future[Any]:
        body = self._pickled(function, calls)
        future: Future[Any] = Future()
        name = getattr(function, "__qualname__", repr(function))
        shown = ", ".join(map_repr(calls[0][0]))
        what = f"{name}({shown})" + (f" and {len(calls) - 1} more" if len(calls) > 1 else "")
        call = _Call(_Single(future) if single else future, body, what)
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(call)
            self._start()
            self._hand_in()
        return future

    def _pickled(self, function: Any, calls: list[Any]) -> bytes:
        if self._function[0] is not function:
            try:
                self._function = (function, by_value(function))
            except ERRORS as reason:
                raise not_picklable(function, "function", reason, by_value) from reason
        try:
            arguments = pickle.dumps(calls, protocol=5)
        except ERRORS:
            try:
                arguments = by_value(calls)
            except ERRORS as reason:
                raise not_picklable(calls[0][0], "arguments", reason, by_value) from reason
        pickled = self._function[1]
        return len(pickled).to_bytes(8, "little") + pickled + arguments

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
        self._thread = threading.Thread(target=self._listen, name="feedline-executor", daemon=True)
        self._thread.start()

    def _hand_in(self) -> None:
        """Gives workers what they can have at hand; the rest waits here, where it can be cancelled."""
        assert self._crew is not None
        while self._waiting and len(self._running) < self._workers * _DEPTH:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                task = next(self._numbers)
                self._running[task] = call
                self._crew.submit(task, call.body)

    def _listen(self) -> None:
        crew = self._crew
        assert crew is not None
        while True:
            try:
                answer = crew.next(_NO_ONE_IS_OLDEST, 0.2)
            except Exception as raised:
                return self._break(raised)
            if answer is None:
                with self._lock:
                    if self._is_shut and not self._running and not self._waiting:
                        return None
                continue
            with self._lock:
                call = self._running.pop(answer.task, None)
                self._hand_in()
            if call is not None:
                self._settle(call, answer)
            with self._lock:
                if self._is_shut and not self._running and not self._waiting:
                    return None

    def _settle(self, call: _Call, answer: _native.Answer | GaveUp) -> None:
        if isinstance(answer, GaveUp):
            deaths = [death for death in self.deaths if answer.task in death.tasks]
            text = f"{call.what} was at hand each time a worker died:" + "".join(
                f"\n  {death}" for death in deaths[-5:]
            )
            return call.future.set_exception(
                WorkerDied(f"{text}\nhint: raise attempts=, or look at what this call does")
            )
        try:
            result = load(answer)
        except Exception as raised:
            return call.future.set_exception(raised)
        if answer.kind == "raised":
            return call.future.set_exception(result.exception("in a worker of feedline.Executor", ""))
        if isinstance(result, _Raised):
            return call.future.set_exception(result.made())
        return call.future.set_result(result)

    def _break(self, error: BaseException) -> None:
        with self._lock:
            self._broken = error
            calls = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)

    def _explain(self, death: Death) -> Death:
        for task in death.tasks:
            call = self._running.get(task)
            if call is not None:
                return replace(death, what=call.what, position=None)
        return replace(death, position=None)

    def _tell(self, death: Death) -> None:
        self.deaths.append(death)
        warnings.warn(f"{death}; it is replaced", WorkerDiedWarning, stacklevel=2)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were taken, then ends the workers."""
        with self._lock:
            self._is_shut = True
            if cancel_futures:
                for call in self._waiting:
                    call.future.cancel()
                    call.future.set_running_or_notify_cancel()
                self._waiting.clear()
            crew, thread = self._crew, self._thread
        if crew is None or thread is None:
            return
        if wait:
            thread.join()
            crew.close()
        else:
            threading.Thread(target=_close_later, args=(thread, crew), daemon=True).start()


def _close_later(thread: threading.Thread, crew: Crew) -> None:
    thread.join()
    crew.close()


class _Single(Future[Any]):
    """Passes the one result of a call on to the future that the caller has."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__()
        self._future = future

    def set_running_or_notify_cancel(self) -> bool:
        return self._future.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        return self._future.cancel()

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: Any) -> None:
        self._future.set_result(result[0])

    def set_exception(self, exception: BaseException | None) -> None:
        self._future.set_exception(exception)


def map_repr(arguments: Iterable[object]) -> Iterator[str]:
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
    buffersize = ahead if ahead is not None else 4 * pool._workers * chunksize
    results = pool.map(function, *iterables, chunksize=chunksize, buffersize=buffersize)

    def run() -> Iterator[R]:
        try:
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)

    return run()
