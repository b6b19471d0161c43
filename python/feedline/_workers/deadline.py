"""The settings for samples that take too long, the same on every front."""

from __future__ import annotations

import math
import os
from typing import Any

from feedline._described import described
from feedline.errors import InvalidArgumentError

__all__ = ["deadline_config"]

# Seconds after which a worker that neither answers nor uses the processor counts as hung, for tests and for
# programs that know better than the default.
_VARIABLE = "FEEDLINE_HANG_SECONDS"


def deadline_config(deadline: object, retries: int) -> dict[str, Any]:
    """The config of `deadline`; `retries` is how often the policy retries a sample that passes it."""
    hangs = 1 + retries
    if not isinstance(deadline, str) or deadline != "auto":
        return {"deadline": deadline, "hangs": hangs}
    # Nobody asked for a deadline: one hang may be an accident, a second one is the sample.
    return {"deadline": "auto", "hangs": max(2, hangs), "hang_seconds": _hang_seconds()}


def _hang_seconds() -> float | None:
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 1e9:
        raise InvalidArgumentError.explained(
            f"{_VARIABLE} must be a number of seconds from 0.1, got {described(text)}",
            f"unset {_VARIABLE}, or set it to a number such as 600",
        )
    return seconds
