"""Descriptors that go to a worker with the arguments of a call: connections and sockets.

The server of multiprocessing hands a descriptor to a process that asks for it, once. A call is sent again
when its worker dies, so here a descriptor can be asked for until the call has its result.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from multiprocessing import reduction, resource_sharer
from multiprocessing.connection import Connection, rebuild_connection  # type: ignore[attr-defined]
from typing import Any

__all__ = ["SentDescriptors"]

_SERVER: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]


class SentDescriptors:
    """The descriptors of one call; they are copies, and ours until `release`."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """How pickle takes apart what has a descriptor."""
        return {Connection: self._reduce_connection, socket.socket: self._reduce_socket}

    def release(self) -> None:
        """Nobody can ask for them any more."""
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.release()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def _lend(self, descriptor: int) -> _Borrowed:
        entry = _Entry(os.dup(descriptor))
        self._entries.append(entry)
        return _Borrowed(entry.name)

    def _reduce_connection(self, one: Connection[Any, Any]) -> Any:
        return rebuild_connection, (self._lend(one.fileno()), one.readable, one.writable)

    def _reduce_socket(self, one: socket.socket) -> Any:
        return _rebuild_socket, (self._lend(one.fileno()), one.family, one.type, one.proto)


class _Entry:
    """A descriptor that the server of multiprocessing knows by a name."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_released = False
        # An address and a number.
        self.name: tuple[Any, int] = _SERVER.register(self._send, self._put_back)

    def _send(self, connection: Any, process: int) -> None:
        reduction.send_handle(connection, self._descriptor, process)

    def _put_back(self) -> None:
        """The server has forgotten it, because a process has asked for it."""
        with _SERVER._lock:
            if not self._is_released:
                _SERVER._cache[self.name[1]] = (self._send, self._put_back)

    def release(self) -> None:
        with _SERVER._lock:
            self._is_released = True
            _SERVER._cache.pop(self.name[1], None)
        os.close(self._descriptor)


class _Borrowed:
    """Stands for a descriptor in a pickle."""

    def __init__(self, name: tuple[Any, int]) -> None:
        self._name = name

    def detach(self) -> int:
        """The descriptor in this process."""
        with _SERVER.get_connection(self._name) as connection:
            return reduction.recv_handle(connection)


def _rebuild_socket(borrowed: _Borrowed, family: int, kind: int, protocol: int) -> socket.socket:
    return socket.socket(family, kind, protocol, fileno=borrowed.detach())
