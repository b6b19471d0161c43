"""The trainer's side of supervised workers: starts the zygote, submits tasks, and reports deaths."""

from __future__ import annotations

import atexit
import errno
import json
import os
import pickle
import signal
import time
import weakref
from typing import Any

from feedline import _native
from feedline._code import LIBRARIES, PACKAGE
from feedline._config import call_as_json
from feedline._native import GaveUp
from feedline._workers.death import Death, Stall, describe
from feedline._workers.pickling import ERRORS, Payload, not_picklable
from feedline._workers.pool_reports import PoolOwner, PoolReports, lost_task_error
from feedline._workers.remote_error import RemoteError
from feedline._workers.state import changes, visible_state
from feedline._workers.worker import Work
from feedline._workers.zygote import Zygote
from feedline.errors import (
    DescriptorsClosedError,
    FeedlineError,
    NotPicklableError,
    TooManyDeathsError,
    WorkerNotStartedError,
)

# Seconds that `Handle.pid` waits until a worker is forked.
_FORKED_WITHIN = 5.0
# Seconds during which starting a zygote is retried, and the errors for which it is.
_RETRY_FOR = 20.0
_TRANSIENT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# How many changes of the work a warning shows.
_CHANGES = 8

__all__ = ["GaveUp", "Handle", "WorkerPool", "load"]


