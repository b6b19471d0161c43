"""The user's values in messages: whatever their code does, describing them never fails and is never long."""

from __future__ import annotations

__all__ = ["described", "one_line"]

_MOST = 200
# Python refuses to spell out much larger numbers.
_BITS = 1024


def described(value: object, most: int = _MOST) -> str:
    """The repr of a value, cut where it is long; its type if it has none."""
    try:
        if isinstance(value, int) and value.bit_length() > _BITS:
            return f"<{type(value).__name__} of {value.bit_length()} bits>"
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."


def one_line(text: str) -> str:
    """A name that comes from data, such as a path: it must neither move the cursor of a terminal nor forge a
    line."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text
    )
