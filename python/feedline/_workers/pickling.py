"""Objects on their way between processes, and where in them something cannot be pickled."""

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

# What pickle raises when something cannot be pickled: the methods of users are asked, so anything.
ERRORS = (Exception,)
# How deep a structure is searched for what cannot be pickled, and how much of it.
_DEPTH = 12
_LOOKED_AT = 2000


class Packer:
    """Pickles with protocol 5: large buffers stay where they are, beside the pickle."""

    def __init__(self, reducers: dict[type, Callable[[Any], Any]], *, values: bool) -> None:
        """`values`: what cannot be pickled by name, such as a class of `__main__`, goes by value."""
        self._table = {**copyreg.dispatch_table, **_refusers(), **reducers}
        self._values = values

    def pack(self, thing: object) -> list[Any]:
        """The pickle first, then its buffers."""
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        pickler = pickle.Pickler(written, protocol=5, buffer_callback=buffers.append)
        pickler.dispatch_table = self._table
        try:
            pickler.dump(thing)
        except ERRORS:
            if not self._values:
                raise
            return self._pack_values(thing)
        return [written.getbuffer(), *(buffer.raw() for buffer in buffers)]

    def _pack_values(self, thing: object) -> list[Any]:
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        pickler = _value_pickler()(written, self._table, protocol=5, buffer_callback=buffers.append)
        pickler.dump(thing)
        return [written.getbuffer(), *(buffer.raw() for buffer in buffers)]


Reducers = dict[type, Callable[[Any], Any]]


def by_value(thing: object, reducers: Reducers | None = None) -> bytes:
    """A pickle that any other process can read, also of what `__main__` defines. Refuses what has a
    descriptor, unless one of the `reducers` is for it: its number means nothing, or something else, to
    another process."""
    return _pickled(thing, {**_forking_reducers(), **_storages(), **_refusers(), **(reducers or {})})


def by_name(thing: object, reducers: Reducers | None = None) -> bytes:
    """As plain pickle makes it, which is fast; refuses descriptors as `by_value` does."""
    written = io.BytesIO()
    pickler = pickle.Pickler(written, protocol=5)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_storages(), **_refusers(), **(reducers or {})}
    pickler.dump(thing)
    return written.getvalue()


class Payload:
    """A pickle for a process that is started, and the descriptors that go with it; they are its own, so that
    it can be sent again."""

    def __init__(self, pickled: bytes, descriptors: list[int]) -> None:
        self.pickled = pickled
        self.descriptors = descriptors

    @classmethod
    def of(cls, thing: object) -> Payload:
        """What `by_value` takes, and what multiprocessing lets a process inherit: locks, events, queues,
        pipes, shared values; and tensors in shared memory."""
        from multiprocessing import context

        started = context.get_spawning_popen()
        inherited = _Inherited()
        context.set_spawning_popen(inherited)  # type: ignore[arg-type]
        try:
            pickled = _pickled(thing, {**_forking_reducers(), **_storages(), **_shared_tensors()})
        except BaseException:
            cls(b"", inherited.descriptors)
            raise
        finally:
            context.set_spawning_popen(started)
        return cls(pickled, inherited.descriptors)

    @staticmethod
    def open(pickled: Any, descriptors: list[int]) -> Any:
        """The thing, in the process that was sent all of this."""
        _arrived.clear()
        _arrived.update(enumerate(descriptors))
        try:
            return pickle.loads(pickled)
        finally:
            for descriptor in _arrived.values():
                os.close(descriptor)
            _arrived.clear()

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


# Descriptors that came with the payload that is being opened, by number.
_arrived: dict[int, int] = {}


class _Descriptor:
    """Stands for a descriptor in a pickle."""

    def __init__(self, number: int) -> None:
        self._number = number
        # Which file it is: a payload with another one is another payload.
        self._file = (0, 0)

    def detach(self) -> int:
        """The descriptor in this process, once."""
        return _arrived.pop(self._number)


