"""The zygote: a small process with a single thread that holds the work and forks workers on demand.

It is a fork of the trainer, with everything that the trainer has, or a fresh interpreter to which the work is
sent. It reaps its workers and reports how each ended. When the trainer ends, for whatever reason, the zygote
ends too, and the kernel kills its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from feedline import _native
from feedline._workers.library_threads import share_processors
from feedline._workers.pickling import Payload

__all__ = ["DUMP_SIGNAL", "Zygote"]

# Requests of the trainer, and reports to it; crates/feedline-core/src/worker/zygote.rs has the same numbers.
_FORK, _KILL, _LOAD, _DUMP, _CARRY, _PING = 1, 2, 3, 4, 5, 6
_READY, _FORKED, _REFUSED, _ENDED, _FAILED, _ALIVE = 1, 2, 3, 4, 5, 6
_HEAD = struct.Struct("<IIIi")
# Descriptors in one packet; the kernel passes at most 253.
_MOST_CARRIED = 250
# Makes a worker write its stack. Programs rarely use this signal.
DUMP_SIGNAL = signal.SIGRTMIN + 7
# Seconds between two checks of the workers on a kernel without pidfd.
_POLL_SECONDS = 0.02
# Seconds that a zygote may take to end before it is killed.
_END_SECONDS = 0.5

Work = Any


class Zygote:
    """The trainer's side of one zygote."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        # The bare descriptor: a socket object that is collected without being closed warns.
        self._channel: int | None = channel.detach()
        self._sent: bytes | None = None
        self._home = os.getpid()
        self._is_ended = False
        _started.add(self)

    @classmethod
    def by_fork(cls, work: Work) -> Zygote:
        """Forks this process: nothing is pickled."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer, dies_along = os.getpid(), _is_main_thread()
        for stream in (sys.stdout, sys.stderr):
            # Otherwise both processes would write the content of the buffers.
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _run_and_exit(lambda: _serve_fork(ours, theirs, work, trainer, dies_along=dies_along))
        theirs.close()
        return cls(pid, ours)

    @classmethod
    def by_spawn(cls) -> Zygote:
        """Starts a fresh interpreter, without work yet."""
        from multiprocessing import util

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = f"{theirs.fileno()}, {os.getpid()}, dies_along={_is_main_thread()}"
        program = f"from feedline._workers.zygote import serve; serve({arguments})"
        flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [os.fsencode(argument) for argument in (sys.executable, *flags, "-c", program)]
        try:
            # As multiprocessing does: a Popen object that is collected before its process ends warns.
            pid = util.spawnv_passfds(command[0], command, [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(pid, ours)

    def load(self, payload: Payload, worker_count: int) -> bool:
        """Sends the work. False if the zygote already has the same work."""
        if self._sent == payload.pickled:
            return False
        assert self._channel is not None
        channel = socket.socket(fileno=self._channel)
        tracker = _tracker()
        context = pickle.dumps(
            {
                "path": sys.path,
                "folder": str(Path.cwd()),
                "arguments": sys.argv,
                "key": bytes(multiprocessing.current_process().authkey),
                "has_tracker": bool(tracker),
                "worker_count": worker_count,
            }
        )
        carried = payload.descriptors + tracker
        with os.fdopen(os.memfd_create("feedline-work"), "wb") as file:
            file.write(len(context).to_bytes(8, "little") + context + payload.pickled)
            file.flush()
            try:
                for start in range(0, len(carried), _MOST_CARRIED):
                    some = carried[start : start + _MOST_CARRIED]
                    socket.send_fds(channel, [_HEAD.pack(_CARRY, 0, 0, 0)], some)
                socket.send_fds(channel, [_HEAD.pack(_LOAD, 0, 0, 0)], [file.fileno()])
            finally:
                channel.detach()
        self._sent = payload.pickled
        return True

    def lend(self) -> int:
        """Lends the descriptor of the channel to the supervisor of the workers."""
        assert self._channel is not None
        channel, self._channel = self._channel, None
        return channel

    def take_back(self, descriptor: int | None) -> None:
        """Takes the descriptor back; None if the zygote is gone."""
        self._channel = descriptor

    @property
    def is_usable(self) -> bool:
        return self._channel is not None

    def end(self) -> None:
        """Ends the zygote, and waits until it has ended."""
        if self._is_ended or self._home != os.getpid():
            return
        self._is_ended = True
        if self._channel is not None:
            # Closing alone does not reach the other side while a fork of the trainer has a copy.
            with socket.socket(fileno=self._channel) as channel, contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            self._channel = None
        until = time.monotonic() + _END_SECONDS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > until:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.0005)


_started: weakref.WeakSet[Zygote] = weakref.WeakSet()


def _end_all() -> None:
    """Ends all zygotes at exit, while the modules that this needs still exist: a loader may keep a zygote for
    its next epoch until then."""
    for zygote in list(_started):
        if zygote.is_usable:
            zygote.end()


atexit.register(_end_all)


def _tracker() -> list[int]:
    """The descriptor of the resource tracker, which removes named semaphores and shared memory at exit, if it
    runs. A zygote with a tracker of its own would remove them when it ends, while they are in use here."""
    descriptor = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]
    return [] if descriptor is None else [descriptor]


def _is_main_thread() -> bool:
    """Whether the zygote may ask the kernel to kill it when the thread that starts it ends: a thread other
    than the main thread may end while the program continues."""
    return threading.current_thread() is threading.main_thread()


def serve(descriptor: int, trainer: int, *, dies_along: bool) -> NoReturn:
    """Runs a zygote in a fresh interpreter until it ends."""
    channel = socket.socket(fileno=descriptor)
    _run_and_exit(lambda: _serve(channel, None, trainer, dies_along=dies_along))


def _serve_fork(
    ours: socket.socket, theirs: socket.socket, work: Work, trainer: int, *, dies_along: bool
) -> None:
    ours.close()
    _serve(theirs, work, trainer, dies_along=dies_along)


def _serve(channel: socket.socket, work: Work | None, trainer: int, *, dies_along: bool) -> None:
    # The kernel must do this, since a zygote that hangs or is stopped does not notice that the trainer is
    # gone.
    if dies_along and not _native.die_with_parent(trainer):
        return
    _ZygoteProcess(channel, work, trainer).run()


class _TrainerGoneError(Exception):
    """The trainer has closed the channel."""


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Runs a forked process to its end; it must never return to the callers on its stack."""
    code = 1
    try:
        run()
        code = 0
    except _TrainerGoneError:
        # The trainer ended first, which is not an error.
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ignore(_number: int, _frame: object) -> None:
    """Ignores Ctrl-C, which reaches all processes of a terminal: the trainer decides. Not SIG_IGN, which
    programs that a data set starts would inherit."""


