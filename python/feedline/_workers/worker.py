"""What runs in a worker process: takes tasks, works, answers."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from feedline import _native
from feedline._workers.children import end_child
from feedline._workers.pickling import ERRORS, Packer, not_picklable
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import FaultyResult
from feedline._workers.zygote import DUMP_SIGNAL

__all__ = ["EXHAUSTED", "Buffers", "Work", "Worker", "run"]

# With which a worker ends that finds its connection to the trainer closed; its box tells the trainer why.
_CUT_OFF = 1

# What a worker answers, and what it is at: the order is that of crates/feedline-py/src/connection.rs.
READY, START_FAILED, RESULT, RAISED, _EXHAUSTED, _SURVIVED, _FAULTY = range(7)
STARTING, WAITING, FETCHING, COLLATING, ANSWERING, PAUSING = range(6)
_TASK, _RESUME, _STOP, _TRIAL = range(4)

Buffers = list[_native.ReceivedBuffer]
# What it is, the task, the sample that is tried alone, the task in words, and the buffers beside it.
_Order = tuple[int, int, int | None, bytes, Buffers]

# How long a zygote may take to end after its trainer, in seconds.
_ZYGOTE_ENDS = 1.0
# Returned by a task when there is nothing more.
EXHAUSTED = object()


class Worker(Protocol):
    """What works, in one process."""

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """How pickle takes some types apart."""

    def do(self, task: int, body: bytes, received: Buffers) -> object:
        """The result of a task; `received` are the buffers that came with it."""

    def alone(self, body: bytes, received: Buffers, position: int) -> bool:
        """Makes one sample of a task alone, and throws it away: does it kill? False if the task cannot be
        taken apart: then it is done as a whole."""

    def resume(self, body: bytes) -> None:
        """A new epoch begins."""

    def where(self) -> tuple[int | None, str]:
        """The position in the batch and the stage at which an exception was raised."""

    def journal(self) -> bytes | None:
        """What a replacement needs to go on from here."""

    def recall(self, journal: bytes | None) -> None:
        """Goes on where a predecessor was."""

    def blamed(self, result: Any) -> tuple[str, object]:
        """What a result is called, and the part of it that the user has made, when it cannot be pickled."""


class Work(Protocol):
    """What the zygote holds: everything that workers need."""

    worker_count: int
    # Whether what has no name that the trainer knows may be sent by value.
    values: bool

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> Worker:
        """In the worker, once."""


def run(work: Work, worker_id: int, generation: int, descriptors: tuple[int, ...], trainer: int) -> None:
    """The whole life of a worker."""
    socket, arena, boxes, log, *inbox = descriptors
    connection = _native.WorkerConnection(
        worker_id, generation, work.worker_count, (socket, arena, boxes), *inbox
    )
    crash_log = _CrashLog(log)
    _native.go_first()
    # As one of multiprocessing's own: current_process() tells of a daemon, what the parent wanted to be
    # done at its exit is forgotten, standard input is closed.
    process = multiprocessing.Process(
        target=_live,
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
    """Has the stack written into memory that outlives this process: when it crashes, and when the trainer
    asks for it. The handler is C code: it needs neither the lock of the interpreter nor its help."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = os.fstat(descriptor)
        faulthandler.enable(descriptor)
        faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True, chain=False)
        # What a child of this process does when it crashes is no part of the worker's end.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Writes nothing from now on. A stack that is asked for is ignored again, as it was in the zygote."""
        faulthandler.disable()
        faulthandler.unregister(DUMP_SIGNAL)

    def look(self) -> None:
        """Forgets a descriptor that the user's code has closed: a stack must not go to a file that was opened
        under its number."""
        try:
            is_there = os.path.samestat(os.fstat(self._descriptor), self._file)
        except OSError:
            is_there = False
        if not is_there:
            self.forget()


def _live(
    work: Work,
    worker_id: int,
    generation: int,
    connection: _native.WorkerConnection,
    crash_log: _CrashLog,
    trainer: int,
) -> None:
    try:
        is_abandoned = _work(work, worker_id, generation, connection, crash_log)
    except BaseException as raised:
        if connection.is_left:
            end_child(f"worker {worker_id}", raised)
        if isinstance(raised, _native.CutOff):
            crash_log.look()
            sys.exit(_CUT_OFF)
        # The trainer is gone: nobody is there to be told.
        if not isinstance(raised, BrokenPipeError):
            raise
        is_abandoned = True
    if is_abandoned:
        _end_zygote_without(trainer)


