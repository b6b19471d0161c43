"""Finds the attributes of a data set that forked workers copy, page by page, by counting references to
objects.

It looks at a bounded number of objects and calls none of the user's code: no properties, no `__getitem__`, no
`__len__`, no `__sizeof__`. Sizes are estimates from a sample.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._code import warn_user
from feedline.errors import CopiedMemoryWarning
from feedline.packed import PackedList

__all__ = ["CopiedAttribute", "copied_attributes", "warn_of_copies"]

# Limits of the search: its depth and the number of objects, elements that are looked at in each container,
# how deep and how many in each of them. All together take a few milliseconds.
_DEPTH = 4
_MOST_OBJECTS = 200
_ELEMENTS = 256
_INNER_DEPTH = 4
_INNER_ELEMENTS = 16
# How many attributes one warning names.
_NAMED = 3
# What is smaller is not worth a line.
_SMALLEST = 1 << 20
# A warning needs copies, in all workers together, of at least this many bytes and this share of the available
# memory.
WARN_BYTES = 100 << 20
WARN_SHARE = 0.05

# Always by the type itself: `isinstance` may ask the object for its `__class__`, which calls the user's code.
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None))
# These have attributes, but no samples.
_NO_DATA = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_PLURALS = {str: "strings", bytes: "bytes objects", int: "ints", float: "floats"}


@dataclass(frozen=True)
class CopiedAttribute:
    """An attribute whose objects each worker copies when it looks at them."""

    path: str
    count: int
    kind: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {_count(self.count)} {self.kind}, {_size(self.bytes)}"


def copied_attributes(dataset: object, name: str = "dataset") -> list[CopiedAttribute]:
    """The attributes of a data set, and of the data sets inside it, of more than 1 MiB, the largest first."""
    found: list[CopiedAttribute] = []
    waiting: deque[tuple[str, object, int]] = deque([(name, dataset, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        path, part, depth = waiting.popleft()
        if id(part) in seen or issubclass(type(part), (*_PLAIN, *_NO_DATA, PackedList)):
            continue
        seen.add(id(part))
        elements = _elements(part, _ELEMENTS)
        if elements is not None and (_length(part) or 0) > _ELEMENTS:
            attribute = _estimate(path, part, elements)
            if attribute.bytes >= _SMALLEST:
                found.append(attribute)
        elif elements is not None:
            # Few elements may be data sets themselves, such as the `datasets` of a ConcatDataset.
            if depth < _DEPTH:
                waiting.extend((path + step, inner, depth + 1) for step, inner in _steps(part, elements))
        elif depth < _DEPTH:
            attributes = _attributes(part)
            waiting.extend((f"{path}.{key}", inner, depth + 1) for key, inner in attributes.items())
    return sorted(found, key=lambda attribute: -attribute.bytes)


def warn_of_copies(dataset: object, workers: int) -> None:
    """Warns if this many forked workers would copy much of a data set."""
    found = copied_attributes(dataset)
    total = sum(attribute.bytes for attribute in found) * workers
    if total < WARN_BYTES:
        return
    available = _native.available_memory()
    if total < WARN_SHARE * available:
        return
    named = "; ".join(map(str, found[:_NAMED]))
    first = found[0].path
    text = (
        f"{named}: each of {workers} workers copies the objects that it looks at, because looking at an "
        f"object changes its reference count: up to {_size(total)} in all, of {_size(available)} that are "
        "available\n"
        f"hint: {first} = fl.pack({first})"
    )
    warn_user(text, CopiedMemoryWarning)


def _attributes(part: object) -> dict[str, Any]:
    """The instance attributes, without calling a property or `__getattr__`."""
    try:
        attributes = object.__getattribute__(part, "__dict__")
    except AttributeError:
        return {}
    return dict(attributes) if isinstance(attributes, dict) else {}


def _length(part: Any) -> int | None:
    """The number of elements of a container, whatever its class has in place of `__len__`."""
    for kind in _CONTAINERS:
        if issubclass(type(part), kind):
            return kind.__len__(part)
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(part) is numpy.ndarray and part.dtype.hasobject:
        return int(part.size)
    return None


def _elements(part: Any, most: int) -> list[object] | None:
    """Some elements of a container, evenly spread if it has an order; None if it is no container. Keys and
    values of a dict are elements, one after the other."""
    length = _length(part)
    if length is None:
        return None
    try:
        if issubclass(type(part), (list, tuple)):
            kind: Any = list if issubclass(type(part), list) else tuple
            places = range(0, length, max(1, -(-length // most)))
            return [kind.__getitem__(part, place) for place in places]
        if issubclass(type(part), dict):
            return list(itertools.chain(*itertools.islice(dict.items(part), most)))
        if issubclass(type(part), (set, frozenset, deque)):
            base: Any = next(kind for kind in (set, frozenset, deque) if issubclass(type(part), kind))
            return list(itertools.islice(base.__iter__(part), most))
        return list(itertools.islice(part.flat, most))
    except (RuntimeError, IndexError):
        # Another thread is changing it.
        return []


def _estimate(path: str, part: Any, elements: list[object]) -> CopiedAttribute:
    length = _length(part) or 0
    values = elements[1::2] if issubclass(type(part), dict) else elements
    seen: set[int] = set()
    size = sum(_bytes(element, seen, 0) for element in elements)
    kinds = Counter(type(value) for value in values)
    kind = kinds.most_common(1)[0][0] if kinds else object
    plural = f"{kind.__name__}s" if kind in _CONTAINERS else f"{kind.__name__} objects"
    return CopiedAttribute(path, length, _PLURALS.get(kind, plural), size * length // max(1, len(values)))


def _bytes(part: object, seen: set[int], depth: int) -> int:
    """The bytes of an object and what it holds; nothing for what was seen before or is the same
    everywhere."""
    if part is None or issubclass(type(part), (bool, *_NO_DATA, PackedList)) or id(part) in seen:
        return 0
    if type(part) is int and -5 <= part <= 256:
        # There is one object for each of them, whose count nobody changes.
        return 0
    seen.add(id(part))
    # Not sys.getsizeof, which may call a method of the user's class.
    own = -(-object.__sizeof__(part) // 16) * 16 if not issubclass(type(part), _PLAIN) else _plain_bytes(part)
    elements = _elements(part, _INNER_ELEMENTS)
    if elements is not None:
        length = _length(part) or 0
        own = _container_bytes(part, length)
        looked_at = len(elements) // 2 if issubclass(type(part), dict) else len(elements)
        if depth < _INNER_DEPTH and looked_at:
            own += sum(_bytes(element, seen, depth + 1) for element in elements) * length // looked_at
    elif depth < _INNER_DEPTH:
        attributes = _attributes(part)
        if attributes:
            own += _container_bytes(attributes, len(attributes))
            own += sum(
                _bytes(inner, seen, depth + 1)
                for inner in itertools.islice(attributes.values(), _INNER_ELEMENTS)
            )
    return own


def _plain_bytes(part: Any) -> int:
    kind: Any = next(kind for kind in _PLAIN if issubclass(type(part), kind))
    return -(-int(kind.__sizeof__(part)) // 16) * 16


def _container_bytes(part: Any, length: int) -> int:
    """A container without its elements, with the header that the garbage collector adds."""
    header = 16
    if issubclass(type(part), _CONTAINERS):
        kind: Any = next(kind for kind in _CONTAINERS if issubclass(type(part), kind))
        return -(-(header + int(kind.__sizeof__(part))) // 16) * 16
    return header + 8 * length


def _steps(part: Any, elements: list[object]) -> Iterator[tuple[str, object]]:
    """The elements of a small container, with how to reach each."""
    if issubclass(type(part), dict):
        for key, value in zip(elements[::2], elements[1::2], strict=False):
            if isinstance(key, (str, int)):
                yield f"[{key!r}]", value
    elif issubclass(type(part), (list, tuple)) and len(elements) == _length(part):
        for place, element in enumerate(elements):
            yield f"[{place}]", element


def _count(count: int) -> str:
    for scale, letter in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= scale:
            return f"{count / scale:.1f}{letter}"
    return str(count)


def _size(size: int) -> str:
    return f"{size / 10**9:.1f} GB" if size >= 10**9 else f"{size / 10**6:.0f} MB"