def _use_tracker(descriptor: int) -> None:
    tracker: Any = resource_tracker._resource_tracker
    if tracker._fd is None:
        tracker._fd = descriptor
    else:
        os.close(descriptor)


class _ZygoteProcess:
    """The zygote's own side."""

    def __init__(self, channel: socket.socket, work: Work | None, trainer: int) -> None:
        self._channel = channel
        self._work = work
        # Descriptors of the work that is sent next.
        self._carried: list[int] = []
        self._workers: dict[int, tuple[int, int, int | None]] = {}
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._trainer: int | None = None
        self._trainer_pid = trainer
        self._settle()

    def _settle(self) -> None:
        _native.restore_handlers()
        torch = sys.modules.get("torch")
        if torch is not None:
            # Before anything else: a fork does not have the threads of OpenMP, and would wait for them for
            # ever.
            torch.set_num_threads(1)
        if self._work is not None:
            share_processors(self._work.worker_count, is_nested=True)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, _ignore)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # A request for its stack must not kill a worker that cannot write one yet.
        signal.signal(DUMP_SIGNAL, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            self._trainer = os.pidfd_open(self._trainer_pid)
            self._poll.register(self._trainer, select.POLLIN)

    def run(self) -> None:
        if self._work is not None:
            self._report_ready()
        while True:
            waits = self._trainer is not None and all(
                watched is not None for *_, watched in self._workers.values()
            )
            events = self._poll.poll(None if waits else _POLL_SECONDS * 1000)
            if os.getppid() != self._trainer_pid or self._trainer in [fd for fd, _ in events]:
                return
            self._reap()
            for descriptor, _ in events:
                if descriptor == self._channel.fileno() and not self._handle_request():
                    return

    def _report(self, kind: int, worker_id: int, generation: int, value: int, text: bytes = b"") -> None:
        try:
            self._channel.send(_HEAD.pack(kind, worker_id, generation, value) + text)
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise _TrainerGoneError from gone

    def _report_ready(self) -> None:
        # All objects are shared with the workers; the collector would write to their memory, which copies it.
        gc.freeze()
        self._report(_READY, 0, 0, 0)

    def _handle_request(self) -> bool:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._channel, 64, _MOST_CARRIED)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        kind, worker_id, generation, _ = _HEAD.unpack(packet)
        if kind == _FORK:
            self._fork(worker_id, generation, tuple(descriptors))
        elif kind == _KILL:
            for pid, worker in self._workers.items():
                if worker[:2] == (worker_id, generation):
                    os.kill(pid, signal.SIGKILL)
        elif kind == _DUMP:
            for pid, worker in self._workers.items():
                if worker[:2] == (worker_id, generation):
                    os.kill(pid, DUMP_SIGNAL)
        elif kind == _PING:
            self._report(_ALIVE, worker_id, 0, 0)
        elif kind == _CARRY:
            self._carried += descriptors
        elif kind == _LOAD:
            return self._load(descriptors[0])
        return True

    def _load(self, descriptor: int) -> bool:
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            content = memoryview(file.read())
        length = int.from_bytes(content[:8], "little")
        context = pickle.loads(content[8 : 8 + length])
        try:
            sys.path[:] = context["path"]
            sys.argv[:] = context["arguments"]
            os.chdir(context["folder"])
            multiprocessing.current_process().authkey = context["key"]
            carried, self._carried = self._carried, []
            if context["has_tracker"]:
                _use_tracker(carried.pop())
            # Before the work, which imports libraries.
            share_processors(context["worker_count"], is_nested=False)
            self._work = None
            gc.unfreeze()
            self._work = Payload.open(content[8 + length :], carried)
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.set_num_threads(1)
        except BaseException:
            self._report(_FAILED, 0, 0, 0, traceback.format_exc().encode()[-60000:])
            return False
        self._report_ready()
        return True

    def _fork(self, worker_id: int, generation: int, descriptors: tuple[int, ...]) -> None:
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as refusal:
            self._report(_REFUSED, worker_id, generation, refusal.errno or 0)
        else:
            if pid == 0:
                _run_and_exit(lambda: self._become_worker(zygote, worker_id, generation, descriptors))
            self._report(_FORKED, worker_id, generation, pid)
            watched: int | None = None
            with contextlib.suppress(OSError):
                watched = os.pidfd_open(pid)
                self._poll.register(watched, select.POLLIN)
            self._workers[pid] = (worker_id, generation, watched)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _become_worker(
        self, zygote: int, worker_id: int, generation: int, descriptors: tuple[int, ...]
    ) -> None:
        if not _native.die_with_parent(zygote):
            return
        self._channel.close()
        for *_, watched in [*self._workers.values(), (self._trainer,)]:
            if watched is not None:
                os.close(watched)
        from feedline._workers.worker import run

        assert self._work is not None
        run(self._work, worker_id, generation, descriptors, self._trainer_pid)

    def _reap(self) -> None:
        for pid, (worker_id, generation, watched) in list(self._workers.items()):
            peak = 0
            try:
                ended, status, used = os.wait4(pid, os.WNOHANG)
                peak = used.ru_maxrss << 10
            except ChildProcessError:
                ended, status = pid, 0
            if ended == 0:
                continue
            del self._workers[pid]
            if watched is not None:
                self._poll.unregister(watched)
                os.close(watched)
            code = os.waitstatus_to_exitcode(status)
            self._report(_ENDED, worker_id, generation, code, peak.to_bytes(8, "little"))
