"""A cheap summary of the state of an object, to detect that the program has changed it."""

from __future__ import annotations

from typing import Any

from feedline._described import described

__all__ = ["changes", "visible_state"]

# How deep attributes are followed, and how many are compared.
_DEPTH = 4
_MOST = 1000
# How many characters of a value are compared.
_CHARACTERS = 80


def visible_state(obj: object) -> dict[str, str]:
    """The attributes of an object, by their path: plain values by their repr, containers by their size,
    tensors and arrays by their shape. Their content is not compared, because a data set may be large."""
    found: dict[str, str] = {}
    _visit(obj, "", found, set(), 0)
    return found


def _visit(obj: object, path: str, found: dict[str, str], seen: set[int], depth: int) -> None:
    if depth > _DEPTH or len(found) >= _MOST or id(obj) in seen:
        return
    seen.add(id(obj))
    try:
        attributes = dict(vars(obj))
    except TypeError:
        return
    for name, value in attributes.items():
        where = f"{path}.{name}" if path else name
        short = _short(value)
        if short is not None:
            found[where] = short
        elif not isinstance(value, type) and not callable(value):
            _visit(value, where, found, seen, depth + 1)


def _short(value: Any) -> str | None:
    """A short text for a value; None if its attributes must be compared instead."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return described(value, _CHARACTERS)
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        # Tensors count their changes in place.
        version = getattr(value, "_version", "")
        return f"{type(value).__name__} {tuple(shape)} {version}".rstrip()
    return None


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The differences, one per line."""
    absent = "absent"
    return [
        f"{name} was {before.get(name, absent)} and is {now.get(name, absent)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
