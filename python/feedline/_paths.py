"""Expands the user's paths, patterns, braces, and lists of them to files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from feedline import _native
from feedline._described import described
from feedline.errors import InvalidSourceError

__all__ = ["Path", "Paths", "listed", "path_text", "shown"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = Path | Sequence[Path]

# Characters of a pattern, of braces, or of an address on another machine.
_SPECIAL = frozenset("*?[{:")


def path_text(path: Any, call: str) -> str:
    """A path as text; bytes are decoded with the encoding of the file system."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InvalidSourceError(f"{call}: a path must be text, got {described(path)}")
    text = os.fsdecode(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidSourceError(f"{call}: no file can have this name: {described(text)}") from None
    return text


def local_path(path: Any, call: str) -> str:
    """A single path, which must be on this machine."""
    text = path_text(path, call)
    if ":" in text:
        # Only the prefix counts, so it does not matter whether the name is valid UTF-8.
        _native.check_local(os.fsencode(text).decode(errors="replace"))
    return text


def listed(call: str, paths: Any) -> list[str]:
    """All files, in the order in which they are given; the files of one pattern are sorted."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        texts = [path_text(paths, call)]
    elif isinstance(paths, Sequence):
        texts = [path_text(path, call) for path in paths]
    else:
        raise InvalidSourceError(f"{call}: give a pattern or a list of paths, got {described(paths)}")
    if not any(_SPECIAL.intersection(text) for text in texts):
        return texts
    return [os.fsdecode(path) for path in _native.Source.expand(texts)]


def shown(paths: Any) -> str:
    """Paths as text for the repr of a pipeline."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        return repr(os.fsdecode(paths))
    return f"[... {len(paths)} paths]" if isinstance(paths, Sequence) else described(paths)
