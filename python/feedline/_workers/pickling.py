"""Pickles objects for other processes, and finds the part of an object that cannot be pickled."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from feedline.errors import NotPicklableError

__all__ = ["ERRORS", "Packer", "Payload", "by_name", "by_value", "not_picklable"]

# What pickling may raise: it calls methods of user classes, so any exception.
ERRORS = (Exception,)
# Limits of the search for the part that cannot be pickled: its depth, and the number of parts.
_DEPTH = 12
_MOST_PARTS = 2000


class Packer:
    """Pickles with protocol 5: large buffers are not copied into the pickle."""

    def __init__(self, reducers: dict[type, Callable[[Any], Any]], *, values: bool) -> None:
        """With `values`, what cannot be pickled by name, such as a class of `__main__`, is pickled by
        value."""
        self._table = {**copyreg.dispatch_table, **_rejecting_reducers(), **reducers}
        self._values = values

    def pack(self, value: object) -> list[Any]:
        """The pickle, followed by its buffers."""
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        pickler = pickle.Pickler(written, protocol=5, buffer_callback=buffers.append)
        pickler.dispatch_table = self._table
        try:
            pickler.dump(value)
        except ERRORS:
            if not self._values:
                raise
            return self._pack_values(value)
        return [written.getbuffer(), *(buffer.raw() for buffer in buffers)]

    def _pack_values(self, value: object) -> list[Any]:
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        pickler = _value_pickler()(written, self._table, protocol=5, buffer_callback=buffers.append)
        pickler.dump(value)
        return [written.getbuffer(), *(buffer.raw() for buffer in buffers)]


Reducers = dict[type, Callable[[Any], Any]]


def by_value(value: object, reducers: Reducers | None = None) -> bytes:
    """A pickle that every other process can read, including classes of `__main__`. Rejects objects with a
    file descriptor, unless there is one of the `reducers` for them: its number is meaningless in another
    process."""
    return _pickled(
        value, {**_forking_reducers(), **_storages(), **_rejecting_reducers(), **(reducers or {})}
    )


def by_name(value: object, reducers: Reducers | None = None) -> bytes:
    """A plain pickle, which is fast; rejects descriptors as `by_value` does."""
    written = io.BytesIO()
    pickler = pickle.Pickler(written, protocol=5)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        **_storages(),
        **_rejecting_reducers(),
        **(reducers or {}),
    }
    pickler.dump(value)
    return written.getvalue()


class Payload:
    """A pickle for a process that is being started, with the file descriptors that it refers to. It owns
    copies of them, so that it can be sent more than once."""

    def __init__(self, pickled: bytes, descriptors: list[int]) -> None:
        self.pickled = pickled
        self.descriptors = descriptors

    @classmethod
    def of(cls, value: object) -> Payload:
        """Pickles all that `by_value` takes, and objects that a process can inherit from multiprocessing:
        locks, events, queues, pipes, shared values; and tensors in shared memory."""
        from multiprocessing import context

        started = context.get_spawning_popen()
        inherited = _Inherited()
        context.set_spawning_popen(inherited)  # type: ignore[arg-type]
        try:
            pickled = _pickled(value, {**_forking_reducers(), **_storages(), **_shared_tensors()})
        except BaseException:
            cls(b"", inherited.descriptors)
            raise
        finally:
            context.set_spawning_popen(started)
        return cls(pickled, inherited.descriptors)

    @staticmethod
    def open(pickled: Any, descriptors: list[int]) -> Any:
        """Unpickles a payload in the process that received it."""
        _received.clear()
        _received.update(enumerate(descriptors))
        try:
            return pickle.loads(pickled)
        finally:
            for descriptor in _received.values():
                os.close(descriptor)
            _received.clear()

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


# Descriptors of the payload that is being opened, by number.
_received: dict[int, int] = {}


class _Descriptor:
    """A placeholder for a descriptor in a pickle."""

    def __init__(self, number: int) -> None:
        self._number = number
        # Device and inode, so that payloads with different files have different pickles.
        self._file = (0, 0)

    def detach(self) -> int:
        """The descriptor in this process; can be called once."""
        return _received.pop(self._number)


class _Inherited:
    """Collects descriptors, in the role of multiprocessing's Popen object of the new process."""

    DupFd = staticmethod(lambda descriptor: descriptor)

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> _Descriptor:
        found = os.fstat(descriptor)
        placeholder = _Descriptor(len(self.descriptors))
        placeholder._file = (found.st_dev, found.st_ino)
        self.descriptors.append(os.dup(descriptor))
        return placeholder


