"""The user's settings as JSON, which the core checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from feedline._described import described
from feedline.errors import InvalidArgumentError

__all__ = ["Auto", "as_json", "call_as_json", "check_finite", "must_fit", "plain"]


Auto: TypeAlias = Literal["auto"]


def plain(value: Any) -> Any:
    """Converts NumPy numbers, arrays and tuples to types that JSON has."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return value


def must_fit(call: str, given: Mapping[str, Any]) -> None:
    """Rejects integers that are too large for the core."""
    for name, value in given.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise InvalidArgumentError(f"{call}: {name} must fit into 64 bits, got {described(value)}")


def as_json(calls: Sequence[dict[str, Any]]) -> str:
    """Several calls as JSON. Raises an error that shows the value if JSON cannot represent an argument."""
    try:
        config = json.dumps(calls, allow_nan=False, ensure_ascii=False)
        # A lone surrogate is valid in a Python string, but not in UTF-8.
        config.encode()
    except (TypeError, ValueError):
        pass
    else:
        return config
    for call in calls:
        for name, value in call.items():
            if not _is_plain(value):
                where, part = _culprit(name, value)
                raise InvalidArgumentError.explained(
                    f"{call['call']}: {where} must be {_wanted(part)}, got {described(part)}"
                )
    raise AssertionError("none of the arguments is the one that JSON cannot represent")


def check_finite(call: str, name: str, value: Any) -> None:
    """Rejects NaN and infinity in arguments that are not passed to the core."""
    given = plain(value)
    if isinstance(given, float) and not math.isfinite(given):
        raise InvalidArgumentError.explained(
            f"{call}: {name} must be {_wanted(given)}, got {described(given)}"
        )


def _wanted(part: Any) -> str:
    return "a finite number" if isinstance(part, float) else "a number, text, or a list or dict of these"


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return False
    return True


def _culprit(where: str, value: Any) -> tuple[str, Any]:
    """The innermost part of an argument that JSON cannot represent, and the path to it."""
    for inside, part in _parts(value):
        if not _is_plain(part):
            return _culprit(where + inside, part)
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{described(name)}]", part) for name, part in value.items())


def call_as_json(call: dict[str, Any]) -> str:
    """One call as JSON."""
    given = {name: plain(value) for name, value in call.items()}
    must_fit(call["call"], given)
    return as_json([given])[1:-1]
