"""What can be seen of the state of an object at little cost, to notice that a program has changed it."""

from __future__ import annotations

from typing import Any

from feedline._described import described

__all__ = ["changes", "visible_state"]

# How deep attributes are followed, and how many are compared.
_DEPTH = 4
_MOST = 1000
# Letters of a value that are compared.
_LETTERS = 80


def visible_state(thing: object) -> dict[str, str]:
    """Attributes below an object, by their path: plain values as they are, containers by their size, tensors
    and arrays by their shape. Content is not looked at: a data set may be large."""
    found: dict[str, str] = {}
    _visit(thing, "", found, set(), 0)
    return found


def _visit(thing: object, path: str, found: dict[str, str], seen: set[int], depth: int) -> None:
    if depth > _DEPTH or len(found) >= _MOST or id(thing) in seen:
        return
    seen.add(id(thing))
    try:
        attributes = dict(vars(thing))
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
    """A value in a few buffers; None if it has attributes to be looked at instead."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return described(value, _LETTERS)
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        # Tensors count the changes made in place.
        version = getattr(value, "_version", "")
        return f"{type(value).__name__} {tuple(shape)} {version}".rstrip()
    return None


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs, a line each."""
    nothing = "absent"
    return [
        f"{name} was {before.get(name, nothing)} and is {now.get(name, nothing)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
