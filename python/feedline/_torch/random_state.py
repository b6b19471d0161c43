"""The state of all generators that torch seeds in a worker, saved after every batch.

Getting the state of NumPy or `random` takes longer than a small batch. Their state is at known addresses in
memory, so this memory is compared instead, and the state is only fetched if it has changed. If the memory is
not laid out as expected, the state is fetched every time.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["STATE_BYTES", "GeneratorStates", "State", "numpy_address", "random_address"]

_MERSENNE = struct.Struct("<625I")
STATE_BYTES = 2500
# The header of a Python object: reference count and type.
_HEAD_BYTES = 16

# The states of random, torch and NumPy; None for a generator that is not used or has no state.
State = tuple[bytes | None, bytes, bytes | None]


class GeneratorStates:
    """Saves and restores the states."""

    def __init__(self) -> None:
        self._peek_random = _random_memory()
        self._peek_numpy: Callable[[], bytes | None] | None = None
        self._seen_random: object = None
        self._saved_random: bytes | None = None
        self._seen_numpy: object = None
        self._saved_numpy: bytes | None = None
        self._numpy_has_gauss = False

    def state(self) -> State:
        # Not torch.get_rng_state: the caller may run under a default device or a mode of torch.
        torch_state = torch.default_generator.get_state()
        return self._random(), ctypes.string_at(torch_state.data_ptr(), torch_state.numel()), self._numpy()

    def _random(self) -> bytes | None:
        peek = self._peek_random
        # `gauss_next`, the second of a pair of normal numbers, is not a part of the generator's memory.
        seen = None if peek is None else (peek(), random._inst.gauss_next)  # type: ignore[attr-defined]
        if seen is None or seen != self._seen_random:
            self._saved_random = _random_state()
            self._seen_random = seen
        return self._saved_random

    def _numpy(self) -> bytes | None:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if self._peek_numpy is None:
            self._peek_numpy = _numpy_memory(numpy)
        seen = None if self._peek_numpy is None else self._peek_numpy()
        # Taking the second of a pair of normal numbers does not change the memory.
        if seen is None or self._numpy_has_gauss or seen != self._seen_numpy:
            # The generator itself: only its class knows the state of one that comes from a library.
            generator = numpy.random.mtrand._rand._bit_generator
            state = numpy.random.get_state(legacy=False)
            self._numpy_has_gauss = bool(state["has_gauss"])
            self._saved_numpy = pickle.dumps((generator, state["has_gauss"], state["gauss"]))
            self._seen_numpy = seen
        return self._saved_numpy

    def restore(self, state: State) -> None:
        random_state, torch_state, numpy_state = state
        if random_state is not None:
            version, numbers, gauss = pickle.loads(random_state)
            random.setstate((version, _MERSENNE.unpack(numbers), gauss))
        torch.default_generator.set_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
        if numpy_state is not None:
            _restore_numpy(*pickle.loads(numpy_state))


def _random_state() -> bytes | None:
    """The state of `random`; None if the program replaced its generator by one without such a state."""
    try:
        version, numbers, gauss = random.getstate()
        return pickle.dumps((version, _MERSENNE.pack(*numbers), gauss))
    except (NotImplementedError, TypeError, ValueError, struct.error):
        return None


def _restore_numpy(generator: Any, has_gauss: int, gauss: float) -> None:
    import numpy

    # The program may refer to the current generator, so change that one if it has the same type.
    if type(numpy.random.mtrand._rand._bit_generator) is not type(generator):
        numpy.random.mtrand.set_bit_generator(generator)
    numpy.random.set_state({**generator.state, "has_gauss": has_gauss, "gauss": gauss})


def _random_memory() -> Callable[[], bytes] | None:
    """A function that reads the memory of `random`'s global generator; None if its layout is unknown."""
    place = random_address()
    return None if place is None else lambda: ctypes.string_at(place, STATE_BYTES)


def random_address() -> int | None:
    """Where the state of `random`'s global generator is; None if its layout is unknown."""
    probe = random.Random(7)
    if sys.implementation.name != "cpython" or type(random._inst) is not random.Random:
        return None
    if random.Random.__basicsize__ < _HEAD_BYTES + STATE_BYTES:
        return None
    expected = probe.getstate()[1]
    place = id(probe) + _HEAD_BYTES
    if ctypes.string_at(place, STATE_BYTES) != _MERSENNE.pack(expected[-1], *expected[:-1]):
        return None
    return id(random._inst) + _HEAD_BYTES


def _numpy_memory(numpy: Any) -> Callable[[], bytes | None] | None:
    """A function that reads the memory of NumPy's global generator; None if its layout is unknown."""
    place = numpy_address(numpy)
    if place is None:
        return None
    generator = numpy.random.mtrand._rand._bit_generator

    def peek() -> bytes | None:
        # This closure keeps the generator alive, and so its memory. For another generator, the state is
        # fetched every time.
        if numpy.random.mtrand._rand._bit_generator is not generator:
            return None
        return ctypes.string_at(place, STATE_BYTES)

    return peek


def numpy_address(numpy: Any) -> int | None:
    """Where the state of NumPy's global generator is; None if its layout is unknown."""
    try:
        generator = numpy.random.mtrand._rand._bit_generator
        # Other generators have another layout, and a shorter state.
        if type(generator) is not numpy.random.MT19937:
            return None
        place = generator.ctypes.state_address
        _, numbers, position, *_ = numpy.random.get_state()
    except (AttributeError, TypeError, ValueError):
        return None
    if ctypes.string_at(place, STATE_BYTES) != numbers.tobytes() + int(position).to_bytes(4, "little"):
        return None
    return int(place)
