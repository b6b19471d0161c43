"""Seeds the global generators of `random`, NumPy and torch for each sample, so that random transforms draw
the same numbers in whatever process, and however often, a sample is made."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from feedline import _native
from feedline._numpy import seed_global
from feedline._torch.random_state import STATE_BYTES, GeneratorStates, numpy_address, random_address

__all__ = ["SampleSeeding", "SeededDataset"]

_MASK = 2**64 - 1
# Collating a batch draws other numbers than its first sample.
_OF_BATCH = 0x6261_7463_6800_0000
# NumPy's word for whether it keeps a normal number, and the number.
_GAUSS_BYTES = 16


class SampleSeeding:
    """Seeds for the samples of one epoch."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.epoch = epoch
        # The first index of the batch that is being made.
        self._batch: Any = 0
        # Writing the memory of generators is an order of magnitude faster than seeding them.
        self._random, self._numpy, self._gauss = random_address(), numpy_address(np), _gauss_address()
        # Keeps the memory.
        self._generators = random._inst, np.random.mtrand._rand, np.random.mtrand._rand._bit_generator
        self._is_numpy_slow = self._numpy is None or self._gauss is None
        addresses = {} if self._is_numpy_slow else {"numpy": self._numpy, "gauss": self._gauss}
        self._begin = _native.SampleSeeds(seed & _MASK, random=self._random, **addresses).begin
        self._seed_torch = torch.default_generator.manual_seed
        self._inst: Any = random._inst

    def begin(self, index: Any) -> None:
        """A sample is made next."""
        self._seed(index if type(index) is int and index >= 0 else _number(index))

    def note_batch(self, index: Any) -> None:
        """The batch with these indices is made next."""
        self._batch = index[0] if isinstance(index, (list, tuple)) and index else index

    def begin_batch(self) -> None:
        """The samples of the batch are collated next."""
        self._seed(_number(self._batch) ^ _OF_BATCH)

    def _seed(self, number: int) -> None:
        seed = self._begin(self.epoch, number)
        self._seed_torch(seed)
        if self._random is None:
            random.seed(seed)
        else:
            self._inst.gauss_next = None
        if self._is_numpy_slow:
            seed_global(seed & 0xFFFFFFFF)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """While samples are made in the trainer, whose own random numbers must not depend on that."""
        held = _held(torch.default_generator.get_state(), self._random, self._numpy, self._gauss)
        gauss_next = self._inst.gauss_next
        draws = GeneratorStates() if held is None else None
        state = None if draws is None else draws.state()
        try:
            yield
        finally:
            if draws is not None and state is not None:
                draws.restore(state)
            elif held is not None:
                _release(held)
                self._inst.gauss_next = gauss_next


def _held(torch_state: Any, *addresses: int | None) -> tuple[Any, list[tuple[int, bytes]]] | None:
    if any(address is None for address in addresses):
        return None
    sizes = (STATE_BYTES, STATE_BYTES, _GAUSS_BYTES)
    memory = [
        (address, ctypes.string_at(address, size))
        for address, size in zip(addresses, sizes, strict=True)
        if address is not None
    ]
    return torch_state, memory


def _release(held: tuple[Any, list[tuple[int, bytes]]]) -> None:
    torch_state, memory = held
    torch.default_generator.set_state(torch_state)
    for address, state in memory:
        ctypes.memmove(address, state, len(state))


def _number(index: Any) -> int:
    """A number for an index of any kind."""
    try:
        return operator.index(index) & _MASK
    except TypeError:
        return int.from_bytes(blake2b(repr(index).encode(), digest_size=8).digest(), "little")


def _gauss_address() -> int | None:
    """Where NumPy's global generator has the word that says whether it keeps a normal number: it makes two at
    a time. None if that is not known."""
    kind = np.random.RandomState
    if type(np.random.mtrand._rand) is not kind:
        return None
    probe = kind(0)
    size = kind.__basicsize__ & ~3

    def words() -> memoryview:
        return memoryview(ctypes.string_at(id(probe), size)).cast("I")

    first = words()
    probe.standard_normal()
    second = words()
    probe.standard_normal()
    third = words()
    found = [at for at in range(len(first)) if (first[at], second[at], third[at]) == (0, 1, 0)]
    # The number is behind it, aligned.
    is_sure = len(found) == 1 and found[0] % 2 == 0 and found[0] * 4 + _GAUSS_BYTES <= size
    return id(np.random.mtrand._rand) + found[0] * 4 if is_sure else None


class SeededDataset:
    """A map-style data set whose samples are made with random numbers of their own."""

    def __init__(self, dataset: Any, seeding: SampleSeeding) -> None:
        self._dataset = dataset
        self._begin = seeding.begin
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = self._get_all

    def __getitem__(self, index: Any) -> Any:
        self._begin(index)
        return self._dataset[index]

    def _get_all(self, indices: Any) -> Any:
        """Samples that are made together share the random numbers of the first."""
        if len(indices):
            self._begin(indices[0])
        return self._dataset.__getitems__(indices)
