"""The main loop of a worker process: receives tasks, runs them and sends results."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from feedline import _native
from feedline._native import Request, RequestKind, ResultKind, WorkerActivity
from feedline._workers.children import end_child
from feedline._workers.pickling import ERRORS, Packer, not_picklable
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import FaultyResult, Retries
from feedline._workers.shortage import EXIT_CODE, ShortageExit, leave_if_short, note_task_done
from feedline._workers.zygote import DUMP_SIGNAL
from feedline.faults import FaultPolicy

__all__ = ["EXHAUSTED", "Buffers", "Work", "Worker", "run"]

# The exit code of a worker whose connection was closed by code in it; its black box has the reason.
_DISCONNECTED = 1

Buffers = list[_native.ReceivedBuffer]

# Seconds that a zygote may take to end after its trainer.
_ZYGOTE_ENDS = 1.0
# The result of a task if the data set has no more samples.
EXHAUSTED = object()


class Worker(ABC):
    """Runs tasks in one process. By default it has no state that a new epoch or a replacement needs."""

    def __init__(self, connection: _native.WorkerConnection) -> None:
        self._connection = connection

    def _retries(self, policy: FaultPolicy, **options: Any) -> Retries:
        """What the policy says about samples that fail here."""
        return Retries(policy, pause=self._pause, notify=self._notify, home=os.getpid(), **options)

    def _pause(self, seconds: float) -> None:
        self._connection.enter(WorkerActivity.Pausing)
        time.sleep(seconds)
        self._connection.enter(WorkerActivity.Fetching)

    def _notify(self, name: str, details: dict[str, Any]) -> None:
        self._connection.notify(json.dumps([name, details]).encode())

    @property
    @abstractmethod
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """Reducers for pickle, by type."""

    @abstractmethod
    def do(self, task: int, body: bytes, received: Buffers) -> object:
        """Runs a task and returns its result; `received` are the buffers of the task."""

    @abstractmethod
    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        """Loads one sample of a task alone and throws it away, to find out whether it kills the worker. False
        if the samples of the task cannot be loaded alone: then the whole task is run."""

    def resume(self, body: bytes) -> None:
        """Starts a new epoch."""
        return

    @abstractmethod
    def where(self) -> tuple[int | None, str]:
        """The offset in the batch and the stage at which an exception was raised."""

    def journal(self) -> bytes | None:
        """The state that a replacement needs to continue from here; None if there is none."""
        return None

    def recall(self, journal: bytes | None) -> None:
        """Continues from the journal of a predecessor."""
        return

    @abstractmethod
    def blamed(self, result: Any) -> tuple[str, object]:
        """For a result that cannot be pickled: its name, and the part of it that comes from user code."""


class Work(Protocol):
    """Everything that workers need; the zygote holds it."""

    worker_count: int
    # Whether objects that the trainer cannot import by name may be sent by value.
    values: bool

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> Worker:
        """Called once, in the worker."""


def run(work: Work, worker_id: int, generation: int, descriptors: tuple[int, ...], trainer: int) -> None:
    """Runs a worker until its process ends."""
    socket, arena, boxes, log, *inbox = descriptors
    connection = _native.WorkerConnection(
        worker_id, generation, work.worker_count, (socket, arena, boxes), *inbox
    )
    crash_log = _CrashLog(log)
    _native.go_first()
    # Started as multiprocessing starts its own processes: current_process() is a daemon, the exit handlers of
    # the parent are dropped, and standard input is closed.
    process = multiprocessing.Process(
        target=_run_worker,
        args=(work, worker_id, generation, connection, crash_log, trainer),
        name=f"feedline-worker-{worker_id}",
        daemon=True,
    )
    code = process._bootstrap(parent_sentinel=None)  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _CrashLog:
    """Writes the stack into memory that outlives this process, when it crashes and when the trainer requests
    it. The handler is C code, which needs neither the GIL nor the interpreter."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = os.fstat(descriptor)
        faulthandler.enable(descriptor)
        faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True, chain=False)
        # The crash of a child of this process is not a crash of the worker.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Stops writing. Requests for a stack are ignored again, as in the zygote."""
        faulthandler.disable()
        faulthandler.unregister(DUMP_SIGNAL)

    def write(self, text: str) -> None:
        """Writes why this process ends by itself, if its descriptor is open."""
        self.check()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._file):
                os.write(self._descriptor, text.encode(errors="backslashreplace") + b"\n")

    def check(self) -> None:
        """Stops writing if user code has closed the descriptor: a stack must not be written to another file
        that has its number now."""
        try:
            is_open = os.path.samestat(os.fstat(self._descriptor), self._file)
        except OSError:
            is_open = False
        if not is_open:
            self.forget()


