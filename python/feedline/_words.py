"""What the user has written, as the words that the core checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feedline.errors import BadSetting

__all__ = ["call_in_words", "in_words", "plain"]


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
    """Several calls; what cannot be written down is refused in the name of the last."""
    try:
        return json.dumps(calls, allow_nan=False)
    except (TypeError, ValueError):
        last = calls[-1]
        shown = ", ".join(f"{name}={value!r}" for name, value in last.items() if name != "call")
        raise BadSetting(f"{last['call']}: these are not plain numbers and words: {shown}") from None


def call_in_words(call: dict[str, Any]) -> str:
    """One call."""
    return in_words([{name: plain(value) for name, value in call.items()}])[1:-1]
