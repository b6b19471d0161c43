"""The states of the random generators on which the order of an epoch depends, as bytes and as text."""

from __future__ import annotations

import base64
import binascii
import ctypes
import random
import struct
import sys
from typing import Any

import numpy as np
import torch

from feedline._torch.sampling import sampler_of, seeds_each_epoch
from feedline._torch.state import from_plain, plain
from feedline.errors import StateMismatchError

__all__ = ["Generators", "GlobalStates", "as_text", "of_loader"]

# The state of torch's generator for CPUs: a Mersenne Twister whose 624 words have 8 bytes each, 4 of which
# are always zero.
_CPU_BYTES = 5056
_HEAD, _TAIL = 24, 24 + 8 * 624
# The state of Python's generator: 624 words, and a position.
_WORDS = struct.Struct("<625I")


def _bytes_of(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _set(generator: torch.Generator, raw: bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))


def as_text(raw: bytes) -> str:
    """A state as short text."""
    if len(raw) == _CPU_BYTES:
        # A memoryview takes four times as long to copy every other word.
        words = np.frombuffer(raw, np.uint32, 2 * 624, _HEAD)
        if not words[1::2].any():
            packed = b"".join((raw[:_HEAD], words[::2].tobytes(), raw[_TAIL:]))
            return "m" + base64.b64encode(packed).decode()
    return "b" + base64.b64encode(raw).decode()


def _from_text(text: Any) -> bytes:
    try:
        # base64.b64decode(validate=True) looks for a pattern first, which takes longer than decoding.
        kind, packed = text[0], binascii.a2b_base64(text[1:], strict_mode=True)
        if kind == "b":
            return packed
        end = _HEAD + 4 * 624
        words = memoryview(packed)[_HEAD:end].cast("I")
        whole = bytearray(_CPU_BYTES)
        whole[:_HEAD], whole[_TAIL:] = packed[:_HEAD], packed[end:]
        memoryview(whole)[_HEAD:_TAIL].cast("I")[::2] = words
        return bytes(whole)
    except (TypeError, ValueError, IndexError):
        raise StateMismatchError.explained("the state of a generator is corrupt") from None


def of_loader(loader: Any) -> Generators:
    """The generators that torch's samplers of this loader draw from, each once: first the one that gives the
    seed of the workers."""
    found = [loader.generator if loader.generator is not None else torch.default_generator]
    samplers = [loader.batch_sampler, sampler_of(loader), loader.sampler]
    for sampler in samplers:
        if sampler is None or seeds_each_epoch(sampler):
            continue
        generator = getattr(sampler, "generator", None)
        if generator is None and _draws_globally(sampler):
            generator = torch.default_generator
        if isinstance(generator, torch.Generator) and all(other is not generator for other in found):
            found.append(generator)
    return Generators(found)


def _draws_globally(sampler: Any) -> bool:
    """Whether it may draw from torch's global generator. Only those that certainly do not are left out."""
    return type(sampler) not in (
        torch.utils.data.BatchSampler,
        torch.utils.data.SequentialSampler,
        torch.utils.data.distributed.DistributedSampler,
    )


class Generators:
    """Some generators of torch."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._generators = generators

    def __len__(self) -> int:
        return len(self._generators)

    @property
    def has_global(self) -> bool:
        return any(generator is torch.default_generator for generator in self._generators)

    def states(self) -> list[bytes]:
        return [_bytes_of(generator) for generator in self._generators]

    def set(self, states: list[bytes]) -> None:
        for generator, raw in zip(self._generators, states, strict=False):
            _set(generator, raw)

    def set_texts(self, texts: list[Any]) -> None:
        if len(texts) != len(self._generators):
            raise StateMismatchError.explained(
                f"the state has {len(texts)} generators, this loader has {len(self._generators)}"
            )
        raw = [_from_text(text) for text in texts]
        try:
            self.set(raw)
        except (RuntimeError, TypeError) as error:
            raise StateMismatchError.explained(
                f"the state of a generator does not fit this loader's: {error}"
            ) from None

    def texts_with_global_now(self, texts: list[str]) -> list[str]:
        """The same states, but that of the global generator as it is now."""
        return [
            as_text(self.global_state()) if generator is torch.default_generator else text
            for generator, text in zip(self._generators, texts, strict=True)
        ]

    @staticmethod
    def global_state() -> bytes:
        return _bytes_of(torch.default_generator)

    @staticmethod
    def set_global(raw: bytes) -> None:
        _set(torch.default_generator, raw)


class GlobalStates:
    """The states of Python's and NumPy's global generators, from which samplers of users draw."""

    @staticmethod
    def texts() -> dict[str, Any]:
        states: dict[str, Any] = {}
        try:
            version, numbers, gauss = random.getstate()
            packed = _WORDS.pack(*numbers)
            states["python"] = [version, base64.b64encode(packed).decode(), gauss]
        except (NotImplementedError, TypeError, ValueError, struct.error):
            # The program replaced it by one without such a state.
            pass
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            states["numpy"] = plain(numpy.random.get_state(legacy=False), "the state of NumPy's generator")
        return states

    @staticmethod
    def set(states: dict[str, Any]) -> None:
        if "python" in states:
            version, text, gauss = states["python"]
            random.setstate((version, _WORDS.unpack(base64.b64decode(text, validate=True)), gauss))
        if "numpy" in states:
            import numpy

            numpy.random.set_state(from_plain(states["numpy"]))