def _run_worker(
    work: Work,
    worker_id: int,
    generation: int,
    connection: _native.WorkerConnection,
    crash_log: _CrashLog,
    trainer: int,
) -> None:
    try:
        is_abandoned = _run_tasks(work, worker_id, generation, connection, crash_log)
    except BaseException as raised:
        if connection.is_forked:
            end_child(f"worker {worker_id}", raised)
        if isinstance(raised, _native.Disconnected):
            crash_log.check()
            sys.exit(_DISCONNECTED)
        if isinstance(raised, ShortageExit):
            crash_log.write(raised.text)
            sys.exit(EXIT_CODE)
        # A broken pipe means that the trainer is gone.
        if not isinstance(raised, BrokenPipeError):
            raise
        is_abandoned = True
    if is_abandoned:
        _end_orphaned_zygote(trainer)


def _end_orphaned_zygote(trainer: int) -> None:
    """Kills the zygote if its trainer is gone and it does not notice, because it hangs or is stopped. A
    healthy zygote ends by itself, and this process with it."""
    zygote = os.getppid()
    time.sleep(_ZYGOTE_ENDS)
    if _has_ended(trainer) and os.getppid() == zygote:
        os.kill(zygote, signal.SIGKILL)


def _has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return True
    # A zombie has ended, though its parent has not waited for it.
    return state in "ZX"


def _run_tasks(
    work: Work, worker_id: int, generation: int, connection: _native.WorkerConnection, crash_log: _CrashLog
) -> bool:
    """Runs tasks until the end. Returns True if the trainer is gone, and False if it has stopped the worker
    or if the worker could not start."""
    plain = Packer({}, values=work.values)
    try:
        worker = work.start(worker_id, connection)
    except BaseException as raised:
        if connection.is_forked or isinstance(raised, _native.Disconnected):
            raise
        connection.pack(ResultKind.StartFailed, 0, plain.pack(RemoteError.of(raised, exact=True)))
        connection.send()
        return False
    packer = Packer(worker.reducers, values=work.values)
    connection.pack(ResultKind.Ready, 0, [])
    connection.send()
    is_new = True
    while True:
        connection.enter(WorkerActivity.Waiting)
        request = connection.receive()
        if request is None or request.kind == RequestKind.Stop:
            return request is None
        is_replacement = is_new and generation > 0
        is_trial = request.kind == RequestKind.Trial
        if not is_trial or not _try_alone(connection, worker, request, is_replacement=is_replacement):
            _run_task(connection, worker, packer, request, is_replacement=is_replacement)
            is_new = False
        # Returns the buffers of the task to the trainer.
        request = None
        crash_log.check()


def _try_alone(
    connection: _native.WorkerConnection, worker: Worker, request: Request, *, is_replacement: bool
) -> bool:
    """Loads one sample alone, and reports that the worker survived. False if the samples of the task cannot
    be loaded alone: then the task itself must be run."""
    task, offset = request.task, request.offset
    assert offset is not None
    connection.begin(task)
    connection.reach(offset)
    if is_replacement:
        worker.recall(connection.recall(task))
    before = worker.journal()
    try:
        is_over = worker.alone(request.body, request.buffers, offset)
    except Exception:
        if connection.is_forked:
            raise
        # It raises again when its batch is loaded.
        is_over = True
    if is_over and before is not None:
        # The batch must draw the same random numbers as without the trial.
        worker.recall(before)
    if is_over:
        connection.pack(ResultKind.Survived, task, [])
        connection.send()
    return is_over


def _run_task(
    connection: _native.WorkerConnection,
    worker: Worker,
    packer: Packer,
    request: Request,
    *,
    is_replacement: bool,
) -> None:
    task = request.task
    buffers: list[Any]
    kind = ResultKind.Result
    connection.begin(task)
    try:
        if is_replacement:
            worker.recall(connection.recall(task))
        if request.kind == RequestKind.Resume:
            worker.resume(request.body)
            result: object = None
        else:
            result = worker.do(task, request.body, request.buffers)
    except BaseException as raised:
        if connection.is_forked or isinstance(raised, (_native.Disconnected, ShortageExit)):
            # In a child that was forked in user code, the exception is not a fault of the sample. Without a
            # connection, it cannot be reported.
            raise
        leave_if_short(raised)
        offset, stage = worker.where()
        kind, result = ResultKind.Raised, RemoteError.of(raised, offset=offset, stage=stage, exact=True)
    if result is EXHAUSTED:
        kind, result = ResultKind.Exhausted, None
    elif isinstance(result, FaultyResult):
        kind = ResultKind.Faulty
    connection.enter(WorkerActivity.Answering)
    try:
        buffers = packer.pack(result)
    except ERRORS as raised:
        name, blamed = worker.blamed(result)
        error = not_picklable(blamed, name, raised, packer.pack)
        kind, buffers = ResultKind.Raised, packer.pack(RemoteError.of(error, stage="answering", exact=True))
    connection.pack(kind, task, buffers)
    # Before sending: from then on the memory of the result belongs to the trainer.
    del result
    buffers.clear()
    journal = worker.journal()
    if journal is not None:
        connection.journal(task, journal)
    connection.weigh()
    connection.send()
    note_task_done()
