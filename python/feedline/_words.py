"""What the user has written, as the words that the core checks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.errors import BadSetting

__all__ = ["call_in_words", "check_finite", "in_words", "plain"]


def plain(value: Any) -> Any:
    """Numbers of NumPy and tuples, as JSON knows them."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return value


def in_words(calls: Sequence[dict[str, Any]]) -> str:
    """Several calls; an argument that cannot be written down is refused, with its value."""
    try:
        return json.dumps(calls, allow_nan=False)
    except (TypeError, ValueError):
        pass
    for call in calls:
        for name, value in call.items():
            if not _is_plain(value):
                where, part = _culprit(name, value)
                raise BadSetting.explained(f"{call['call']}: {where} must be {_wanted(part)}, got {part!r}")
    raise AssertionError("what cannot be written down has a part that cannot")


def check_finite(call: str, name: str, value: Any) -> None:
    """Refuses a number that is none, for arguments that the core does not see."""
    given = plain(value)
    if isinstance(given, float) and not math.isfinite(given):
        raise BadSetting.explained(f"{call}: {name} must be {_wanted(given)}, got {given!r}")


def _wanted(part: Any) -> str:
    return "a finite number" if isinstance(part, float) else "a number, text, or a list or dict of these"


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _culprit(where: str, value: Any) -> tuple[str, Any]:
    """The part of an argument that cannot be written down, and where in it that is."""
    for inside, part in _parts(value):
        if not _is_plain(part):
            return _culprit(where + inside, part)
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{name!r}]", part) for name, part in value.items())


def call_in_words(call: dict[str, Any]) -> str:
    """One call."""
    return in_words([{name: plain(value) for name, value in call.items()}])[1:-1]
