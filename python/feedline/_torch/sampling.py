"""The sampler of a loader as a state needs it: batches of indices that are skipped, and samplers that have a
state of their own."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _InfiniteConstantSampler
from torch.utils.data.distributed import DistributedSampler

from feedline._torch.elastic import rest_of_rank
from feedline._torch.state import from_plain, plain

__all__ = ["SamplerReader", "behind", "draws_elsewhere", "is_stateful", "sampler_of", "seeds_each_epoch"]

# Samplers that are known to have no state of their own, and to draw from torch's generators alone.
_TORCHS = (RandomSampler, SequentialSampler, DistributedSampler, _InfiniteConstantSampler)
_END = object()
_LIST_ITERATOR: type = type(iter([]))
_RANGE_ITERATOR: type = type(iter(range(0)))
# How many batch samplers may be inside of one another.
_NESTED = 8


def is_stateful(thing: object) -> bool:
    """Whether an object has a state of its own that can be saved and loaded. The state of a module is its
    weights, which do not say how far it has come."""
    has_methods = all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))
    return has_methods and not isinstance(thing, torch.nn.Module)


def sampler_of(loader: Any) -> Any:
    """What gives the indices of samples: the sampler inside a batch sampler, if there is one. Accelerate puts
    one batch sampler around another, to divide batches among processes or to skip some."""
    if loader.batch_sampler is None:
        return loader.sampler
    batches = loader.batch_sampler
    for _ in range(_NESTED):
        if getattr(batches, "sampler", None) is not None or getattr(batches, "batch_sampler", None) is None:
            break
        batches = batches.batch_sampler
    return getattr(batches, "sampler", batches)


def seeds_each_epoch(sampler: object) -> bool:
    """Whether the order is given by the epoch and a seed, as with Accelerate's `SeedableRandomSampler`. Its
    generator is seeded anew in each epoch, and created in the first, so that its state says nothing."""
    return all(hasattr(sampler, name) for name in ("initial_seed", "epoch", "set_epoch"))


def is_torchs(sampler: object) -> bool:
    return type(sampler) in _TORCHS


def draws_elsewhere(loader: Any) -> bool:
    """Whether the order may depend on other generators than torch's, because a user's class makes it."""
    is_plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    return not (is_plain and is_torchs(sampler_of(loader)))


class _Once:
    """An iterable that gives an iterator which exists already."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


class _Watched:
    """An iterator that knows whether it is at its end."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self.has_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self.has_ended = True
            raise


def behind(indices: Iterator[Any], count: int) -> Iterator[Any]:
    """A new iterator of a sampler, behind its first indices. Torch's samplers iterate over a range or over
    lists of indices, in which a place is a number: nothing is read up to it."""
    if type(indices) is _RANGE_ITERATOR:
        # Not `__setstate__`: from where its number counts depends on the version of Python.
        reduced: Any = indices.__reduce__()
        return iter(reduced[1][0][count:])
    while count:
        inner: Any = indices
        if isinstance(indices, GeneratorType):
            # A generator draws its order when it is read first; then it stands at `yield from`.
            if next(indices, _END) is _END:
                break
            count -= 1
            inner = indices.gi_yieldfrom
        if type(inner) is not _LIST_ITERATOR:
            # Consumes at the speed of C.
            next(itertools.islice(indices, count, count), None)
            break
        skipped = min(count, operator.length_hint(inner))
        place: Any = inner
        place.__setstate__(place.__reduce__()[2] + skipped)
        count -= skipped
        if inner is indices:
            break
    return indices


class SamplerReader:
    """Reads the index batches of one epoch, and keeps the state of a stateful sampler after each of them."""

    def __init__(self, index_sampler: Any, begun: Iterator[Any]) -> None:
        """`begun` is the iterator that torch has made of the sampler."""
        self._outer = index_sampler
        self._begun = begun
        # Torch's class hides the sampler inside, so it is made again around an iterator that can be asked.
        self._is_opened = type(index_sampler) is BatchSampler and not is_torchs(index_sampler.sampler)
        self._object = index_sampler.sampler if self._is_opened else index_sampler
        self._iterator: Any = None
        self.is_stateful = is_stateful(self._object)
        # By the number of a batch, what the sampler's state is after it.
        self._states: dict[int, dict[str, Any]] = {}
        self._watched: _Watched | None = None
        # The indices of an epoch that was begun by another number of ranks.
        self._rest: list[int] | None = None
        self._number = 0

    def load(self, state: dict[str, Any], number: int) -> None:
        """Continues after that many batches with the sampler's own state."""
        self._number = number
        if number:
            self._states[number - 1] = state
        if "object" in state:
            self._object.load_state_dict(from_plain(state["object"]))
        self._iterator = iter(self._object)
        if "iterator" in state:
            self._iterator.load_state_dict(from_plain(state["iterator"]))
        if state.get("has_ended"):
            # The state is that of its end, after which it begins again.
            self._iterator = iter(())
        self.is_stateful = True

    def begin_at(self, done: int) -> None:
        """Reads what is left for this rank when all ranks together have had that many samples."""
        inner: Any = self._outer.sampler if type(self._outer) is BatchSampler else self._outer
        self._rest = rest_of_rank(inner, done)
        self._begun = iter(self._rest)
        if inner is not self._outer:
            self._begun = iter(BatchSampler(self._rest, self._outer.batch_size, self._outer.drop_last))

    def batches(self, forget: Callable[[], int]) -> Iterator[Any]:
        """The batches. `forget` says below which number no state is needed any more."""
        if not self._is_opened and not self.is_stateful and not is_stateful(self._begun):
            yield from self._begun
            return
        iterator = self._iterator
        if iterator is None:
            iterator = iter(self._object) if self._is_opened else self._begun
        self._iterator = iterator
        self.is_stateful = self.is_stateful or is_stateful(iterator)
        batches = iterator
        if self._is_opened:
            outer = self._outer
            if self.is_stateful:
                iterator = self._watched = _Watched(iterator)
            batches = iter(BatchSampler(_Once(iterator), outer.batch_size, outer.drop_last))
        if not self.is_stateful:
            yield from batches
            return
        self._states.setdefault(self._number - 1, self._now())
        for batch in batches:
            self._states[self._number] = self._now()
            self._number += 1
            if self._number % 64 == 0:
                needed = forget() - 1
                self._states = {at: state for at, state in self._states.items() if at >= needed}
            yield batch

    def _now(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if self._watched is not None and self._watched.has_ended:
            state["has_ended"] = True
        if is_stateful(self._object):
            state["object"] = plain(self._object.state_dict(), "the state of the sampler")
        if self._iterator is not self._object and is_stateful(self._iterator):
            state["iterator"] = plain(self._iterator.state_dict(), "the state of the sampler's iterator")
        return state

    def state(self, batches: int) -> dict[str, Any] | None:
        """The sampler's own state after that many batches; None if it has none, or was not read yet."""
        return self._states.get(batches - 1)

    def final_state(self) -> dict[str, Any] | None:
        """The state at the end of the epoch, of which the next one depends."""
        return {"object": self._now()["object"]} if is_stateful(self._object) else None

    def skip_quickly(self, batches: int) -> bool:
        """Skips whole batches without making them, if that is possible. Called before the first is read."""
        if type(self._outer) is not BatchSampler or self.is_stateful or not is_torchs(self._outer.sampler):
            return False
        sampler, size = self._outer.sampler, self._outer.batch_size
        indices = iter(sampler if self._rest is None else self._rest)
        indices = behind(indices, batches * size)
        self._begun = iter(BatchSampler(_Once(indices), size, self._outer.drop_last))
        return True
