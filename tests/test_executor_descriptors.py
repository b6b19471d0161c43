"""Connections and sockets among the arguments of calls."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
from feedline.errors import NotPicklableError
from programs import descriptors

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]


def say(connection: Connection[Any, Any], what: str) -> int:
    connection.send((what, connection.readable, connection.writable))
    return os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_connection_that_is_an_argument_arrives(method: str) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with fl.Executor(workers=1, mp_context=method) as pool:
        worker = pool.submit(say, theirs, "hello").result()
        assert worker != os.getpid()
        assert ours.recv() == ("hello", False, True)
        # This process still has its own copy.
        theirs.send("and here")
        assert ours.recv() == "and here"


def say_at_the_second_try(connection: Connection[Any, Any], marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    connection.send("made again")
    return "done"


def test_a_connection_arrives_again_when_its_worker_has_died(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    with fl.Executor(workers=2) as pool:
        future = pool.submit(say_at_the_second_try, theirs, tmp_path / "died")
        assert future.result() == "done"
        assert len(pool.deaths) == 1
        assert ours.recv() == "made again"


def shout(one: socket.socket) -> tuple[int, int]:
    one.sendall(b"HELLO")
    return one.family, one.type


def test_a_socket_that_is_an_argument_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, fl.Executor(workers=1) as pool:
        assert pool.submit(shout, theirs).result() == (theirs.family, theirs.type)
        assert ours.recv(5) == b"HELLO"


def test_connections_inside_other_arguments_and_in_map_arrive() -> None:
    pairs = [multiprocessing.Pipe() for _ in range(6)]
    with fl.Executor(workers=2) as pool:
        ends = [theirs for _, theirs in pairs]
        list(pool.map(say, ends, map(str, range(6)), chunksize=2))
        assert [ours.recv()[0] for ours, _ in pairs] == list("012345")
        (ours, theirs), *_ = pairs
        assert pool.submit(lambda given: given["it"].send("inside"), {"it": theirs}).result() is None
        assert ours.recv() == "inside"


def nothing(*_: object) -> None:
    pass


def test_descriptors_of_calls_do_not_pile_up() -> None:
    _, theirs = multiprocessing.Pipe()
    with fl.Executor(workers=1) as pool:
        pool.submit(nothing, theirs).result()
        before = descriptors()
        for _ in range(30):
            pool.submit(nothing, theirs).result()
        futures = [pool.submit(nothing, theirs) for _ in range(30)]
        for future in futures:
            future.cancel()
        with pytest.raises(NotPicklableError):
            pool.submit(nothing, theirs, multiprocessing.Lock())
        pool.submit(nothing).result()
        assert descriptors() <= before
    with pytest.raises(RuntimeError):
        pool.submit(nothing, theirs)


@pytest.mark.parametrize("make", [multiprocessing.Lock, multiprocessing.Queue], ids=["Lock", "Queue"])
def test_arguments_that_can_only_be_inherited_are_refused_and_named(make: Any) -> None:
    _, theirs = multiprocessing.Pipe()
    with fl.Executor(workers=1) as pool:
        with pytest.raises(NotPicklableError, match=r"arguments\[1\]") as refused:
            pool.submit(nothing, theirs, make())
        assert "initargs=" in str(refused.value)


def give_back(connection: Connection[Any, Any]) -> Connection[Any, Any]:
    return connection


def test_a_connection_that_is_a_result_is_refused() -> None:
    _, theirs = multiprocessing.Pipe()
    with fl.Executor(workers=1) as pool, pytest.raises(NotPicklableError, match="Connection"):
        pool.submit(give_back, theirs).result()
