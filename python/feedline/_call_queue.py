"""What is behind an executor: its calls, its workers, and the thread that hears of both."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from feedline import _native, errors
from feedline._account import Account
from feedline._call import FailedCall, Function, Skipped
from feedline._workers.calls import CALLING, Calls
from feedline._workers.death import Death, Stall
from feedline._workers.pickling import ERRORS, by_name, by_value, not_picklable
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import FaultyResult, PendingFault
from feedline._workers.sent_descriptors import SentDescriptors
from feedline._workers.worker_pool import GaveUp, Handle, WorkerPool, load
from feedline.errors import DeadlineExceededError, WorkerDiedError, WorkerDiedWarning, WorkerStalledWarning
from feedline.events import LOGGER
from feedline.faults import hint_for, symptom

__all__ = ["Call", "CallQueue", "encode_calls"]

_NO_ONE_IS_OLDEST = 2**63
# In the place of a result: the call was made after all; it failed, whatever the policy.
_MADE: Any = object()
_FAILED: Any = object()
# How often the listening thread looks whether there is still something to listen to, in seconds.
_LOOK = 0.2


@dataclass
class Call:
    """Calls that go to a worker together, and the future of their results."""

    future: Future[Any]
    function: Function
    calls: list[Any]
    # Whether its results are one, and not a list.
    is_single: bool
    # File and line of the user's code that wants it.
    line: tuple[str, int]
    # Results that are known already, by position among all of them: of calls that were judged.
    settled: dict[int, Any] = field(default_factory=dict)
    # The position among all of them of each call that is still to be made.
    positions: list[int] = field(default_factory=list)
    body: bytes = b""
    # Descriptors among the arguments.
    sent_descriptors: SentDescriptors = field(default_factory=SentDescriptors)
    # How many of them no count of the report has yet.
    uncounted: int = 0

    def what(self, position: int | None = None) -> str:
        """One of the calls that are still to be made, in words; all of them if it is not known which."""
        count = len(self.calls)
        if position is None or position >= count:
            more = f" and {count - 1} more" if count > 1 else ""
            return self.what(0) + more
        return self.function.describe(*self.calls[position])

    def leave_out(self, position: int, result: Any) -> None:
        """One of the calls that are still to be made is not made; that is its result."""
        self.settled[self.positions.pop(position)] = result
        del self.calls[position]

    def settle(self, results: list[Any]) -> None:
        """`results` are those of the calls that were made last."""
        known = {**self.settled, **dict(zip(self.positions, results, strict=True))}
        every = [known[position] for position in sorted(known)]
        if not self.is_single:
            _finish(self.future.set_result, every)
        elif isinstance(every[0], Skipped) and every[0].error is not None:
            _finish(self.future.set_exception, every[0].error)
        else:
            _finish(self.future.set_result, every[0])


class CallQueue:
    """What is behind an executor: its calls, its workers, and the thread that hears of both. The thread
    keeps it alive until the last call is made, also when nobody has the executor any more."""

    def __init__(self, work: Calls, config: dict[str, Any], account: Account, *, fresh: bool) -> None:
        self.account = account
        self._work = work
        self._config = config
        self._fresh = fresh
        # Reentrant: while it is held, garbage may be collected, and a finalizer may submit a call.
        self._lock = threading.RLock()
        self._is_starting = False
        self._worker_pool: WorkerPool | None = None
        self._waiting: deque[Call] = deque()
        self._running: dict[int, Call] = {}
        self._numbers = itertools.count()
        self._is_shut = False
        self._broken: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.deaths: list[Death] = []
        # Tasks whose first death a warning has told of; the error or the skip of the call tells of all.
        self._warned: set[int] = set()
        # Of the newest call.
        self._line = ("", 0)

    @property
    def workers(self) -> list[Handle]:
        worker_pool = self._worker_pool
        return [] if worker_pool is None else worker_pool.workers

    def add(self, call: Call) -> None:
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            call.uncounted = len(call.calls)
            self.account.ledger.expect(call.uncounted)
            self._line = call.line
            self._waiting.append(call)
            self._start()
            self._hand_in()

    def _start(self) -> None:
        if self._worker_pool is not None or self._is_starting:
            return
        self._is_starting = True
        try:
            worker_pool = WorkerPool(self._work, self._config, fresh=self._fresh, name="Executor", front=self)
            worker_pool.start()
        finally:
            self._is_starting = False
        self._worker_pool = worker_pool
        self.thread = threading.Thread(target=self._listen, name="feedline-executor", daemon=True)
        _working.add(self)
        self.thread.start()

    def _hand_in(self) -> None:
        """Gives away what workers do next; the rest waits here, where it can be cancelled."""
        if self._worker_pool is None:
            # It is being started: then all that waits is given away.
            return
        while self._waiting and len(self._running) < 2 * self._work.worker_count:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                self._submit(call)
            else:
                self.account.ledger.cancelled(call.uncounted)

    def _submit(self, call: Call) -> None:
        assert self._worker_pool is not None
        task = next(self._numbers)
        self._running[task] = call
        self._worker_pool.submit(task, call.body)

    def _listen(self) -> None:
        worker_pool = self._worker_pool
        assert worker_pool is not None
        try:
            while not self._is_done():
                self._hear(worker_pool)
        except BaseException as raised:
            self._break(raised)
        finally:
            self._worker_pool = None
            worker_pool.close()
            del worker_pool
            self.account.close()

    def _hear(self, worker_pool: WorkerPool) -> None:
        answer = worker_pool.next(_NO_ONE_IS_OLDEST, _LOOK)
        self.account.notify()
        if answer is None:
            return
        with self._lock:
            call = self._running.pop(answer.task, None)
            self._hand_in()
        if call is None:
            return
        try:
            self._settle(call, answer)
        except BaseException:
            # It must hear why the pool breaks, as all the others do.
            with self._lock:
                self._running[answer.task] = call
            raise
        self.account.notify()

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_shut and not self._running and not self._waiting

    def _settle(self, call: Call, answer: _native.TaskResult | GaveUp) -> None:
        if isinstance(answer, GaveUp):
            return self._given_up(call, answer)
        slowest, seconds = answer.slowest
        if seconds > self.account.slow_bar:
            self.account.slow(call.what(slowest), seconds, answer.worker_id, CALLING)
        try:
            result = load(answer)
        except BaseException as raised:
            # Its frames would keep the answer's memory.
            remote_error = RemoteError.reported(raised.with_traceback(None), position=None, stage=CALLING)
            return self._fail(call, _unjudged(remote_error, raised), answer.task, answer.worker_id)
        if answer.kind == "raised":
            # A result that cannot be pickled.
            error = result.again()
            return self._fail(call, _unjudged(result, error), answer.task, answer.worker_id, error)
        results = result.batch if isinstance(result, FaultyResult) else result
        for bad in result.bad if isinstance(result, FaultyResult) else ():
            verdict = self._judged(call, bad, answer.task, answer.worker_id)
            if verdict is _FAILED:
                return self._fail(call, bad, answer.task, answer.worker_id)
            if verdict is not _MADE:
                results[bad.position] = verdict
        self.account.ledger.good(call.uncounted)
        self.account.ledger.delivered(call.uncounted, 0.0)
        return call.settle(results)

    def _judged(
        self, call: Call, bad: PendingFault, task: int, worker: int | None, error: BaseException | None = None
    ) -> Any:
        """What stands in the place of a result, by the policy; _MADE if another try went well, _FAILED where
        the exception is to be raised. `error` is the exception, if the trainer has it."""
        if bad.action and "raise" in (bad.action, self.account.wanted(bad)):
            # A lack of descriptors, say, is no fault of the call, so it is not skipped.
            return _FAILED
        what, in_json = call.what(bad.position), call.function.in_json(*call.calls[bad.position])
        verdict, stopped = self.account.judge(bad, what, worker=worker, call=in_json)
        if stopped is not None:
            # It is counted as failed. The pool breaks, and counts the others.
            call.uncounted -= 1
            kind, message = stopped
            raise getattr(errors, kind, errors.FeedlineError).explained(message)
        if verdict == "good":
            return _MADE
        if verdict == "replace":
            self.account.replaced(bad, what, worker, call=in_json)
            return self.account.policy.replacement
        call.uncounted -= 1
        return Skipped(what, self._named(call, bad, task, worker, error))

    def _fail(
        self, call: Call, bad: PendingFault, task: int, worker: int | None, error: BaseException | None = None
    ) -> None:
        """The exception is what becomes of the calls, and their future has it."""
        position = min(bad.position, len(call.calls) - 1)
        what, in_json = call.what(position), call.function.in_json(*call.calls[position])
        self.account.failed(bad, what, worker, in_json)
        self.account.ledger.cancelled(call.uncounted - 1)
        _finish(call.future.set_exception, self._named(call, bad, task, worker, error))

    def _named(
        self, call: Call, bad: PendingFault, task: int, worker: int | None, error: BaseException | None = None
    ) -> BaseException:
        """The exception of a call, which says which call it was."""
        error = bad.remote_error.again() if error is None else error
        arguments, keywords = call.calls[min(bad.position, len(call.calls) - 1)]
        deaths = sum(task in death.tasks for death in self.deaths)
        is_own = isinstance(error, (WorkerDiedError, DeadlineExceededError))
        failed = FailedCall(
            function=call.function.name,
            arguments=call.function.arguments(arguments, keywords),
            worker=worker,
            attempts=bad.attempts if is_own else bad.attempts + deaths,
        )
        # Somebody else's class may guard its attributes, or have one of that name.
        with contextlib.suppress(Exception):
            if not is_own:
                error.add_note(f"feedline: in {failed}")
            if not hasattr(error, "call"):
                error.call = failed  # type: ignore[attr-defined]
        return error

    def _given_up(self, call: Call, given_up: GaveUp) -> None:
        """A call that kills its worker, or takes longer than it may: a fault as any other."""
        deaths = [death for death in self.deaths if given_up.task in death.tasks]
        worker = deaths[-1].worker if deaths else None
        what = call.what(given_up.at)
        error = _lost(what, deaths, given_up.why)
        names, _ = symptom(error)
        position = given_up.at
        is_known = position is not None and position < len(call.positions)
        remote_error = RemoteError.reported(error, position=position, stage=CALLING)
        # A report has one line for it, which names the call already.
        remote_error.message = remote_error.message.removeprefix(f"{what} ")
        remote_error.message += f" {_without(what, deaths[-1])}" if deaths else ""
        bad = PendingFault(
            position or 0, names, None, remote_error, None, len(deaths), self.account.action(names)
        )
        # Calls that must not be repeated: others of the same task may have been made already.
        is_once = self._config["attempts"] == 1
        if is_once or not is_known:
            return self._fail(call, bad, given_up.task, worker, error)
        verdict = self._judged(call, bad, given_up.task, worker, error)
        if verdict is _FAILED:
            return self._fail(call, bad, given_up.task, worker, error)
        if not isinstance(verdict, Skipped):
            self.account.ledger.delivered(1, 0.0)
            call.uncounted -= 1
        call.leave_out(bad.position, verdict)
        if not call.calls:
            return call.settle([])
        # The others of the same task are made without it.
        call.body = encode_calls(call.function.pickled, call.calls, call.sent_descriptors)
        with self._lock:
            self._submit(call)
        return None

    def _break(self, error: BaseException) -> None:
        # Its frames would keep the workers' memory.
        error = error.with_traceback(None)
        if not isinstance(error, Exception):
            # Raised by a result, it would end the program that asks for it.
            error = errors.FeedlineError(
                f"the thread of the pool was ended by {type(error).__name__}: {error}"
            )
        with self._lock:
            self._broken = error
            calls = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for call in calls:
            self.account.ledger.cancelled(call.uncounted)
            if call.future.cancelled():
                call.future.set_running_or_notify_cancel()
            elif not call.future.done():
                _finish(call.future.set_exception, error)

    def explain(self, death: Death) -> Death:
        for task in death.tasks:
            call = self._running.get(task)
            if call is not None:
                hint = hint_for(self.account.policy, death.hint)
                return death.explained(what=call.what(death.position), position=None, hint=hint)
        return death.explained(position=None)

    def died(self, death: Death) -> None:
        self.deaths.append(death)
        self.account.died(death)
        if self._warned.issuperset(death.tasks) and death.tasks:
            return
        self._warned.update(death.tasks)
        calls = [self._running[task] for task in death.tasks if task in self._running]
        hangs = death.cause == "deadline passed"
        attempts = self._config["hangs"] if hangs else self._config["attempts"]
        again = ", and the call is made again" if calls and attempts > 1 else ""
        self._warn(death.announced(f"it is replaced{again}"), WorkerDiedWarning, calls)

    def stalled(self, still: Stall, *, is_restarted_fresh: bool) -> None:
        call = None if still.task is None else self._running.get(still.task)
        text = still.describe(
            "" if call is None else f"in {call.what(still.position)}", self._config["deadline"]
        )
        name = "zygote_restarted" if is_restarted_fresh else "worker_stalled"
        details = {"worker": still.worker, "text": text, "why": text, "stack": list(still.stack)}
        self.account.event(name, details)
        self._warn(text, WorkerStalledWarning, [] if call is None else [call])

    def zygote_event(self, name: str, text: str, *, warns: bool) -> None:
        self.account.event(name, {"text": text, "level": "warning" if warns else "info"})
        if warns:
            self._warn(text, WorkerStalledWarning, [])

    def _warn(self, text: str, kind: type[Warning], calls: list[Call]) -> None:
        """Warns of calls, at the line of the user's code that wants them."""
        file, number = calls[0].line if calls else self._line
        try:
            warnings.warn_explicit(text, kind, file, number)
        except kind:
            # Where warnings are errors, nothing here can raise one to the user: it is shown.
            warnings.showwarning(kind(text), kind, file, number)

    def retired(self, reported: dict[str, Any]) -> None:
        self.account.event("worker_renewed", reported)

    def noted(self, worker_id: int, name: str, details: dict[str, Any]) -> None:
        self.account.noted(name, details, worker_id)
        # Now: while the source is unavailable, nothing else happens.
        self.account.notify()

    def shut(self, *, cancel: bool = False) -> None:
        """Takes no more calls. The thread ends the workers when the last one is made."""
        cancelled: list[Call] = []
        with self._lock:
            self._is_shut = True
            if cancel:
                cancelled = list(self._waiting)
                self._waiting.clear()
            worker_pool = self._worker_pool
        if worker_pool is not None:
            # The thread need not wait for the next answer to see it.
            worker_pool.wake()
        # Without the lock: the callback may come back with another call.
        for call in cancelled:
            self.account.ledger.cancelled(call.uncounted)
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()


