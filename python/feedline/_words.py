"""What the user has written, as the words that the core checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline._described import described
from feedline.errors import BadSetting

__all__ = ["call_in_words", "in_words", "must_fit", "plain"]


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


def must_fit(call: str, given: Mapping[str, Any]) -> None:
    """Refuses numbers that are too large for the core."""
    for name, value in given.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise BadSetting(f"{call}: {name} must fit into 64 bits, got {described(value)}")


def in_words(calls: Sequence[dict[str, Any]]) -> str:
    """Several calls; what cannot be written down is refused in the name of the last."""
    try:
        words = json.dumps(calls, allow_nan=False, ensure_ascii=False)
        # Half of a pair of UTF-16 is text in Python only.
        words.encode()
    except (TypeError, ValueError):
        last = calls[-1]
        shown = ", ".join(f"{name}={described(value)}" for name, value in last.items() if name != "call")
        raise BadSetting(f"{last['call']}: these are not plain numbers and words: {shown}") from None
    return words


def call_in_words(call: dict[str, Any]) -> str:
    """One call."""
    given = {name: plain(value) for name, value in call.items()}
    must_fit(call["call"], given)
    return in_words([given])[1:-1]
