"""`pack` puts the items of a data set into one memory, which all workers share.

A list of a million strings is a million objects, each with a reference count. A forked worker that only looks
at them changes the counts, and with them every page of the list: in the end each worker has a copy. Packed
items are plain bytes, which nobody changes; an object is created when an item is accessed.
"""

from __future__ import annotations

import pickle
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from multiprocessing import context
from typing import Any, TypeVar, overload

from feedline import _native
from feedline._described import described
from feedline._native import PackedList
from feedline.errors import InvalidArgumentError

__all__ = ["PackedDict", "PackedList", "pack"]

Sequence.register(PackedList)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


@overload
def pack(items: Mapping[K, V]) -> PackedDict[K, V]: ...  # type: ignore[overload-overlap]
@overload
def pack(items: Iterable[T]) -> PackedList[T]: ...
def pack(items: Any) -> Any:
    """Puts items into one memory that forked workers share and never copy, behind a read-only sequence.

    `dataset.samples = fl.pack(dataset.samples)` is enough: indexing, slices, iteration and `len` work as
    before. A slice is a view of the same memory. A mapping becomes a read-only mapping.

    Items are str, bytes, int, float, bool, None, and tuples, lists and dicts of these, at most 32 levels
    deep. Each access creates the item anew, with the type that it had: a list inside an item can be changed,
    and this changes no other access. Keys of a mapping are str, bytes, int, None, and tuples of these.

    Values of NumPy and torch are refused, because they would come back as numbers of Python, which
    `default_collate` gives another type. Arrays need no packing: they have one reference count for all their
    numbers.

    The memory is sent to workers that are not forks without a copy; elsewhere it is pickled as bytes. It
    takes one descriptor if it is larger than 1 MiB.

    Args:
        items: a list or any other iterable, or a mapping.
    """
    if isinstance(items, Mapping):
        return PackedDict(_native.pack_pairs(items.items()))
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise InvalidArgumentError.explained(
            f"pack: items must be a list or another iterable, got {described(items)}",
            "pack many of them together: fl.pack([...])",
        )
    if isinstance(items, Set):
        raise InvalidArgumentError.explained(
            f"pack: items must have an order, which a {type(items).__name__} does not have",
            "give it one with fl.pack(sorted(items))",
        )
    if hasattr(items, "__array_interface__") or hasattr(items, "__dlpack__"):
        raise InvalidArgumentError.explained(
            f"pack: items must be a list or another iterable, got a {type(items).__qualname__}",
            "keep it as it is: the numbers of an array have no reference counts, so workers share them",
        )
    try:
        iterator = iter(items)
    except TypeError:
        raise InvalidArgumentError.explained(
            f"pack: items must be a list or another iterable, got {described(items)}",
            "see help(feedline.pack)",
        ) from None
    return _native.pack_items(iterator)


class PackedDict(Mapping[K, V_co]):
    """A read-only mapping of packed items. Each access creates the value anew."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: PackedList[tuple[K, V_co]]) -> None:
        """Created by `pack`."""
        self._pairs = pairs

    def __getitem__(self, key: K) -> V_co:
        found = self._pairs._find(key)
        if found is None:
            raise KeyError(key)
        return self._pairs[found][1]

    def __contains__(self, key: object) -> bool:
        return self._pairs._find(key) is not None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._pairs)

    def __reversed__(self) -> Iterator[K]:
        return (key for key, _ in reversed(self._pairs))

    def __len__(self) -> int:
        return len(self._pairs)

    def keys(self) -> KeysView[K]:
        return KeysView(self)

    def values(self) -> ValuesView[V_co]:
        return _Values(self)

    def items(self) -> ItemsView[K, V_co]:
        return _Items(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self._pairs.nbytes

    def __repr__(self) -> str:
        first = ", ".join(f"{key!r}: {value!r}" for key, value in self._pairs[:3])
        if len(self) <= 3:
            return f"PackedDict({{{first}}})"
        return f"PackedDict({{{first}, ...}}, {len(self)} items)"

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedDict, (self._pairs,)

    def __copy__(self) -> PackedDict[K, V_co]:
        return self

    def __deepcopy__(self, memo: object) -> PackedDict[K, V_co]:
        return self


class _Values(ValuesView[V_co]):
    """The values, read one after another and not by key."""

    def __iter__(self) -> Iterator[V_co]:
        return (value for _, value in self._mapping._pairs)  # type: ignore[attr-defined]


class _Items(ItemsView[K, V_co]):
    """The pairs, read one after another and not by key."""

    def __iter__(self) -> Iterator[tuple[K, V_co]]:
        return iter(self._mapping._pairs)  # type: ignore[attr-defined]


def _reduce_list(packed: PackedList[Any], view: tuple[int, int, int], is_whole: bool) -> tuple[Any, ...]:
    """How a sequence is pickled. A view that cannot be sent without a copy takes only its own items along."""
    if is_whole or _is_starting_a_process():
        return PackedList, (packed._memory, *view)
    return _native.pack_items, (packed.tolist(),)


def _reduce_memory(memory: Any, protocol: int) -> tuple[Any, ...]:
    """How the memory is pickled: as a descriptor for a process that is being started, otherwise as bytes."""
    descriptor = memory.descriptor() if _is_starting_a_process() else None
    if descriptor is not None:
        from multiprocessing.reduction import DupFd

        return _open_memory, (DupFd(descriptor),)
    if protocol >= 5:
        return _native.PackedMemory.from_bytes, (pickle.PickleBuffer(memory),)
    return _native.PackedMemory.from_bytes, (bytes(memory),)


def _open_memory(sent: Any) -> _native.PackedMemory:
    return _native.PackedMemory.from_descriptor(sent.detach())


def _is_starting_a_process() -> bool:
    """Whether the pickle is for a process that multiprocessing or Feedline is starting, which gets
    descriptors."""
    return context.get_spawning_popen() is not None
