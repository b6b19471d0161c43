"""A second implementation of Feedline's random draws: a function of seed, position and step."""

from __future__ import annotations

import math
from functools import reduce

__all__ = ["Draws", "resized_crop_box"]

_ALL = (1 << 64) - 1
_STEP = 0x9E37_79B9_7F4A_7C15

Box = tuple[int, int, int, int]


def _mix(value: int) -> int:
    value = (value + _STEP) & _ALL
    value = ((value ^ value >> 30) * 0xBF58_476D_1CE4_E5B9) & _ALL
    value = ((value ^ value >> 27) * 0x94D0_49BB_1331_11EB) & _ALL
    return value ^ value >> 31


class Draws:
    """The draws of one step for one sample."""

    def __init__(self, seed: int, position: int, step: int) -> None:
        parts, start = (seed, position, step), 0x6665_6564_6C69_6E65
        self._state = reduce(lambda state, part: _mix(state ^ _mix(part)), parts, start)

    def _bits(self) -> int:
        bits = _mix(self._state)
        self._state = (self._state + _STEP) & _ALL
        return bits

    def unit(self) -> float:
        return float((self._bits() >> 11) / (1 << 53))

    def between(self, low: float, high: float) -> float:
        return low + self.unit() * (high - low)

    def below(self, bound: int) -> int:
        return (self._bits() * bound) >> 64


def resized_crop_box(
    draws: Draws, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Box:
    """(top, left, height, width), computed as torchvision's RandomResizedCrop.get_params does."""
    for _ in range(10):
        area = height * width * draws.between(*scale)
        aspect = math.exp(draws.between(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return draws.below(height - high + 1), draws.below(width - wide + 1), high, wide
    wide, high = width, height
    if width / height < min(ratio):
        high = round(width / min(ratio))
    elif width / height > max(ratio):
        wide = round(height * max(ratio))
    return (height - high) // 2, (width - wide) // 2, high, wide
