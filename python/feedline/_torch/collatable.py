"""Finds the samples that cannot be collated with the others of their batch, after collation has failed."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils

from feedline._described import described
from feedline._torch.random_state import GeneratorStates

__all__ = ["CollateCheck", "Misfit", "name_misfits"]

# The path from a sample to one of its parts: keys and indices.
Place = tuple[Any, ...]
# The aspects in which parts are compared, in order: the first in which they differ is reported.
_ASPECTS = ("none", "kind", "length", "shape", "dtype")
_NONE = ("None",)
# Instead of a key: several keys are equally frequent, so it is unknown which is right.
_UNDECIDED = object()

# How often the collate function is called, at most, to find out which samples fit together.
_MOST_TRIALS = 64
_DEPTH = 16
# Longer lists are not compared item by item.
_ITEMS = 1000
# A larger structure is not remembered, because it is a part of the worker's journal.
_MOST_BYTES = 1024
# How many samples a message names.
_NAMED = 8


@dataclass(frozen=True)
class Misfit:
    """A sample that cannot be collated with the others."""

    offset: int
    # "gives a tensor of shape (3, 200, 224), the other 31 give (3, 224, 224)"
    text: str

    def about(self, index: object) -> str:
        """The text with the index of the sample, or with its offset if it has no index."""
        named = f"the sample at offset {self.offset}" if index is None else f"sample {described(index)}"
        return f"{named} {self.text}"


def name_misfits(raised: BaseException, misfits: Sequence[Misfit], index: Callable[[int], Any]) -> None:
    """Adds a note for each sample to the exception of the collate function."""
    for misfit in misfits[:_NAMED]:
        raised.add_note(f"feedline: {misfit.about(index(misfit.offset))}")
    if len(misfits) > _NAMED:
        raised.add_note(f"feedline: and {len(misfits) - _NAMED} more samples")


@dataclass
class _Group:
    """Offsets of samples that are alike and do not fit the others."""

    offsets: list[int]
    text: str


class CollateCheck:
    """Compares the samples of a batch, and calls the collate function to confirm which ones do not fit."""

    def __init__(self, collate: Callable[[Any], Any], draws: GeneratorStates) -> None:
        self._collate = collate
        self._is_default = collate is _utils.collate.default_collate
        self._draws = draws
        # The structure of a good sample: (place, aspect) -> key. It decides if the batch alone cannot.
        self.memory: dict[tuple[Place, str], Any] | None = None

    def remember(self, samples: Any) -> None:
        """Remembers the structure of the samples of a batch that was collated."""
        memory: dict[tuple[Place, str], Any] = {}
        try:
            for place, value in _places(samples[0], ()):
                memory.update({(place, aspect): _key(value, aspect) for aspect in _ASPECTS[1:]})
            is_small = len(pickle.dumps(memory)) <= _MOST_BYTES
        except Exception:
            # A user's class that cannot be inspected.
            is_small = False
        self.memory = memory if is_small else {}

    def check(self, samples: list[Any]) -> None:
        """Collates samples, and raises what the collate function raises."""
        state = self._draws.state()
        try:
            self._collate(samples)
        finally:
            self._draws.restore(state)

    def misfits(self, samples: Sequence[Any]) -> list[Misfit]:
        """The samples that make collation fail, in order; empty if they cannot be determined.

        The others were collated without them, so these are certainly the cause."""
        state = self._draws.state()
        try:
            groups = self._groups(list(samples))
        except Exception:
            # A user's class that cannot be compared: the error names only the batch.
            return []
        finally:
            self._draws.restore(state)
        found = [Misfit(offset, group.text) for group in groups for offset in group.offsets]
        return sorted(found, key=lambda misfit: misfit.offset)

    def _groups(self, samples: list[Any]) -> list[_Group]:
        fitting = list(range(len(samples)))
        groups: list[_Group] = []
        while fitting:
            split = self._split(samples, fitting)
            if split is None:
                return []
            groups += split
            odd = {offset for group in split for offset in group.offsets}
            fitting = [offset for offset in fitting if offset not in odd]
            if fitting and self._fits(samples, fitting):
                break
        return self._to_blame(samples, fitting, groups)

    def _to_blame(self, samples: list[Any], fitting: list[int], groups: list[_Group]) -> list[_Group]:
        """Removes the groups that differ from the others but can be collated with them."""
        if not fitting or (len(groups) == 1 and (self._is_default or len(groups[0].offsets) == 1)):
            return groups
        blamed: list[_Group] = []
        trials = 0
        for number, group in enumerate(groups):
            parts = [group.offsets]
            if not self._is_default and len(group.offsets) > 1:
                parts = [[offset] for offset in group.offsets]
            odd: list[int] = []
            for part in parts:
                is_last = number == len(groups) - 1 and part is parts[-1]
                if (is_last and not blamed and not odd) or trials >= _MOST_TRIALS:
                    # All samples together cannot be collated, so these do not fit.
                    odd += part
                    continue
                trials += 1
                together = sorted(fitting + part)
                if self._fits(samples, together):
                    fitting = together
                else:
                    odd += part
            if odd:
                blamed.append(_Group(odd, group.text))
        return blamed

    def _fits(self, samples: list[Any], offsets: list[int]) -> bool:
        try:
            self._collate([samples[offset] for offset in offsets])
        except Exception:
            return False
        return True

    def _split(self, samples: list[Any], offsets: list[int]) -> list[_Group] | None:
        """The samples that differ from most others, in groups; None if all are alike."""
        values = [samples[offset] for offset in offsets]
        for aspect in _ASPECTS:
            for place, parts, keys in _differing(values, aspect, ()):
                if aspect == "none":
                    return [_without_value(place, parts, keys, offsets, len(samples))]
                norm = self._norm(samples, offsets, keys, (place, aspect))
                if norm is None:
                    return None
                return _odd(place, aspect, parts, keys, offsets, norm, len(samples))
        if len(samples) == 1:
            return self._unlike_before(values[0])
        if all(value is None for value in values):
            return [_Group(offsets, "gives None")]
        if self._is_default:
            for place, _, _ in _differing(values, "none", (), all_alike=True):
                return [_Group(offsets, f"gives None{_at(place)}")]
        return None

    def _norm(self, samples: list[Any], offsets: list[int], keys: list[Any], where: tuple[Place, str]) -> Any:
        """The key of most samples; `_UNDECIDED`; or None if the difference does not explain the failure."""
        counts = Counter(keys)
        most = max(counts.values())
        first, *others = [key for key, count in counts.items() if count == most]
        if not others:
            return first
        groups = {
            key: [offset for offset, own in zip(offsets, keys, strict=True) if own == key]
            for key in (first, *others)[:_MOST_TRIALS]
        }
        good = [key for key, group in groups.items() if self._fits(samples, group)]
        if not good:
            return None
        if len(good) == 1:
            return good[0]
        known = (self.memory or {}).get(where)
        return known if known in good else _UNDECIDED

    def _unlike_before(self, sample: Any) -> list[_Group] | None:
        """Compares the only sample of a batch with those of earlier batches."""
        if sample is None:
            return [_Group([0], "gives None")]
        memory = self.memory or {}
        for place, value in _places(sample, ()):
            for aspect in _ASPECTS[1:]:
                known = memory.get((place, aspect))
                if known is not None and known != _key(value, aspect):
                    text = f"gives {_described(value, aspect)}{_at(place)}, unlike earlier samples"
                    return [_Group([0], text)]
        return None


# ---- the structure of a sample ----


def _key(value: Any, aspect: str) -> Any:
    """The key of a part in one aspect; empty if the aspect does not apply to it."""
    if value is None:
        return _NONE
    if aspect in ("none", "kind"):
        return () if aspect == "none" else _kind(value)
    if aspect == "length":
        return (len(value),) if _is_sequence(value) else ()
    if not isinstance(value, (torch.Tensor, np.ndarray)) or _is_nested(value):
        return ()
    return (tuple(value.shape),) if aspect == "shape" else (str(value.dtype),)


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.layout), _is_nested(value))
    if isinstance(value, np.ndarray):
        return ("array",)
    if isinstance(value, (Number, np.generic)) and not isinstance(value, (np.str_, np.bytes_)):
        # Numbers of different types can be collated.
        return ("number",)
    if isinstance(value, Mapping):
        return ("dict", frozenset(value))
    if _is_sequence(value):
        return ("sequence",)
    return (type(value).__module__, type(value).__qualname__)


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.is_nested)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _inside(values: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The parts that all values have, by key."""
    first = values[0]
    if all(isinstance(value, Mapping) for value in values):
        for name in first:
            if all(name in value for value in values):
                yield name, [value[name] for value in values]
    elif all(_is_sequence(value) for value in values):
        length = len(first)
        if length <= _ITEMS and all(len(value) == length for value in values):
            for number in range(length):
                yield number, [value[number] for value in values]