def _finish(settle: Callable[[Any], None], value: Any) -> None:
    """Gives a future its result. Python logs exceptions of its callbacks, but lets SystemExit and the like
    through, which would end the pool: they are logged too."""
    try:
        settle(value)
    except InvalidStateError:
        raise
    except BaseException:
        # As text: a handler that keeps the record would keep all that the traceback knows.
        LOGGER.error("a callback of a future raised:\n%s", traceback.format_exc())


# Pools that may have calls to make; as the standard library's, they are made before Python ends.
_working: weakref.WeakSet[CallQueue] = weakref.WeakSet()


def _finish_all() -> None:
    for pool in list(_working):
        pool.shut()
        if pool.thread is not None:
            pool.thread.join()


# Before threads are waited for: later no thread can be started, and workers may have to be replaced.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_working.clear)


def encode_calls(function: bytes, calls: list[Any], sent_descriptors: SentDescriptors) -> bytes:
    """The body of a task: a function, and the arguments of each call with their `sent_descriptors`."""
    return len(function).to_bytes(8, "little") + function + _arguments(calls, sent_descriptors)


def _arguments(calls: list[Any], sent_descriptors: SentDescriptors) -> bytes:
    try:
        return by_name(calls, sent_descriptors.reducers)
    except ERRORS:
        sent_descriptors.release()
    try:
        return by_value(calls, sent_descriptors.reducers)
    except ERRORS as reason:
        dumps = functools.partial(by_value, reducers=sent_descriptors.reducers)
        try:
            raise not_picklable(calls[0][0], "arguments", reason, dumps) from reason
        finally:
            sent_descriptors.release()