class Handle:
    """A worker and its replacements, with the attributes of a `multiprocessing.Process`."""

    def __init__(self, worker_pool: WorkerPool, worker_id: int) -> None:
        self._worker_pool = weakref.ref(worker_pool)
        self._worker_id = worker_id
        self._pid: int | None = None
        self.daemon = True
        self.name = f"feedline-worker-{worker_id}"

    @property
    def pid(self) -> int | None:
        """The process id; another one after the worker was replaced. Waits for a worker that is being
        forked."""
        until = time.monotonic() + _FORKED_WITHIN
        while self.is_alive() and ((presence := self._presence()) is None or presence.pid is None):
            if time.monotonic() > until:
                return None
            time.sleep(0.0005)
        return self._pid

    def _presence(self) -> _native.Presence | None:
        worker_pool = self._worker_pool()
        presence = None if worker_pool is None else worker_pool.presence(self._worker_id)
        if presence is not None and presence.pid is not None:
            self._pid = presence.pid
        return presence

    def is_alive(self) -> bool:
        """Whether the worker runs or is being started."""
        worker_pool = self._worker_pool()
        return worker_pool is not None and worker_pool.has_worker(self._worker_id)

    def is_ready(self) -> bool:
        """Whether the worker takes tasks."""
        presence = self._presence()
        return presence is not None and presence.is_ready

    @property
    def exitcode(self) -> int | None:
        """None while the worker is alive. `deaths` of the loader shows how its predecessors ended."""
        return None if self.is_alive() else 0

    def join(self, timeout: float | None = None) -> None:
        """Waits until the worker has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (until is None or time.monotonic() < until):
            time.sleep(0.005)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if self.is_alive() and pid is not None:
            os.kill(pid, number)


class WorkerPool:
    """Workers and the zygote that forks them."""

    def __init__(
        self,
        work: Work,
        config: dict[str, Any],
        *,
        fresh: bool,
        name: str,
        owner: PoolOwner,
        reports: PoolReports,
        zygote: Zygote | None = None,
    ) -> None:
        """With `fresh`, the zygote is a new interpreter, not a fork."""
        self._work = work
        self._fresh = fresh
        self._name = name
        # Weak: the owner keeps the pool alive, and must be collected when the user drops it.
        self._owner = weakref.ref(owner)
        self._reports = reports
        self._home = os.getpid()
        self._payload = self._pickle() if fresh else None
        # A summary of the work from when the last zygote was forked.
        self._state: dict[str, str] | None = None
        self.zygote = zygote
        self.deaths: list[Death] = []
        self._failure: BaseException | None = None
        self._is_closed = False
        self._retired: set[int] = set()
        config_json = call_as_json({**config, "may_be_fresh": not fresh})
        self._processes = _native.Processes(config_json, PACKAGE, list(LIBRARIES))
        reports.watch(self._processes)
        _alive.add(self)
        self.workers = [Handle(self, worker_id) for worker_id in range(work.worker_count)]

    def _pickle(self) -> Payload:
        try:
            return Payload.of(self._work)
        except ERRORS as reason:
            for name, part in vars(self._work).items():
                try:
                    Payload.of(part)
                except ERRORS:
                    raise not_picklable(part, name, reason, Payload.of) from reason
            raise NotPicklableError.explained(f"the work cannot be pickled: {reason}") from reason

    def submit(
        self,
        task: int,
        body: bytes,
        worker_id: int | None = None,
        *,
        resume: bool = False,
        task_buffers: _native.TaskBuffers | None = None,
    ) -> None:
        self._processes.submit(task, body, worker_id, resume, task_buffers)

    def load(self, buffers: list[Any]) -> _native.TaskBuffers | None:
        """Copies buffers into memory that workers can read, to be submitted with tasks."""
        return self._processes.load(buffers)

    @property
    def inbox_used(self) -> tuple[int, int]:
        """The bytes of the inbox that are in use or warm, and the number of slots in use."""
        return self._processes.inbox_used

    def wake_by(self, epoch: _native.Epoch) -> None:
        """Makes a waiting `next` return when a native epoch has an instruction."""
        epoch.wake(self._processes)

    def wake(self) -> None:
        """Makes a waiting `next` return at once."""
        if self._home == os.getpid():
            self._processes.wake()

    def retire(self, worker_id: int) -> None:
        self._retired.add(worker_id)
        self._processes.retire(worker_id)

    def restore(self, worker_id: int) -> None:
        """Makes a worker take tasks again that has retired."""
        self._retired.discard(worker_id)
        self._processes.restore(worker_id)

    def limit(self, at_once: int, *, ends_others: bool) -> None:
        """Lets at most `at_once` workers have tasks of their own at once. With `ends_others`, because
        memory is short, the processes of the others end, and workers take turns."""
        self._processes.limit_workers(at_once, ends_others)

    def has_worker(self, worker_id: int) -> bool:
        """Whether a worker with this id runs or will be started."""
        if self._is_closed or self._failure is not None:
            return False
        return worker_id not in self._retired or self._processes.presence(worker_id) is not None

    def presence(self, worker_id: int) -> _native.Presence | None:
        return None if self._is_closed else self._processes.presence(worker_id)

    def activity(self, worker_id: int) -> _native.Activity | None:
        """What a worker is doing, from its black box."""
        return None if self._is_closed else self._processes.activity(worker_id)

    def next(self, oldest: int, timeout: float | None = None) -> _native.TaskResult | GaveUp | None:
        """The next result of a task, in the order of arrival; None after `timeout` seconds, or when `wake`
        was called.

        Reports deaths to the owner meanwhile. Raises if the pool has failed.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            event = self._processes.next(oldest, timeout)
            if event is None or isinstance(event, (_native.TaskResult, GaveUp)):
                return event
            self._handle_event(event)

    def _handle_event(self, event: _native._PoolEvent) -> None:
        """Handles everything that is not a result."""
        owner = self._owner()
        if owner is None:
            # It is being freed; nobody knows its tasks any more.
            owner = PoolOwner()
        match event:
            case _native.StartZygote():
                self._start_zygote(fresh=event.is_fresh)
            case _native.PoolFailed():
                self._failure = self._error(event)
            case _native.WorkerDied():
                self.deaths.append(self._reports.died(Death.reported(event), owner))
            case _native.WorkerRenewed():
                self._reports.renewed(event, owner)
            case _native.ZygoteLate():
                name = "zygote_killed" if event.is_killed else "zygote_slow"
                self._reports.zygote_event(name, _late_zygote_text(event), owner, warns=True)
            case _native.CapacityChanged():
                self._reports.capacity_changed(event, owner)
            case _native.WorkerNote():
                self._reports.noted(event.worker, *json.loads(event.json))
            case _native.WorkerStalled():
                stall = Stall.reported(event)
                if event.is_restarted_fresh:
                    stall = stall.restarted_fresh(self._refresh())
                self._reports.stalled(stall, owner, is_restarted_fresh=event.is_restarted_fresh)
            case _native.TaskResult() | _native.GaveUp():
                raise AssertionError("a result is not an event")

    def start(self) -> None:
        """Starts the zygote now, with the work in its present state."""
        if isinstance(self._processes.next(0, 0.0), _native.StartZygote):
            self._start_zygote(fresh=False)

    def _refresh(self) -> NotPicklableError | None:
        """Makes all later zygotes fresh interpreters; returns the reason if that is not possible."""
        if not self._fresh:
            try:
                self._payload = self._pickle()
            except NotPicklableError as reason:
                return reason
            self._fresh = True
        return None

    def _start_zygote(self, *, fresh: bool) -> None:
        """Starts the zygote. With `fresh`, forked workers have hung, so a new interpreter is used if the work
        can be pickled."""
        if fresh:
            self._refresh()
        if self.zygote is not None and not self.zygote.is_usable:
            self.zygote.end()
            self.zygote = None
        until = time.monotonic() + _RETRY_FOR
        wait = 0.01
        while True:
            try:
                loads = True
                if self._payload is not None:
                    self.zygote = self.zygote or Zygote.by_spawn()
                    loads = self.zygote.load(self._payload, self._work.worker_count)
                else:
                    self._compare_state()
                    self.zygote = Zygote.by_fork(self._work)
            except OSError as refusal:
                if refusal.errno not in _TRANSIENT or time.monotonic() > until:
                    self._processes.zygote_refused()
                    self._failure = WorkerNotStartedError.explained(f"no process could be started: {refusal}")
                    return
                time.sleep(wait)
                wait = min(2 * wait, 1.0)
            else:
                self._processes.zygote_started(self.zygote.lend(), self.zygote.pid, not loads)
                return

    def _compare_state(self) -> None:
        """Reports a replaced zygote, and what the program has changed in the work since the last one was
        forked: new workers see these changes."""
        before, self._state = self._state, visible_state(self._work)
        owner = self._owner()
        if before is None or owner is None:
            return
        lines = changes(before, self._state)
        text = "the process that forks the workers has ended and is replaced"
        if lines:
            text += "; your program has changed the data set since, and new workers see the changes:"
            text += "".join(f"\n  {line}" for line in lines[:_CHANGES])
        self._reports.zygote_event("zygote_replaced", text, owner, warns=bool(lines))

    def _error(self, failed: _native.PoolFailed) -> BaseException:
        why, worker = failed.why, failed.worker
        history = describe(self.deaths)
        if failed.result is not None:
            remote_error: RemoteError = load(failed.result)
            is_torch = self._name == "DataLoader"
            return remote_error.exception(f"in {self._name} worker process {worker}", "", exact=not is_torch)
        if why == "death":
            return lost_task_error(self.deaths[-1:], "kills", f"worker {worker}")
        if why == "dies starting":
            text = f"worker {worker} died again and again while it was starting{history}"
            hint = "run with num_workers=0 to see what worker_init_fn or the data set does"
            return WorkerNotStartedError.explained(text, hint)
        if why == "too many deaths":
            return TooManyDeathsError.explained(f"too many workers died:{history}", deaths=tuple(self.deaths))
        if why == "refused":
            reason = "unknown reason" if failed.os_error is None else os.strerror(failed.os_error)
            return WorkerNotStartedError.explained(
                f"the system refused a process for worker {worker}: {reason}"
            )
        if why == "descriptors closed":
            return DescriptorsClosedError.explained(
                "descriptors that connect this process with its workers were closed by other code in it"
            )
        if why == "zygote hangs":
            text = "the process that forks the workers hangs, and so did those that replaced it"
            hint = "look for os.register_at_fork handlers that block, or use multiprocessing_context='spawn'"
            return WorkerNotStartedError.explained(text, hint)
        text = (failed.text or b"").decode(errors="replace")
        hint = "the code above must work in a fresh interpreter; with fork it does not run: use fork"
        message = f"the process that holds the data set could not start\n{text}".rstrip()
        return WorkerNotStartedError.explained(message, hint)

    def close(self, *, keep_zygote: bool = False) -> None:
        """Ends the workers and, without `keep_zygote`, the zygote."""
        if self._is_closed or self._home != os.getpid():
            return
        self._is_closed = True
        _alive.discard(self)
        descriptor = self._processes.close()
        if self.zygote is not None:
            self.zygote.take_back(descriptor)
            if not (keep_zygote and self.zygote.is_usable):
                self.zygote.end()
                self.zygote = None


def _late_zygote_text(late: _native.ZygoteLate) -> str:
    """The text for a zygote that does not answer."""
    lines = [f"the process that forks the workers (pid {late.pid}) does not answer"]
    if late.is_killed:
        lines[0] += "; it was killed and is replaced, and the batches of its workers are recomputed"
    else:
        lines[0] += ", but it uses CPU time: it is given more time"
    lines += [] if late.process_state is None else [f"  how   {late.process_state}"]
    if late.is_killed:
        hint = "it runs your code only in handlers of os.register_at_fork, and while it is unpickled"
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


def load(result: _native.TaskResult) -> Any:
    """Unpickles a result without copying its buffers."""
    pickled: Any
    pickled, *buffers = result.open()
    return pickle.loads(pickled, buffers=buffers)


_alive: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_all() -> None:
    for worker_pool in list(_alive):
        try:
            worker_pool.close()
        except (FeedlineError, RuntimeError):
            continue


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # In a forked child the pools belong to the parent.
    os.register_at_fork(after_in_child=_alive.clear)
