"""Warns of open files in objects that workers inherit by fork.

A file that is open across a fork has one offset for all processes. When a worker seeks, the others read from
the wrong position and get wrong data without an error.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
import types
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feedline._code import warn_user
from feedline.errors import SharedFileWarning

__all__ = ["shared_files", "warn_of_shared_files"]

# Limits of the search: its depth, the number of objects, and of parts of each. It must be fast.
_DEPTH = 5
_MOST_OBJECTS = 1000
_PARTS = 32
# How many files one warning names.
_NAMED = 4
# Objects of these modules manage their own files, and are meant for several processes or for one.
_SAFE = ("threading", "multiprocessing", "logging", "torch.multiprocessing")
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType)


def warn_of_shared_files(value: object, name: str, opener: str = "") -> None:
    """Warns if an object that workers inherit by fork contains an open file. `opener` is another place where
    a worker could open the file."""
    found = shared_files(value, name)
    if not found:
        return
    named = [f"{where} is the open file {path!r}" for where, path in found[:_NAMED]]
    more = f" (and {len(found) - _NAMED} more)" if len(found) > _NAMED else ""
    text = (
        f"{', '.join(named)}{more}: all workers share its offset, so a read in one worker moves the offset "
        "of the others, and samples may silently be wrong\n"
        f"hint: open it in each worker, when {found[0][0]} is first needed{opener and ', or in '}{opener}"
    )
    warn_user(text, SharedFileWarning)


def shared_files(value: object, name: str) -> list[tuple[str, str]]:
    """The open files in an object: the path to each within the object, and its path on disk."""
    found: list[tuple[str, str]] = []
    waiting: deque[tuple[str, object, int]] = deque([(name, value, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        where, part, depth = waiting.popleft()
        if isinstance(part, _PLAIN) or id(part) in seen or type(part).__module__.startswith(_SAFE):
            continue
        seen.add(id(part))
        try:
            path = _open_file(part)
            parts = list(_parts(where, part)) if path is None and depth < _DEPTH else []
        except Exception:
            # User code may raise anything.
            continue
        if path is not None:
            found.append((where, path))
        waiting.extend((where, inner, depth + 1) for where, inner in parts)
    return found


def _open_file(part: object) -> str | None:
    """The path of the file that an object reads from, if its offset would be shared."""
    if isinstance(part, zipfile.ZipFile):
        part = part.fp
    elif isinstance(part, tarfile.TarFile):
        part = part.fileobj
    h5py = sys.modules.get("h5py")
    if h5py is not None and isinstance(part, h5py.HLObject):
        return str(part.file.filename) if part else None
    if any(part is stream for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return None
    if not isinstance(part, io.IOBase) or part.closed or not (part.readable() and part.seekable()):
        return None
    try:
        descriptor = part.fileno()
    except OSError:
        # In memory.
        return None
    if descriptor <= 2 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return None
    name = getattr(part, "name", None)
    if isinstance(name, (str, bytes, os.PathLike)) and not os.fsdecode(name).startswith("<"):
        return os.fsdecode(name)
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _parts(where: str, part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, Mapping):
        for (key, inner), _ in zip(part.items(), range(_PARTS), strict=False):
            yield f"{where}[{key!r}]", inner
        return
    if isinstance(part, (list, tuple, set, frozenset)):
        for number, inner in zip(range(_PARTS), part, strict=False):
            yield f"{where}[{number}]", inner
        return
    if isinstance(part, types.FunctionType):
        cells = zip(part.__code__.co_freevars, part.__closure__ or (), strict=False)
        for name, cell in cells:
            yield f"{where}.{name}", cell.cell_contents
        for name in part.__code__.co_names[:_PARTS]:
            if name in part.__globals__:
                yield name, part.__globals__[name]
        return
    if isinstance(part, types.MethodType):
        yield f"{where}.__self__", part.__self__
        return
    attributes: dict[str, Any] = getattr(part, "__dict__", {})
    for (name, inner), _ in zip(list(attributes.items()), range(_PARTS), strict=False):
        yield f"{where}.{name}", inner
    for slot in getattr(type(part), "__slots__", ()):
        if isinstance(slot, str) and hasattr(part, slot):
            yield f"{where}.{slot}", getattr(part, slot)
