"""What is behind an executor: its calls, its workers, and the thread that hears of both."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from feedline import _native, errors
from feedline._account import Account
from feedline._workers.calls import Calls, Raised
from feedline._workers.crew import Crew, GaveUp, Handle, load
from feedline._workers.death import Death, Standstill, describe
from feedline._workers.pickling import ERRORS, by_value, not_picklable
from feedline._workers.tries import Bad, Faulty
from feedline._workers.trouble import Trouble
from feedline.errors import DeadlinePassed, WorkerDied, WorkerStalledWarning
from feedline.faults import hint_for, symptom

__all__ = ["Call", "Pool", "parcel"]

_NO_ONE_IS_OLDEST = 2**63
# A call that was made after all.
_MADE: Any = object()
# How often the listening thread looks whether there is still something to listen to, in seconds.
_LOOK = 0.2


@dataclass
class Call:
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


class Pool:
    """What is behind an executor: its calls, its workers, and the thread that hears of both. The thread
    keeps it alive until the last call is made, also when nobody has the executor any more."""

    def __init__(self, work: Calls, words: dict[str, Any], account: Account, *, fresh: bool) -> None:
        self.account = account
        self._work = work
        self._words = words
        self._fresh = fresh
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._waiting: deque[Call] = deque()
        self._running: dict[int, Call] = {}
        self._numbers = itertools.count()
        self._is_shut = False
        self._broken: BaseException | None = None
        self.thread: threading.Thread | None = None
        self.deaths: list[Death] = []

    @property
    def workers(self) -> list[Handle]:
        crew = self._crew
        return [] if crew is None else crew.workers

    def add(self, call: Call) -> None:
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

    def _submit(self, call: Call) -> None:
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
            self.account.close()

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

    def _settle(self, call: Call, answer: _native.Answer | GaveUp) -> None:
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
        if isinstance(result, Raised):
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

    def _judged(self, call: Call, bad: Bad, worker: int | None) -> Any:
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

    def _fail(self, call: Call, error: BaseException) -> None:
        """The exception is what becomes of the calls, and their future has it."""
        self.account.ledger.delivered(len(call.positions), 0.0)
        call.future.set_exception(error)

    def _given_up(self, call: Call, given_up: GaveUp) -> None:
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
        call.body = parcel(call.function, call.calls)
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
                hint = hint_for(self.account.policy, death.hint)
                return death.explained(what=call.what(death.position), position=None, hint=hint)
        return death.explained(position=None)

    def died(self, death: Death) -> None:
        self.deaths.append(death)
        self.account.died(death)
        self.account.notices.died(death, "it is replaced")
        self.account.tell()

    def stalled(self, still: Standstill, *, is_reborn: bool) -> None:
        call = None if still.task is None else self._running.get(still.task)
        text = still.words("" if call is None else f"in {call.what(still.position)}", self._words["deadline"])
        name = "zygote_reborn" if is_reborn else "worker_stalled"
        details = {"worker": still.worker, "text": text, "why": text, "stack": list(still.stack)}
        self.account.event(name, details)
        self.account.notices.add(text, WorkerStalledWarning)
        self.account.tell()

    def retired(self, told: dict[str, Any]) -> None:
        self.account.event("worker_retired", told)

    def noted(self, post: int, name: str, details: dict[str, Any]) -> None:
        self.account.noted(name, details, post)
        # Now: while the source is away, nothing else happens.
        self.account.tell()

    def shut(self, *, cancel: bool = False) -> None:
        """Takes no more calls. The thread ends the workers when the last one is made."""
        cancelled: list[Call] = []
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
_working: weakref.WeakSet[Pool] = weakref.WeakSet()


def _finish_all() -> None:
    for pool in list(_working):
        pool.shut()
        if pool.thread is not None:
            pool.thread.join()


# Before threads are waited for: later no thread can be started, and workers may have to be replaced.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_working.clear)


def parcel(function: bytes, calls: list[Any]) -> bytes:
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


def _shown(arguments: Iterable[object]) -> Iterator[str]:
    """Arguments as they are shown in a message, cut where they are long."""
    for argument in arguments:
        text = (
            repr(argument)
            if isinstance(argument, (str, int, float, os.PathLike))
            else f"<{type(argument).__name__}>"
        )
        yield text if len(text) <= 80 else text[:77] + "..."
