"""What is behind an executor: its calls, its workers, and the thread that receives results. It reports
results to the engine and performs the actions of the engine; it decides nothing."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import pickle
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from feedline import _native, errors
from feedline._account import Account, fault_line
from feedline._call import FailedCall, Function, Skipped
from feedline._native import Action
from feedline._workers.calls import CALLING, ExecutorWork
from feedline._workers.death import Death
from feedline._workers.pickling import ERRORS, by_name, by_value, not_picklable
from feedline._workers.pool_reports import PoolOwner, PoolReports, TaskPlace, death_without, lost_task_error
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import FaultyResult, PendingFault
from feedline._workers.sent_descriptors import SentDescriptors
from feedline._workers.tuning import Tuning
from feedline._workers.worker_pool import GaveUp, Handle, WorkerPool, load
from feedline.errors import DeadlineExceededError, WorkerDiedError
from feedline.events import LOGGER
from feedline.faults import symptom

__all__ = ["CallChunk", "CallQueue"]

_NO_URGENT_TASK = 2**63
# How often the listening thread looks whether there is still something to listen to, in seconds.
_POLL_SECONDS = 0.2


@dataclass
class CallChunk:
    """Calls that go to a worker together, and the future of their results."""

    future: Future[Any]
    function: Function
    calls: list[Any]
    # Whether its results are one, and not a list.
    is_single: bool
    # File and line of the user's code that wants it.
    line: tuple[str, int]
    # The place of each call among all results, and the results that are known, by place.
    places: list[int]
    results: dict[int, Any] = field(default_factory=dict)
    # As the engine counts it.
    batch: int = -1
    is_ordered: bool = False
    # The calls that were sent last, as offsets, and what was sent.
    sent: list[int] = field(default_factory=list)
    body: bytes = b""
    # Descriptors among the arguments.
    sent_descriptors: SentDescriptors = field(default_factory=SentDescriptors)
    # Folders that the function and the arguments name.
    folders: list[str] = field(default_factory=list)

    def pack(self) -> None:
        """What goes to a worker: the calls that have no result yet."""
        self.sent = [offset for offset, place in enumerate(self.places) if place not in self.results]
        calls = [self.calls[offset] for offset in self.sent]
        self.body = encode_calls(self.function.pickled, self.folders, calls, self.sent_descriptors)

    def at(self, offset: int | None) -> Any:
        """The arguments of one of the calls that were sent; of the first if it is not known which."""
        is_known = offset is not None and offset < len(self.sent)
        return self.calls[self.sent[offset if is_known else 0]]  # type: ignore[index]

    def what(self, offset: int | None = None) -> str:
        """One of the calls that were sent, as text; all of them if it is not known which."""
        count = len(self.sent)
        more = "" if count == 1 or (offset is not None and offset < count) else f" and {count - 1} more"
        return self.function.describe(*self.at(offset)) + more

    def leave_out(self, offset: int, result: Any) -> None:
        """One of the calls is not made, before any was sent; that is its result."""
        self.results[self.places.pop(offset)] = result
        del self.calls[offset]

    def put(self, offset: int, result: Any) -> None:
        """The result of one of the calls that were sent."""
        self.results[self.places[self.sent[offset]]] = result

    def resolve(self) -> None:
        """All results are known."""
        every = [self.results[place] for place in sorted(self.results)]
        if not self.is_single:
            _finish(self.future.set_result, every)
        elif isinstance(every[0], Skipped) and every[0].error is not None:
            _finish(self.future.set_exception, every[0].error)
        else:
            _finish(self.future.set_result, every[0])


@dataclass
class _Outcome:
    """The outcome of calls that were sent, until the engine has decided about it."""

    call: CallChunk
    task: int
    worker: int | None
    # Faults, by the number that the engine has for them.
    faults: list[PendingFault] = field(default_factory=list)
    # What was raised, if it is in this process.
    error: BaseException | None = None


class CallQueue(PoolOwner):
    """What is behind an executor: its calls, its workers, and the thread that receives results. The thread
    keeps it alive until the last call is made, also when nobody has the executor any more."""

    def __init__(
        self,
        work: ExecutorWork,
        config: dict[str, Any],
        account: Account,
        *,
        fresh: bool,
        tuning: Tuning | None,
    ) -> None:
        """`tuning` decides how many workers run at once."""
        self.account = account
        self._tuning = tuning
        # When it was last seen whether calls wait for a worker, and whether they did.
        self._looked_at, self._calls_wait = 0.0, False
        self._work = work
        self._config = config
        self._fresh = fresh
        # Reentrant: while it is held, garbage may be collected, and a finalizer may submit a call.
        self._lock = threading.RLock()
        self._is_starting = False
        self._worker_pool: WorkerPool | None = None
        self._engine = _native.CallEngine(account.rules)
        # Calls that are not settled, as the engine counts them, and those that workers have, by task.
        self._calls: dict[int, CallChunk] = {}
        self._running: dict[int, CallChunk] = {}
        self._numbers = itertools.count()
        self._is_shut = self._has_ended = False
        self._broken: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.deaths: list[Death] = []
        # Of the newest call.
        self._line = ("", 0)

    @property
    def workers(self) -> list[Handle]:
        worker_pool = self._worker_pool
        return [] if worker_pool is None else worker_pool.workers

    @property
    def running(self) -> int:
        """How many workers run at once."""
        return self._work.worker_count if self._tuning is None else self._tuning.running

    def add(self, call: CallChunk) -> None:
        with self._lock:
            if self._broken is not None:
                raise _copied(self._broken)
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self.account.ledger.expect(len(call.calls))
            self._line = call.line
            call.batch = self._engine.plan(len(call.calls))
            self._calls[call.batch] = call
            self._start()
            self._send_ready_calls()

    def _start(self) -> None:
        if self._worker_pool is not None or self._is_starting:
            return
        self._is_starting = True
        try:
            account, again = self.account, "the call is made again"
            reports = self._reports = PoolReports(
                account, account.policy, self.deaths, self._config, again, shows_repeats=False
            )
            worker_pool = WorkerPool(
                self._work, self._config, fresh=self._fresh, name="Executor", owner=self, reports=reports
            )
            if self._tuning is not None:
                self._tuning.start(worker_pool, reports)
            worker_pool.start()
        finally:
            self._is_starting = False
        self._worker_pool = worker_pool
        self.thread = threading.Thread(target=self._listen, name="feedline-executor", daemon=True)
        _working.add(self)
        self.thread.start()

    def _send_ready_calls(self) -> None:
        """Gives away what workers do next; the rest waits here, where it can be cancelled."""
        if self._worker_pool is None:
            # It is being started: then all that waits is given away.
            return
        while len(self._running) < 2 * self.running and (batch := self._engine.order()) is not None:
            call = self._calls[batch]
            call.is_ordered = True
            if call.future.set_running_or_notify_cancel():
                self._submit(call)
            else:
                self._perform(self._engine.cancel(batch))

    def _submit(self, call: CallChunk) -> None:
        assert self._worker_pool is not None
        task = next(self._numbers)
        self._running[task] = call
        self._worker_pool.submit(task, call.body)

    def _listen(self) -> None:
        worker_pool = self._worker_pool
        assert worker_pool is not None
        try:
            while not self._has_ended:
                self._receive_one(worker_pool)
        except BaseException as raised:
            self._break(raised)
        finally:
            self._worker_pool = None
            worker_pool.close()
            del worker_pool
            self.account.close()

    def _receive_one(self, worker_pool: WorkerPool) -> None:
        answer = worker_pool.next(_NO_URGENT_TASK, _POLL_SECONDS)
        self.account.notify()
        call = None
        if answer is not None:
            with self._lock:
                call = self._running.pop(answer.task, None)
                self._send_ready_calls()
        if self._tuning is not None:
            self._tune(self._tuning, worker_pool, results=int(answer is not None))
        if call is not None and answer is not None:
            self._put(call, answer)
            self.account.notify()

    def _tune(self, tuning: Tuning, worker_pool: WorkerPool, *, results: int) -> None:
        """The consumer waits while calls wait for a worker."""
        now = time.perf_counter()
        waited = now - self._looked_at if self._calls_wait else 0.0
        self._looked_at = now
        if not self._running and not results:
            # Time without calls says nothing.
            self._calls_wait = False
            tuning.begin_epoch()
            return
        before = tuning.running
        tuning.passed(results, waited, worker_pool, self._reports)
        with self._lock:
            if tuning.running > before:
                self._send_ready_calls()
            self._calls_wait = len(self._running) > tuning.running

    # ---- results of calls ----

    def _put(self, call: CallChunk, answer: _native.TaskResult | GaveUp) -> None:
        if isinstance(answer, GaveUp):
            return self._give_up(call, answer)
        slowest, seconds = answer.slowest
        if self.account.ledger.is_slow(seconds):
            self.account.slow(call.what(slowest), seconds, answer.worker_id, CALLING)
        outcome = _Outcome(call, answer.task, answer.worker_id)
        results: list[Any] = []
        try:
            result = load(answer)
        except BaseException as raised:
            # Its frames would keep the answer's memory.
            remote_error = RemoteError.reported(raised.with_traceback(None), offset=None, stage=CALLING)
            bad = [_unjudged(remote_error, raised)]
        else:
            if answer.kind == "raised":
                # A result that cannot be pickled.
                outcome.error = result.again()
                bad = [_unjudged(result, outcome.error)]
            else:
                bad = result.bad if isinstance(result, FaultyResult) else []
                results = result.batch if isinstance(result, FaultyResult) else result
        for offset, each in enumerate(results):
            call.put(offset, each)
        for one in bad:
            if not one.action:
                self.account.ledger.retried(self._in_json(outcome, one))
        outcome.faults = [one for one in bad if one.action]
        samples = [self._bad_sample(outcome, fault) for fault in range(len(outcome.faults))]
        return self._perform(self._engine.add_result(call.batch, samples), outcome)

    def _bad_sample(self, outcome: _Outcome, fault: int) -> _native.BadSample:
        bad = outcome.faults[fault]
        return _native.BadSample(outcome.call.sent[bad.offset], fault, self.account.policy_action(bad))

    def _give_up(self, call: CallChunk, given_up: GaveUp) -> None:
        """A call that kills its worker, or takes longer than it may: a fault as any other."""
        deaths = [death for death in self.deaths if given_up.task in death.tasks]
        what = call.what(given_up.offset)
        error = lost_task_error(deaths, given_up.why, what, what)
        at = given_up.offset
        if at is not None and at >= len(call.sent):
            at = None
        # Of calls that must not be repeated, others of the same task may have been made already.
        may_go_on = at is not None and self._config["attempts"] > 1
        bad = PendingFault.of_error(error, at, CALLING, len(deaths))
        bad.action = self.account.action(bad.names) if may_go_on else "raise"
        if deaths:
            # A report has one line for it, which names the call already.
            bad.remote_error.message = death_without(what, deaths[-1])
        outcome = _Outcome(call, given_up.task, deaths[-1].worker if deaths else None, [bad], error)
        self._perform(self._engine.lost(call.batch, self._bad_sample(outcome, 0)), outcome)
        if call.batch in self._calls:
            # The others of the same task are made without it.
            call.pack()
            with self._lock:
                self._submit(call)

    # ---- what the engine decides ----

    def _perform(self, actions: list[Action], outcome: _Outcome | None = None) -> None:
        for action in actions:
            match action:
                case Action.Deliver(batch, samples):
                    self.account.ledger.delivered(samples, 0.0)
                    self._calls.pop(batch).resolve()
                case Action.Record(fault, verdict) if outcome is not None:
                    self._record(outcome, outcome.faults[fault], verdict)
                case Action.Cancel(batch, samples):
                    self.account.ledger.cancelled(samples)
                    self._cancel(self._calls.pop(batch))
                case Action.End():
                    self._has_ended = True
                case Action.Raise() if self._broken is not None:
                    raise self._broken
                case _:
                    raise errors.InternalError.explained(f"the pool cannot do this: {action}")

    def _record(self, outcome: _Outcome, bad: PendingFault, verdict: _native.Verdict) -> None:
        call, offset = outcome.call, bad.offset
        line = self._in_json(outcome, bad)
        too_many = self.account.ledger.record(bad.names, bad.os_error, line, verdict)
        match verdict.name:
            case "skip":
                call.put(offset, Skipped(call.what(offset), self._error(outcome, bad)))
            case "substitute":
                call.put(offset, self.account.policy.replacement)
            case "fail":
                _finish(call.future.set_exception, self._error(outcome, bad))
            case _:
                with self._lock:
                    self._broken = errors.TooManyFaultsError.explained(too_many or "")

    def _cancel(self, call: CallChunk) -> None:
        """Nobody gets the results of calls; their future may have the exception of one of them."""
        if self._broken is not None and not call.future.done():
            # The user may cancel it meanwhile.
            with contextlib.suppress(InvalidStateError):
                _finish(call.future.set_exception, _copied(self._broken))
        elif not call.is_ordered and call.future.cancel():
            call.future.set_running_or_notify_cancel()

    def _in_json(self, outcome: _Outcome, bad: PendingFault) -> str:
        call = outcome.call
        in_json = call.function.as_json(*call.at(bad.offset))
        return fault_line(bad, call.what(bad.offset), 0, outcome.worker, call=in_json)

    def _error(self, outcome: _Outcome, bad: PendingFault) -> BaseException:
        """The exception of a call, which says which call it was."""
        error = bad.remote_error.again() if outcome.error is None else outcome.error
        deaths = sum(outcome.task in death.tasks for death in self.deaths)
        is_own = isinstance(error, (WorkerDiedError, DeadlineExceededError))
        failed = FailedCall(
            function=outcome.call.function.name,
            arguments=outcome.call.function.arguments(*outcome.call.at(bad.offset)),
            worker=outcome.worker,
            attempts=bad.attempts if is_own else bad.attempts + deaths,
        )
        # Somebody else's class may guard its attributes, or have one of that name.
        with contextlib.suppress(Exception):
            if not is_own:
                error.add_note(f"feedline: in {failed}")
            if not hasattr(error, "call"):
                error.call = failed  # type: ignore[attr-defined]
        return error

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
            self._running.clear()
            left = [action for batch in list(self._calls) for action in self._engine.cancel(batch)]
        self._perform(left)

    # ---- what is known of the workers ----

    def locate(self, task: int, offset: int | None, stage: str) -> TaskPlace | None:
        call = self._running.get(task)
        return None if call is None else TaskPlace(what=call.what(offset))

    def line_of(self, task: int | None) -> tuple[str, int]:
        call = None if task is None else self._running.get(task)
        return self._line if call is None else call.line

    def shut(self, *, cancel: bool = False) -> None:
        """Takes no more calls. The thread ends the workers when the last one is made."""
        with self._lock:
            self._is_shut = True
            calls = self._calls.values() if cancel else ()
            waiting = [call.batch for call in calls if not call.is_ordered]
            left = [action for batch in waiting for action in self._engine.cancel(batch)]
            left += self._engine.plan_ends()
            worker_pool = self._worker_pool
        # Without the lock: the callback of a future may come back with another call.
        self._perform(left)
        if worker_pool is not None:
            # The thread need not wait for the next answer to see it.
            worker_pool.wake()


def _copied(error: BaseException) -> BaseException:
    """What is raised keeps the frames that it comes through, and they the pool: each future has its own."""
    try:
        copied = copy.copy(error)
    except Exception:
        return error
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied


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


def encode_calls(
    function: bytes, folders: list[str], calls: list[Any], sent_descriptors: SentDescriptors
) -> bytes:
    """What goes to a worker: a function, folders that were there, and the arguments of each call, whose
    descriptors are `sent_descriptors`."""
    head = pickle.dumps((function, folders))
    return len(head).to_bytes(8, "little") + head + _arguments(calls, sent_descriptors)


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
    return PendingFault(remote_error.offset or 0, names, os_error, remote_error, None, 1, "raise")
