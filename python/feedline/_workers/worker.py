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
from feedline._workers.tries import Faulty
from feedline._workers.trouble import Trouble
from feedline._workers.zygote import DUMP_SIGNAL

__all__ = ["EXHAUSTED", "Letters", "Work", "Worker", "run"]

# With which a worker ends that finds its connection to the trainer closed; its box tells the trainer why.
_CUT_OFF = 1

# What a worker answers, and what it is at: the order is that of crates/feedline-py/src/station.rs.
READY, START_FAILED, RESULT, RAISED, _EXHAUSTED, _SURVIVED, _FAULTY = range(7)
STARTING, WAITING, FETCHING, COLLATING, ANSWERING, PAUSING = range(6)
_TASK, _RESUME, _STOP, _TRIAL = range(4)

Letters = list[_native.Letter]
# What it is, the task, the sample that is tried alone, the task in words, and the buffers beside it.
_Order = tuple[int, int, int | None, bytes, Letters]

# How long a zygote may take to end after its trainer, in seconds.
_ZYGOTE_ENDS = 1.0
# Returned by a task when there is nothing more.
EXHAUSTED = object()


class Worker(Protocol):
    """What works, in one process."""

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """How pickle takes some types apart."""

    def do(self, task: int, body: bytes, letters: Letters) -> object:
        """The result of a task; `letters` are the buffers that came with it."""

    def alone(self, body: bytes, letters: Letters, position: int) -> bool:
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

    posts: int
    # Whether what has no name that the trainer knows may be sent by value.
    values: bool

    def start(self, post: int, station: _native.Station) -> Worker:
        """In the worker, once."""


def run(work: Work, post: int, generation: int, descriptors: tuple[int, ...], trainer: int) -> None:
    """The whole life of a worker."""
    socket, arena, boxes, words, *inbox = descriptors
    station = _native.Station(post, generation, work.posts, (socket, arena, boxes), *inbox)
    last_words = _LastWords(words)
    _native.go_first()
    # As one of multiprocessing's own: current_process() tells of a daemon, what the parent wanted to be
    # done at its exit is forgotten, standard input is closed.
    process = multiprocessing.Process(
        target=_live,
        args=(work, post, generation, station, last_words, trainer),
        name=f"feedline-worker-{post}",
        daemon=True,
    )
    code = process._bootstrap(parent_sentinel=None)  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _LastWords:
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
    work: Work, post: int, generation: int, station: _native.Station, last_words: _LastWords, trainer: int
) -> None:
    try:
        is_abandoned = _work(work, post, generation, station, last_words)
    except BaseException as raised:
        if station.is_left:
            end_child(f"worker {post}", raised)
        if isinstance(raised, _native.CutOff):
            last_words.look()
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


def _work(work: Work, post: int, generation: int, station: _native.Station, last_words: _LastWords) -> bool:
    """Whether the trainer is gone; else it has said that there is nothing more to do, or the worker could not
    start."""
    plain = Packer({}, values=work.values)
    try:
        worker = work.start(post, station)
    except BaseException as raised:
        if station.is_left or isinstance(raised, _native.CutOff):
            raise
        station.pack(START_FAILED, 0, plain.pack(Trouble.of(raised, exact=True)))
        station.send()
        return False
    packer = Packer(worker.reducers, values=work.values)
    station.pack(READY, 0, [])
    station.send()
    is_new = True
    while True:
        station.enter(WAITING)
        order: _Order | None = station.receive()
        if order is None or order[0] == _STOP:
            return order is None
        succeeds = is_new and generation > 0
        if order[0] != _TRIAL or not _try_alone(station, worker, order, succeeds=succeeds):
            _answer(station, worker, packer, order, succeeds=succeeds)
            is_new = False
        # What came with it is the trainer's again.
        order = None
        last_words.look()


def _try_alone(station: _native.Station, worker: Worker, order: _Order, *, succeeds: bool) -> bool:
    """Whether a trial was survived; if there is none to be made, the task itself is to be done."""
    _, task, position, body, letters = order
    assert position is not None
    station.begin(task)
    station.reach(position)
    if succeeds:
        worker.recall(station.recall(task))
    before = worker.journal()
    try:
        is_over = worker.alone(body, letters, position)
    except Exception:
        if station.is_left:
            raise
        # What it raises, it raises again when its batch is made.
        is_over = True
    if is_over and before is not None:
        # As if it had not been: the batch draws the random numbers that the trial has drawn.
        worker.recall(before)
    if is_over:
        station.pack(_SURVIVED, task, [])
        station.send()
    return is_over


def _answer(
    station: _native.Station,
    worker: Worker,
    packer: Packer,
    order: _Order,
    *,
    succeeds: bool,
) -> None:
    said, task, _, body, letters = order
    buffers: list[Any]
    kind = RESULT
    station.begin(task)
    try:
        if succeeds:
            worker.recall(station.recall(task))
        if said == _RESUME:
            worker.resume(body)
            result: object = None
        else:
            result = worker.do(task, body, letters)
    except BaseException as raised:
        if station.is_left or isinstance(raised, _native.CutOff):
            # A child that was forked in the user's code: what it raises says nothing of the sample. Or nobody
            # can be told any more.
            raise
        position, stage = worker.where()
        kind, result = RAISED, Trouble.of(raised, position=position, stage=stage, exact=True)
    if result is EXHAUSTED:
        kind, result = _EXHAUSTED, None
    elif isinstance(result, Faulty):
        kind = _FAULTY
    station.enter(ANSWERING)
    try:
        buffers = packer.pack(result)
    except ERRORS as raised:
        name, blamed = worker.blamed(result)
        error = not_picklable(blamed, name, raised, packer.pack)
        kind, buffers = RAISED, packer.pack(Trouble.of(error, stage="answering", exact=True))
    station.pack(kind, task, buffers)
    # Before the answer leaves: what it lies in is the trainer's from then on.
    del result
    buffers.clear()
    note = worker.journal()
    if note is not None:
        station.journal(task, note)
    station.weigh()
    station.send()
