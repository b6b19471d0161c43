"""Text for the user's values in messages: never fails, whatever their `__repr__` does, and is never long."""

from __future__ import annotations

__all__ = ["described", "one_line"]

_MOST = 200
# Python refuses to print much larger integers.
_BITS = 1024


def described(value: object, most: int = _MOST) -> str:
    """The repr of a value, shortened if it is long; its type if the repr fails."""
    try:
        if isinstance(value, int) and value.bit_length() > _BITS:
            return f"<{type(value).__name__} of {value.bit_length()} bits>"
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= most else text[: most - 3] + "..."


def one_line(text: str) -> str:
    """Escapes control characters in a name that comes from data, such as a path: it must neither move the
    cursor of a terminal nor forge a line."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
