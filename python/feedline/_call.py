"""A call of an executor: its text in messages, and its JSON in a quarantine file.

Both never fail and are always fast, whatever the arguments are: the `__repr__` of user classes is not called.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from feedline._account import valid_utf8

__all__ = ["FailedCall", "Function", "Skipped", "key", "shown"]

# The longest text of one argument and of a whole call, in characters.
_ARGUMENT = 80
_CALL = 300
# How many elements of a collection, levels of nesting, and arguments of a call are shown.
_PARTS = 4
_DEPTH = 2
_ARGUMENTS = 12
# A larger integer is shown by its size: Python refuses to print more than a few thousand digits.
_BITS = 256
# The longest arguments that are written to a quarantine file, in characters, approximately.
_WRITTEN = 16_384
# Calls are compared by this many digits of a float: writing it to a file may have changed the last ones.
_DIGITS = 12


@dataclass(frozen=True)
class FailedCall:
    """The call that raised an exception: the attribute `call` of the exception.

    Attributes:
        function: the name of the function.
        arguments: the arguments as text; long ones are shortened.
        worker: the id of the worker that made the call.
        attempts: how often the call was made.
    """

    function: str
    arguments: str
    worker: int | None
    attempts: int

    def __str__(self) -> str:
        worker = "" if self.worker is None else f", worker {self.worker}"
        attempts = f", after {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{self.function}({self.arguments}){worker}{attempts}"


class Skipped:
    """Takes the place of the result of a skipped call, so that results stay aligned with arguments. It is
    falsy.

    Attributes:
        call: the call, as text.
        error: the exception that the call raised; None if `exclude` names the call, so that it was not made.
    """

    __slots__ = ("call", "error")

    def __init__(self, call: str, error: BaseException | None) -> None:
        self.call = call
        self.error = error

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        if self.error is None:
            return f"<skipped: {self.call} is excluded>"
        return f"<skipped: {self.call} failed with {type(self.error).__name__}>"


class Function:
    """The function of a call, with its name. The arguments of a `functools.partial` count as those of its
    calls."""

    def __init__(self, function: Any, pickled: bytes, folders: frozenset[str] = frozenset()) -> None:
        """`folders` are those that it names."""
        self.pickled = pickled
        self.folders = folders
        # Kept alive: what its calls need may be removed with it, such as a temporary folder.
        self._kept = function
        self._arguments: tuple[Any, ...] = ()
        self._keywords: dict[str, Any] = {}
        while type(function) is functools.partial:
            self._arguments = (*function.args, *self._arguments)
            self._keywords = {**function.keywords, **self._keywords}
            function = function.func
        self.name = _cut(_name(function, "__qualname__"), _ARGUMENT)
        self._full_name = f"{_name(function, '__module__')}.{_name(function, '__qualname__')}"

    def arguments(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
        """The arguments of a call as text; long ones are shortened."""
        positional = (*self._arguments, *arguments)
        named = {**self._keywords, **keywords}
        texts = itertools.chain(map(shown, positional), (f"{name}={shown(named[name])}" for name in named))
        parts = list(itertools.islice(texts, _ARGUMENTS))
        if len(positional) + len(named) > _ARGUMENTS:
            parts.append("...")
        return _cut(", ".join(parts), _CALL)

    def describe(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
        """The call as text; long arguments are shortened."""
        return f"{self.name}({self.arguments(arguments, keywords)})"

    def as_json(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The call as it is written to a quarantine file: without its arguments if JSON cannot represent
        them or if they are very long."""
        call: dict[str, Any] = {"function": valid_utf8(self._full_name)}
        converter = _JsonArguments()
        try:
            positional = [converter.plain(argument) for argument in (*self._arguments, *arguments)]
            named = converter.plain({**self._keywords, **keywords})
        except Exception:
            return call
        return {**call, "arguments": positional, **({"keywords": named} if named else {})}


def key(call: Any) -> str | None:
    """A string that is equal for equal calls of quarantine files; None if the arguments were not written."""
    if not isinstance(call, dict) or "arguments" not in call:
        return None
    parts = [call.get("function"), call["arguments"], call.get("keywords", {})]
    return json.dumps(_rounded(parts), sort_keys=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return {"float": f"{value:.{_DIGITS}g}"}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return value


class _JsonArguments:
    """Converts arguments to values that JSON has; raises if they are too long or of another type."""

    def __init__(self) -> None:
        self._left = _WRITTEN

    def plain(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        self._take(1)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and -(2**63) <= value < 2**64:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if isinstance(value, os.PathLike):
            value = os.fsdecode(value)
        if isinstance(value, str):
            self._take(len(value))
            return valid_utf8(value)
        if isinstance(value, (list, tuple)):
            self._take(len(value))
            return [self.plain(part) for part in value]
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            self._take(sum(map(len, value)))
            return {valid_utf8(name): self.plain(part) for name, part in value.items()}
        raise TypeError(f"JSON has no {type(value).__name__}")

    def _take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise ValueError("too long")


def _name(function: Any, attribute: str) -> str:
    """A name of the function, or of its class if it has none."""
    for named in (function, type(function)):
        try:
            name = getattr(named, attribute, None)
        except Exception:
            continue
        if isinstance(name, str):
            return name
    return type(function).__name__


def shown(argument: Any, depth: int = _DEPTH) -> str:
    """A value as text for a message; long values are shortened."""
    try:
        return _cut(_text(argument, depth), _ARGUMENT)
    except Exception:
        return f"<{type(argument).__name__}>"


def _text(value: Any, depth: int) -> str:
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int):
        bits = value.bit_length()
        return repr(value) if bits <= _BITS else f"<int of {bits} bits>"
    if isinstance(value, str):
        return repr(str.__getitem__(value, slice(_ARGUMENT)))
    if isinstance(value, bytes):
        return repr(bytes.__getitem__(value, slice(_ARGUMENT)))
    if isinstance(value, PurePath):
        return repr(value)
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, np.generic):
        return repr(value.item())
    if type(value) in (list, tuple, set, frozenset, dict):
        return "".join(_parts(value, depth))
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return f"<{type(value).__name__} {tuple(value.shape)} {value.dtype}>"
    return f"<{type(value).__name__}>"


def _parts(value: Any, depth: int) -> Iterator[str]:
    """The text of the first elements of a collection, in pieces."""
    left, right = "[]" if type(value) is list else "()" if type(value) is tuple else "{}"
    yield left
    if depth == 0:
        yield "..."
    else:
        for number, part in enumerate(itertools.islice(value, _PARTS)):
            yield ", " if number else ""
            yield shown(part, depth - 1)
            yield f": {shown(value[part], depth - 1)}" if type(value) is dict else ""
        yield f", ... {len(value) - _PARTS} more" if len(value) > _PARTS else ""
        yield "," if type(value) is tuple and len(value) == 1 else ""
    yield right


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
