"""What runs in a worker process: takes tasks, works, answers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from feedline import _native
from feedline._workers.pickling import ERRORS, Packer, not_picklable
from feedline._workers.trouble import Trouble

__all__ = ["EXHAUSTED", "Work", "Worker", "run"]

# What a worker answers, and what it is at: the order is that of crates/feedline-py/src/station.rs.
READY, START_FAILED, RESULT, RAISED, _EXHAUSTED = range(5)
STARTING, WAITING, FETCHING, COLLATING, ANSWERING = range(5)
_TASK, _RESUME, _STOP = range(3)

# Returned by a task when there is nothing more.
EXHAUSTED = object()


class Worker(Protocol):
    """What works, in one process."""

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """How pickle takes some types apart."""

    def do(self, task: int, body: bytes) -> object:
        """The result of a task."""

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


def run(work: Work, post: int, generation: int, descriptors: tuple[int, ...]) -> None:
    """The whole life of a worker."""
    station = _native.Station(post, generation, work.posts, descriptors)
    # As one of multiprocessing's own: current_process() tells of a daemon, what the parent wanted to be
    # done at its exit is forgotten, standard input is closed.
    process = multiprocessing.Process(
        target=_live, args=(work, post, generation, station), name=f"feedline-worker-{post}", daemon=True
    )
    code = process._bootstrap(parent_sentinel=None)  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _live(work: Work, post: int, generation: int, station: _native.Station) -> None:
    # The trainer is gone: nobody is there to be told.
    with contextlib.suppress(BrokenPipeError):
        _work(work, post, generation, station)


def _work(work: Work, post: int, generation: int, station: _native.Station) -> None:
    plain = Packer({}, values=work.values)
    try:
        worker = work.start(post, station)
    except BaseException as raised:
        station.pack(START_FAILED, 0, plain.pack(Trouble.of(raised)))
        return station.send()
    packer = Packer(worker.reducers, values=work.values)
    station.pack(READY, 0, [])
    station.send()
    is_new = True
    while True:
        station.enter(WAITING)
        frame = station.receive()
        if frame is None or frame[0] == _STOP:
            return None
        _answer(station, worker, packer, frame, succeeds=is_new and generation > 0)
        is_new = False


def _answer(
    station: _native.Station,
    worker: Worker,
    packer: Packer,
    frame: tuple[int, int, bytes],
    *,
    succeeds: bool,
) -> None:
    said, task, body = frame
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
            result = worker.do(task, body)
    except BaseException as raised:
        position, stage = worker.where()
        kind, result = RAISED, Trouble.of(raised, position=position, stage=stage)
    if result is EXHAUSTED:
        kind, result = _EXHAUSTED, None
    station.enter(ANSWERING)
    try:
        buffers = packer.pack(result)
    except ERRORS as raised:
        name, blamed = worker.blamed(result)
        error = not_picklable(blamed, name, raised, packer.pack)
        kind, buffers = RAISED, packer.pack(Trouble.of(error, stage="answering"))
    station.pack(kind, task, buffers)
    # Before the answer leaves: what it lies in is the trainer's from then on.
    del result
    buffers.clear()
    note = worker.journal()
    if note is not None:
        station.journal(task, note)
    station.weigh()
    station.send()
