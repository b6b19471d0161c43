"""Sends descriptors to a worker with the arguments of a call: connections and sockets.

The server of multiprocessing sends a descriptor to a process that requests it, once. A call is sent again
when its worker dies, so here a descriptor can be requested until the call has its result.
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
    """Copies of the descriptors of one call, open until `release`."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """Reducers for types with a descriptor."""
        return {Connection: self._reduce_connection, socket.socket: self._reduce_socket}

    def release(self) -> None:
        """Closes the copies; they cannot be requested any more."""
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.release()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def _register(self, descriptor: int) -> _DescriptorRequest:
        entry = _Entry(os.dup(descriptor))
        self._entries.append(entry)
        return _DescriptorRequest(entry.name)

    def _reduce_connection(self, connection: Connection[Any, Any]) -> Any:
        return rebuild_connection, (
            self._register(connection.fileno()),
            connection.readable,
            connection.writable,
        )

    def _reduce_socket(self, sent: socket.socket) -> Any:
        return _rebuild_socket, (self._register(sent.fileno()), sent.family, sent.type, sent.proto)


class _Entry:
    """A descriptor that is registered with the server of multiprocessing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_released = False
        # The address of the server and a number.
        self.name: tuple[Any, int] = _SERVER.register(self._send, self._register_again)

    def _send(self, connection: Any, process: int) -> None:
        reduction.send_handle(connection, self._descriptor, process)

    def _register_again(self) -> None:
        """The server removes an entry once a process has requested it."""
        with _SERVER._lock:
            if not self._is_released:
                _SERVER._cache[self.name[1]] = (self._send, self._register_again)

    def release(self) -> None:
        with _SERVER._lock:
            self._is_released = True
            _SERVER._cache.pop(self.name[1], None)
        os.close(self._descriptor)


class _DescriptorRequest:
    """A placeholder for a descriptor in a pickle."""

    def __init__(self, name: tuple[Any, int]) -> None:
        self._name = name

    def detach(self) -> int:
        """Requests the descriptor, and returns it as it is in this process."""
        with _SERVER.get_connection(self._name) as connection:
            return reduction.recv_handle(connection)


def _rebuild_socket(request: _DescriptorRequest, family: int, kind: int, protocol: int) -> socket.socket:
    return socket.socket(family, kind, protocol, fileno=request.detach())