def _places(sample: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """A sample and all of its parts."""
    yield place, sample
    if len(place) < _DEPTH:
        for step, (part,) in _inside([sample]):
            yield from _places(part, (*place, step))


def _differing(
    values: list[Any], aspect: str, place: Place, *, all_alike: bool = False
) -> Iterator[tuple[Place, list[Any], list[Any]]]:
    """The places where values differ in an aspect or, if `all_alike`, where all of them are None; with the
    parts at that place and their keys."""
    keys = [_key(value, aspect) for value in values]
    if all(key == _NONE for key in keys) if all_alike else len(set(keys)) > 1:
        yield place, values, keys
    if len(place) < _DEPTH:
        for step, parts in _inside(values):
            yield from _differing(parts, aspect, (*place, step), all_alike=all_alike)


# ---- messages ----


def _without_value(place: Place, parts: list[Any], keys: list[Any], offsets: list[int], total: int) -> _Group:
    """The samples that are None at a place: these are always the odd ones, even if most are None."""
    odd = [offset for offset, key in zip(offsets, keys, strict=True) if key == _NONE]
    good = [part for part, key in zip(parts, keys, strict=True) if key != _NONE]
    others = _others(len(good), total)
    return _Group(odd, f"gives None{_at(place)}, {others} {_described(good[0], 'shape')}")


def _odd(
    place: Place, aspect: str, parts: list[Any], keys: list[Any], offsets: list[int], norm: Any, total: int
) -> list[_Group]:
    counts = Counter(keys)
    groups: list[_Group] = []
    for key in counts:
        if key == norm:
            continue
        usual = norm if norm is not _UNDECIDED else next(other for other in counts if other != key)
        own, other = parts[keys.index(key)], parts[keys.index(usual)]
        gives, give = _two(own, other, aspect)
        others = _others(counts[usual], total)
        text = f"gives {gives}{_at(place)}, {others} {give}"
        odd = [offset for offset, other_key in zip(offsets, keys, strict=True) if other_key == key]
        groups.append(_Group(odd, text))
    return groups


def _others(count: int, total: int) -> str:
    """The number of other samples that are alike, with a verb."""
    verb = "gives" if count == 1 else "give"
    if count == total - 1:
        return f"the other {verb}" if count == 1 else f"the other {count} {verb}"
    return f"{count} of the other {total - 1} {verb}"


def _two(own: Any, other: Any, aspect: str) -> tuple[str, str]:
    """Descriptions of two parts that differ; a common noun is only in the first."""
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        missing = [name for name in other if name not in own]
        extra = [name for name in own if name not in other]
        if missing and not extra:
            return f"a dict without {_keys(missing)}", "one with it"
        if extra and not missing:
            return f"a dict with {_keys(extra)}", "one without it"
        return f"a dict with {_keys(own)}", f"one with {_keys(other)}"
    gives, give = _described(own, aspect), _described(other, aspect)
    for noun in ("a tensor of shape ", "an array of shape ", "a tensor of ", "an array of "):
        if gives.startswith(noun) and give.startswith(noun):
            return gives, give.removeprefix(noun)
    return gives, give


def _keys(names: Any) -> str:
    listed = list(names)
    shown = ", ".join(repr(name) for name in listed[:_NAMED])
    return f"the key{'' if len(listed) == 1 else 's'} {shown}{', ...' if len(listed) > _NAMED else ''}"


def _described(value: Any, aspect: str) -> str:
    if value is None:
        return "None"
    if isinstance(value, (torch.Tensor, np.ndarray)):
        noun = "a tensor" if isinstance(value, torch.Tensor) else "an array"
        if _is_nested(value):
            return "a nested tensor"
        return f"{noun} of {value.dtype}" if aspect == "dtype" else f"{noun} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict with {_keys(value)}"
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name} of {len(value)}" if _is_sequence(value) else f"{article} {name}"


def _at(place: Place) -> str:
    """The place in a sample, in Python syntax."""
    steps = "".join(f'["{step}"]' if isinstance(step, str) else f"[{step!r}]" for step in place)
    return f" at {steps}" if steps else ""