def _unjudged(remote_error: RemoteError, error: BaseException) -> PendingFault:
    """What no policy is asked about."""
    names, os_error = symptom(error)
    return PendingFault(remote_error.position or 0, names, os_error, remote_error, None, 1, "raise")


def _lost(what: str, deaths: list[Death], why: str) -> BaseException:
    """The error of a call that is not made again, since it kills or hangs."""
    last = deaths[-1] if deaths else None
    hint = last.hint if last else ""
    story = "".join(f"\n  {_without(what, death)}" for death in deaths[-5:])
    if why == "hangs":
        stack = last.stack[:8] if last else ()
        text = f"{what} took longer than its deadline:{story}"
        text += "".join(f"\n  code  {frame}" for frame in stack)
        return DeadlineExceededError.explained(text, hint, deaths=tuple(deaths))
    times = f"its worker {len(deaths)} times" if len(deaths) > 1 else "its worker"
    text = f"{what} killed {times}:{story}"
    text += f"\n  code  {last.code}" if last and last.code else ""
    text += "".join(f"\n  why   {line}" for line in (last.why if last else ()))
    return WorkerDiedError.explained(text, hint, deaths=tuple(deaths))


def _without(what: str, death: Death) -> str:
    """A death in a line, where the call has been named already."""
    return str(death).replace(f" at one sample, in {what}", "").replace(f" in {what}", "")