class _Inherited:
    """What multiprocessing sees of the process that is started."""

    DupFd = staticmethod(lambda descriptor: descriptor)

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> _Descriptor:
        found = os.fstat(descriptor)
        placeholder = _Descriptor(len(self.descriptors))
        placeholder._file = (found.st_dev, found.st_ino)
        self.descriptors.append(os.dup(descriptor))
        return placeholder


def _pickled(thing: object, reducers: dict[type, Callable[[Any], Any]]) -> bytes:
    written = io.BytesIO()
    _value_pickler()(written, reducers, protocol=5).dump(thing)
    return written.getvalue()


@functools.cache
def _value_pickler() -> Any:
    """The class that pickles by value, made when it is first needed."""
    import cloudpickle

    class ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(
            self, file: io.BytesIO, reducers: dict[type, Callable[[Any], Any]], **options: Any
        ) -> None:
            # Before the pickler is made, which looks for its table only then. The table of the class knows
            # modules and functions better than multiprocessing does.
            self.dispatch_table = {**reducers, **cloudpickle.Pickler.dispatch_table}
            super().__init__(file, **options)

    return ValuePickler


def _forking_reducers() -> dict[type, Callable[[Any], Any]]:
    """How multiprocessing takes apart what is shared between processes. Without torch's, which would move
    each tensor of a data set into shared memory."""
    from multiprocessing.reduction import ForkingPickler

    known: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return {kind: reduce for kind, reduce in known.items() if not kind.__module__.startswith("torch")}


@functools.cache
def _refusers() -> dict[type, Callable[[Any], Any]]:
    """Of these plain pickle would write down the numbers of descriptors."""
    import socket
    from multiprocessing.connection import Connection
    from multiprocessing.heap import Arena

    return dict.fromkeys((Connection, socket.socket, Arena), _refuse)


def _refuse(thing: object) -> Any:
    raise RuntimeError(
        f"{type(thing).__name__} objects should only be shared between processes through inheritance"
    )


def _storages() -> dict[type, Callable[[Any], Any]]:
    """Memory of torch without a type, which torch itself pickles so that nobody can read it."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "UntypedStorage"):
        # It is not there, or is being imported.
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
    thing: object, name: str, reason: BaseException, dumps: Callable[[object], Any]
) -> NotPicklableError:
    """The error for a thing that cannot be pickled, with the path to the part that is to blame."""
    path, part = _culprit(thing, name, dumps)
    what = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    message = f"{path} cannot be pickled: it is a {what} ({reason})"
    hint = ""
    if "through inheritance" in str(reason):
        hint = "give it to initializer= and initargs= of the Executor, or to the data set of a loader"
    return NotPicklableError.explained(message, hint)


def _culprit(thing: object, name: str, dumps: Callable[[object], Any]) -> tuple[str, object]:
    seen: set[int] = set()
    for _ in range(_DEPTH):
        for step, part in _parts(thing):
            if id(part) in seen or len(seen) > _LOOKED_AT:
                continue
            seen.add(id(part))
            try:
                dumps(part)
            except ERRORS:
                thing, name = part, name + step
                if type(part).__module__.startswith("multiprocessing"):
                    # What it is made of says nothing to the user.
                    return name, thing
                break
        else:
            break
    return name, thing


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(thing.items()))
    elif isinstance(thing, (list, tuple)):
        fields = getattr(thing, "_fields", None)
        for position, part in enumerate(thing):
            yield (f".{fields[position]}" if fields else f"[{position}]"), part
    elif isinstance(thing, (set, frozenset)):
        yield from (("{...}", part) for part in list(thing))
    elif isinstance(thing, functools.partial):
        yield ".func", thing.func
        yield from ((f".args[{position}]", part) for position, part in enumerate(thing.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in thing.keywords.items())
    elif isinstance(thing, types.FunctionType) and thing.__closure__:
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__, strict=True):
            with contextlib.suppress(ValueError):
                yield f".{name}", cell.cell_contents
    if not isinstance(thing, type):
        yield from ((f".{key}", part) for key, part in list(getattr(thing, "__dict__", {}).items()))
    for slot in getattr(type(thing), "__slots__", ()):
        if isinstance(slot, str) and hasattr(thing, slot):
            yield f".{slot}", getattr(thing, slot)