def _end_zygote_without(trainer: int) -> None:
    """Kills a zygote whose trainer is gone and that does not notice it, because it hangs or is stopped. A
    healthy one ends by itself, and this process with it."""
    zygote = os.getppid()
    time.sleep(_ZYGOTE_ENDS)
    if _has_ended(trainer) and os.getppid() == zygote:
        os.kill(zygote, signal.SIGKILL)


def _has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return True
    # Nobody has asked how it ended.
    return state in "ZX"


def _work(
    work: Work, worker_id: int, generation: int, connection: _native.WorkerConnection, crash_log: _CrashLog
) -> bool:
    """Whether the trainer is gone; else it has said that there is nothing more to do, or the worker could not
    start."""
    plain = Packer({}, values=work.values)
    try:
        worker = work.start(worker_id, connection)
    except BaseException as raised:
        if connection.is_left or isinstance(raised, _native.CutOff):
            raise
        connection.pack(START_FAILED, 0, plain.pack(RemoteError.of(raised, exact=True)))
        connection.send()
        return False
    packer = Packer(worker.reducers, values=work.values)
    connection.pack(READY, 0, [])
    connection.send()
    is_new = True
    while True:
        connection.enter(WAITING)
        order: _Order | None = connection.receive()
        if order is None or order[0] == _STOP:
            return order is None
        succeeds = is_new and generation > 0
        if order[0] != _TRIAL or not _try_alone(connection, worker, order, succeeds=succeeds):
            _answer(connection, worker, packer, order, succeeds=succeeds)
            is_new = False
        # What came with it is the trainer's again.
        order = None
        crash_log.look()


def _try_alone(
    connection: _native.WorkerConnection, worker: Worker, order: _Order, *, succeeds: bool
) -> bool:
    """Whether a trial was survived; if there is none to be made, the task itself is to be done."""
    _, task, position, body, received = order
    assert position is not None
    connection.begin(task)
    connection.reach(position)
    if succeeds:
        worker.recall(connection.recall(task))
    before = worker.journal()
    try:
        is_over = worker.alone(body, received, position)
    except Exception:
        if connection.is_left:
            raise
        # What it raises, it raises again when its batch is made.
        is_over = True
    if is_over and before is not None:
        # As if it had not been: the batch draws the random numbers that the trial has drawn.
        worker.recall(before)
    if is_over:
        connection.pack(_SURVIVED, task, [])
        connection.send()
    return is_over


def _answer(
    connection: _native.WorkerConnection,
    worker: Worker,
    packer: Packer,
    order: _Order,
    *,
    succeeds: bool,
) -> None:
    said, task, _, body, received = order
    buffers: list[Any]
    kind = RESULT
    connection.begin(task)
    try:
        if succeeds:
            worker.recall(connection.recall(task))
        if said == _RESUME:
            worker.resume(body)
            result: object = None
        else:
            result = worker.do(task, body, received)
    except BaseException as raised:
        if connection.is_left or isinstance(raised, _native.CutOff):
            # A child that was forked in the user's code: what it raises says nothing of the sample. Or nobody
            # can be told any more.
            raise
        position, stage = worker.where()
        kind, result = RAISED, RemoteError.of(raised, position=position, stage=stage, exact=True)
    if result is EXHAUSTED:
        kind, result = _EXHAUSTED, None
    elif isinstance(result, FaultyResult):
        kind = _FAULTY
    connection.enter(ANSWERING)
    try:
        buffers = packer.pack(result)
    except ERRORS as raised:
        name, blamed = worker.blamed(result)
        error = not_picklable(blamed, name, raised, packer.pack)
        kind, buffers = RAISED, packer.pack(RemoteError.of(error, stage="answering", exact=True))
    connection.pack(kind, task, buffers)
    # Before the answer leaves: what it lies in is the trainer's from then on.
    del result
    buffers.clear()
    note = worker.journal()
    if note is not None:
        connection.journal(task, note)
    connection.weigh()
    connection.send()
