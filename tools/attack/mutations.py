"""Random changes to bytes, to JSON and to files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["NUMBERS", "Damage", "damage", "damage_at", "damage_json", "replace_file"]

NUMBERS = [0, 1, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -(2**63), 0.5]


class Damage:
    """Changed bytes, and the range of the original bytes that were changed: from `start` to before `end`.

    The bytes before `start` and from `end` on are still there, but may have moved.
    """

    def __init__(self, content: bytes, start: int, end: int, what: str) -> None:
        self.content = content
        self.start = start
        self.end = end
        self.what = what

    def touches(self, start: int, end: int) -> bool:
        """Whether any of these original bytes were changed, or others inserted between them."""
        return self.start < end and start < max(self.end, self.start + 1)


def damage(draws: Random, content: bytes) -> Damage:
    """Changes one range of bytes, anywhere."""
    return damage_at(draws, content, draws.randrange(len(content) + 1))


def damage_at(draws: Random, content: bytes, at: int) -> Damage:
    """Changes one range of bytes, from an offset on."""
    end = min(len(content), at + draws.choice([1, 1, 1, 4, 20, 200, 1000]))
    old = content[at:end]
    way = draws.choice(["flip", "random", "zeros", "truncate", "insert", "remove", "double"])
    if way == "flip" and old:
        place = draws.randrange(len(old))
        new = old[:place] + bytes([old[place] ^ (1 << draws.randrange(8))]) + old[place + 1 :]
        at, end, new = at + place, at + place + 1, new[place : place + 1]
    elif way == "random":
        new = draws.randbytes(len(old))
    elif way == "zeros":
        new = bytes(len(old))
    elif way == "truncate":
        end, new = len(content), b""
    elif way == "insert":
        end, new = at, draws.randbytes(draws.choice([1, 3, 100]))
    elif way == "double":
        # The original bytes are unchanged, but a second copy follows.
        at, new = end, old
    else:
        new = b""
    text = f"{way} of bytes {at} to {end} of {len(content)}"
    return Damage(content[:at] + new + content[end:], at, end, text)


def damage_json(draws: Random, text: str) -> str:
    """Changes the values, keys, nesting or bytes of a JSON text."""
    if draws.random() < 0.2:
        content = damage(draws, text.encode()).content
        return content.decode(errors=draws.choice(["replace", "ignore"]))
    ways: list[Callable[[Random, str], str]] = [_change_value, _change_value, _double_key, _nest, _odd_text]
    return draws.choice(ways)(draws, text)


def _change_value(draws: Random, text: str) -> str:
    """Changes one value, anywhere in the document."""
    document = json.loads(text)
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in inside:
            places.append((value, key))
            if isinstance(inner, (dict, list)):
                collect(inner)

    if isinstance(document, (dict, list)):
        collect(document)
    if not places:
        return json.dumps(draws.choice(NUMBERS))
    holder, key = draws.choice(places)
    if draws.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    elif draws.random() < 0.2:
        other, other_key = draws.choice(places)
        holder[key] = other.get(other_key) if isinstance(other, dict) else other[other_key]
    else:
        values: list[Any] = [*NUMBERS, None, True, "", "\x1b[2J", [], {}, [[]], float("nan"), float("inf")]
        old = holder[key]
        if isinstance(old, int) and not isinstance(old, bool):
            values += [old + 1, old - 1, -old, old * 2, float(old)] * 3
        holder[key] = draws.choice(values)
    try:
        return json.dumps(document)
    except (ValueError, RecursionError):
        # The document contains itself now.
        return text


def _double_key(draws: Random, text: str) -> str:
    """Repeats a key with another value."""
    at = text.rfind("}")
    document = json.loads(text)
    if at < 0 or not isinstance(document, dict) or not document:
        return text + text
    key = draws.choice(sorted(document))
    return f"{text[:at]},{json.dumps(key)}:{json.dumps(draws.choice(NUMBERS))}{text[at:]}"


def _nest(draws: Random, text: str) -> str:
    """Inserts a deeply nested value."""
    depth = draws.choice([10, 200, 100_000])
    opening, closing = draws.choice([("[", "]"), ('{"a":', "}")])
    nested = opening * depth + "1" + closing * depth
    at = text.find(":")
    return nested if at < 0 or draws.random() < 0.5 else f"{text[: at + 1]}{nested},{text[at + 1 :]}"


def _odd_text(draws: Random, text: str) -> str:
    ways = ["", " ", "null", "{}", "[]", '"', "\0", "\ufeff" + text, text + "x", " " + text + "\n", "1e999"]
    return draws.choice([*ways, text[: draws.randrange(len(text) + 1)], "\ud800", "9" * 5000])


def replace_file(draws: Random, path: Path) -> str:
    """Replaces a file by something else, such as a pipe or a folder; returns its name."""
    path.unlink(missing_ok=True)
    way = draws.choice(["endless", "pipe", "folder", "nowhere", "itself", "full"])
    if way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    else:
        nowhere = path.parent / "none"
        targets = {"endless": "/dev/zero", "nowhere": str(nowhere), "itself": str(path), "full": "/dev/full"}
        path.symlink_to(targets[way])
    return way
