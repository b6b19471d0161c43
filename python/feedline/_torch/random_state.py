"""The state of all generators that torch seeds in a worker, noted after every batch.

Asking NumPy or `random` for their state costs more than a small batch does. Their numbers lie at known
places in memory, which are compared instead; only what has changed is asked for. Where those places are
not as expected, all is asked for every time.
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

__all__ = ["Draws", "State"]

_MERSENNE = struct.Struct("<625I")
_STATE_BYTES = 2500
# An object's head: count and type.
_HEAD_BYTES = 16

# Of random, torch and NumPy; None where there is none to be noted.
State = tuple[bytes | None, bytes, bytes | None]


class Draws:
    """Notes and restores the states."""

    def __init__(self) -> None:
        self._peek_random = _random_memory()
        self._peek_numpy: Callable[[], bytes | None] | None = None
        self._seen_random: object = None
        self._noted_random: bytes | None = None
        self._seen_numpy: object = None
        self._noted_numpy: bytes | None = None
        self._numpy_has_waiting = False

    def state(self) -> State:
        # Not torch.get_rng_state: code under a default device or a mode of torch may ask.
        torch_state = torch.default_generator.get_state()
        return self._random(), ctypes.string_at(torch_state.data_ptr(), torch_state.numel()), self._numpy()

    def _random(self) -> bytes | None:
        peek = self._peek_random
        # Half of a pair of normal numbers waits here, outside of the generator.
        seen = None if peek is None else (peek(), random._inst.gauss_next)  # type: ignore[attr-defined]
        if seen is None or seen != self._seen_random:
            self._noted_random = _random_state()
            self._seen_random = seen
        return self._noted_random

    def _numpy(self) -> bytes | None:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if self._peek_numpy is None:
            self._peek_numpy = _numpy_memory(numpy)
        seen = None if self._peek_numpy is None else self._peek_numpy()
        # A waiting normal number is used up without a change of the rest.
        if seen is None or self._numpy_has_waiting or seen != self._seen_numpy:
            # The generator itself: one that a library brings has a state that only its class knows.
            generator = numpy.random.mtrand._rand._bit_generator
            state = numpy.random.get_state(legacy=False)
            self._numpy_has_waiting = bool(state["has_gauss"])
            self._noted_numpy = pickle.dumps((generator, state["has_gauss"], state["gauss"]))
            self._seen_numpy = seen
        return self._noted_numpy

    def restore(self, state: State) -> None:
        random_state, torch_state, numpy_state = state
        if random_state is not None:
            version, numbers, gauss = pickle.loads(random_state)
            random.setstate((version, _MERSENNE.unpack(numbers), gauss))
        torch.default_generator.set_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
        if numpy_state is not None:
            _restore_numpy(*pickle.loads(numpy_state))


def _random_state() -> bytes | None:
    """Of `random`; None where a program has put a generator in its place that has no such state."""
    try:
        version, numbers, gauss = random.getstate()
        return pickle.dumps((version, _MERSENNE.pack(*numbers), gauss))
    except (NotImplementedError, TypeError, ValueError, struct.error):
        return None


def _restore_numpy(generator: Any, has_waiting: int, waiting: float) -> None:
    import numpy

    # A program may hold the one that is in use, so that is changed if it can be.
    if type(numpy.random.mtrand._rand._bit_generator) is not type(generator):
        numpy.random.mtrand.set_bit_generator(generator)
    numpy.random.set_state({**generator.state, "has_gauss": has_waiting, "gauss": waiting})


def _random_memory() -> Callable[[], bytes] | None:
    """Reads where the global generator of `random` keeps its numbers; None where that is not known."""
    probe = random.Random(7)
    if sys.implementation.name != "cpython" or type(random._inst) is not random.Random:
        return None
    if random.Random.__basicsize__ < _HEAD_BYTES + _STATE_BYTES:
        return None
    expected = probe.getstate()[1]
    place = id(probe) + _HEAD_BYTES
    if ctypes.string_at(place, _STATE_BYTES) != _MERSENNE.pack(expected[-1], *expected[:-1]):
        return None
    place = id(random._inst) + _HEAD_BYTES
    return lambda: ctypes.string_at(place, _STATE_BYTES)


def _numpy_memory(numpy: Any) -> Callable[[], bytes | None] | None:
    """As above, of NumPy's global generator."""
    try:
        generator = numpy.random.mtrand._rand._bit_generator
        # Others have their states at other places, and shorter ones.
        if type(generator) is not numpy.random.MT19937:
            return None
        place = generator.ctypes.state_address
        _, numbers, position, *_ = numpy.random.get_state()
    except (AttributeError, TypeError, ValueError):
        return None
    if ctypes.string_at(place, _STATE_BYTES) != numbers.tobytes() + int(position).to_bytes(4, "little"):
        return None

    def peek() -> bytes | None:
        # Held, so that the memory stays. Another generator put in its place is asked every time.
        if numpy.random.mtrand._rand._bit_generator is not generator:
            return None
        return ctypes.string_at(place, _STATE_BYTES)

    return peek
