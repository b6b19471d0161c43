"""Objects on their way between processes, and where in them something cannot be pickled."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

from feedline.errors import NotPicklable

__all__ = ["ERRORS", "Packer", "by_value", "not_picklable"]

# What pickle raises when something cannot be pickled: the methods of users are asked, so anything.
ERRORS = (Exception,)
# How deep a structure is searched for what cannot be pickled, and how much of it.
_DEPTH = 12
_LOOKED_AT = 2000


class Packer:
    """Pickles with protocol 5: large buffers stay where they are, beside the pickle."""

    def __init__(self, reducers: dict[type, Callable[[Any], Any]], *, values: bool) -> None:
        """`values`: what cannot be pickled by name, such as a class of `__main__`, goes by value."""
        self._table = {**copyreg.dispatch_table, **reducers}
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
        import cloudpickle

        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        pickler = cloudpickle.Pickler(written, protocol=5, buffer_callback=buffers.append)
        # It has a table of its own, which knows modules and functions.
        pickler.dispatch_table = {**pickler.dispatch_table, **self._table}
        pickler.dump(thing)
        return [written.getbuffer(), *(buffer.raw() for buffer in buffers)]


def by_value(thing: object) -> bytes:
    """A pickle that a fresh interpreter can read, also of what `__main__` defines."""
    from multiprocessing import context

    import cloudpickle

    # Locks and events of multiprocessing let themselves be pickled only for a process that is started.
    started = context.get_spawning_popen()
    context.set_spawning_popen(_Started())  # type: ignore[arg-type]
    try:
        pickled: bytes = cloudpickle.dumps(thing, protocol=5)
    finally:
        context.set_spawning_popen(started)
    return pickled


class _Started:
    """What multiprocessing sees of the process that is started."""

    def duplicate_for_child(self, descriptor: int) -> int:
        raise TypeError("shared values and queues of multiprocessing need multiprocessing_context='fork'")


def not_picklable(
    thing: object, name: str, reason: BaseException, dumps: Callable[[object], Any]
) -> NotPicklable:
    """The error for a thing that cannot be pickled, with the path to the part that is to blame."""
    path, part = _culprit(thing, name, dumps)
    what = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    message = f"{path} cannot be pickled: it is a {what} ({reason})"
    return NotPicklable.explained(message)


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
