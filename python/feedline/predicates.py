"""Predicates for `filter()`, written as comparisons: `(fl.col("label") < 5) & (fl.length("tokens") >= 16)`.

The core evaluates them, without a call of Python for each sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feedline._config import plain
from feedline._described import described
from feedline.errors import InvalidArgumentError

__all__ = ["Column", "Predicate", "col", "length"]

Constant = int | float | str | bool


class Predicate:
    """A condition on a sample. Combine several with `&`, `|` and `~`."""

    __slots__ = ("_config",)

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def __and__(self, other: Predicate) -> Predicate:
        return _joined("and", self, other)

    def __or__(self, other: Predicate) -> Predicate:
        return _joined("or", self, other)

    def __invert__(self) -> Predicate:
        return Predicate({"op": "not", "of": [self._config]})

    def __bool__(self) -> bool:
        raise InvalidArgumentError(
            "filter: combine predicates with &, | and ~, each in parentheses, not with and, or, not"
        )

    def __repr__(self) -> str:
        return _shown(self._config)


class Column:
    """A field of a sample, or its length, for comparisons."""

    __slots__ = ("_field",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"{kind}: give the name of a field, got {described(name)}")
        self._field = {kind: name}

    def _compared(self, op: str, value: Constant) -> Predicate:
        given = plain(value)
        if not isinstance(given, (int, float, str)):
            raise InvalidArgumentError(
                f"filter: a field can be compared with a number or text, got {described(value)}"
            )
        return Predicate({"op": op, **self._field, "value": given})

    def __lt__(self, value: Constant) -> Predicate:
        return self._compared("<", value)

    def __le__(self, value: Constant) -> Predicate:
        return self._compared("<=", value)

    def __eq__(self, value: Constant) -> Predicate:  # type: ignore[override]
        return self._compared("==", value)

    def __ne__(self, value: Constant) -> Predicate:  # type: ignore[override]
        return self._compared("!=", value)

    def __ge__(self, value: Constant) -> Predicate:
        return self._compared(">=", value)

    def __gt__(self, value: Constant) -> Predicate:
        return self._compared(">", value)

    def isin(self, values: Iterable[Constant]) -> Predicate:
        """Whether the field is one of these values."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InvalidArgumentError(f"isin: give a list of numbers or texts, got {described(values)}")
        return Predicate({"op": "in", **self._field, "values": plain(list(values))})

    def __repr__(self) -> str:
        return _field(self._field)


def col(name: str) -> Column:
    """The number or text in a field; "index" is the index of the sample."""
    return Column("col", name)


def length(name: str) -> Column:
    """The number of entries in a field of variable length, of bytes, or of characters of text."""
    return Column("length", name)


def _joined(op: str, one: Predicate, other: Any) -> Predicate:
    if not isinstance(other, Predicate):
        raise InvalidArgumentError(
            f"filter: {one!r} can only be combined with a predicate, got {described(other)}"
        )
    # Flat, so that long chains are not nested deeply.
    parts = [
        part
        for config in (one._config, other._config)
        for part in (config["of"] if config["op"] == op else [config])
    ]
    return Predicate({"op": op, "of": parts})


def _field(config: dict[str, Any]) -> str:
    kind = "col" if "col" in config else "length"
    return f"{kind}({config[kind]!r})"


def _shown(config: dict[str, Any]) -> str:
    match config["op"]:
        case "and" | "or" as op:
            sign = {"and": " & ", "or": " | "}[op]
            return "(" + sign.join(_shown(part) for part in config["of"]) + ")"
        case "not":
            return f"~{_shown(config['of'][0])}"
        case "in":
            return f"{_field(config)}.isin({config['values']!r})"
        case op:
            return f"({_field(config)} {op} {config['value']!r})"