def _pickled(value: object, reducers: dict[type, Callable[[Any], Any]]) -> bytes:
    written = io.BytesIO()
    _value_pickler()(written, reducers, protocol=5).dump(value)
    return written.getvalue()


@functools.cache
def _value_pickler() -> Any:
    """The class that pickles by value; imports cloudpickle when it is first needed."""
    import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(
            self, file: io.BytesIO, reducers: dict[type, Callable[[Any], Any]], **options: Any
        ) -> None:
            # Set before __init__, which reads the table only once. The class's own table handles modules and
            # functions better than multiprocessing's.
            self.dispatch_table = {**reducers, **cloudpickle.Pickler.dispatch_table}
            super().__init__(file, **options)

    return ValuePickler


def _forking_reducers() -> dict[type, Callable[[Any], Any]]:
    """Multiprocessing's reducers for objects that processes share. Without torch's, which would move each
    tensor of a data set into shared memory."""
    from multiprocessing.reduction import ForkingPickler

    known: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return {kind: reduce for kind, reduce in known.items() if not kind.__module__.startswith("torch")}


@functools.cache
def _rejecting_reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers that reject types for which pickle would write the number of a descriptor."""
    import socket
    from multiprocessing.connection import Connection
    from multiprocessing.heap import Arena

    return dict.fromkeys((Connection, socket.socket, Arena), _reject)


def _reject(value: object) -> Any:
    raise RuntimeError(
        f"{type(value).__name__} objects should only be shared between processes through inheritance"
    )


def _storages() -> dict[type, Callable[[Any], Any]]:
    """The reducer for torch's untyped storages, which torch pickles in a form that it cannot read again."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "UntypedStorage"):
        # It is not imported, or not completely.
        return {}
    from feedline._torch.tensors import reduce_storage_by_value

    return {torch.UntypedStorage: reduce_storage_by_value}


def _shared_tensors() -> dict[type, Callable[[Any], Any]]:
    """Tensors that the user has put into shared memory stay shared; all others are copied."""
    torch = sys.modules.get("torch")
    if torch is None or torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return {}
    from torch.multiprocessing import reductions

    storages = _storages()

    def only_shared(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reduce_shared(part: Any) -> Any:
            memory = getattr(part, "_untyped_storage", part)
            is_dense = getattr(part, "layout", torch.strided) is torch.strided
            is_shared = is_dense and memory.device.type == "cpu" and memory.is_shared()
            if is_shared:
                return reduce(part)
            by_value = storages.get(type(part))
            return part.__reduce_ex__(5) if by_value is None else by_value(part)

        return reduce_shared

    return {
        torch.Tensor: only_shared(reductions.reduce_tensor),
        torch.storage.TypedStorage: only_shared(reductions.reduce_typed_storage),
        torch.storage.UntypedStorage: only_shared(reductions.reduce_storage),
    }


def not_picklable(
    value: object, name: str, reason: BaseException, dumps: Callable[[object], Any]
) -> NotPicklableError:
    """The error for an object that cannot be pickled, with the path to the part that is the cause."""
    path, part = _culprit(value, name, dumps)
    what = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    message = f"{path} cannot be pickled: it is a {what} ({reason})"
    hint = ""
    if "through inheritance" in str(reason):
        hint = "give it to initializer= and initargs= of the Executor, or to the data set of a loader"
    return NotPicklableError.explained(message, hint)


def _culprit(value: object, name: str, dumps: Callable[[object], Any]) -> tuple[str, object]:
    seen: set[int] = set()
    for _ in range(_DEPTH):
        for step, part in _parts(value):
            if id(part) in seen or len(seen) > _MOST_PARTS:
                continue
            seen.add(id(part))
            try:
                dumps(part)
            except ERRORS:
                value, name = part, name + step
                if type(part).__module__.startswith("multiprocessing"):
                    # Its own parts would mean nothing to the user.
                    return name, value
                break
        else:
            break
    return name, value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", None)
        for position, part in enumerate(value):
            yield (f".{fields[position]}" if fields else f"[{position}]"), part
    elif isinstance(value, (set, frozenset)):
        yield from (("{...}", part) for part in list(value))
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{position}]", part) for position, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    elif isinstance(value, types.FunctionType) and value.__closure__:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            with contextlib.suppress(ValueError):
                yield f".{name}", cell.cell_contents
    if not isinstance(value, type):
        yield from ((f".{key}", part) for key, part in list(getattr(value, "__dict__", {}).items()))
    for slot in getattr(type(value), "__slots__", ()):
        if isinstance(slot, str) and hasattr(value, slot):
            yield f".{slot}", getattr(value, slot)
