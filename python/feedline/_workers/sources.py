"""Detects whether the folders of samples are unavailable, and waits for them.

A missing folder alone does not mean that a source is unavailable: the path may be wrong. A source must have
been available before, so each process remembers the folders in which it has opened files, and the trainer
remembers the folders that existed when the loader was created.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from feedline import _native
from feedline._native import SourceAccess
from feedline.errors import SourceUnavailableError
from feedline.faults import symptom

__all__ = ["NamedFolders", "Sources", "folders_of"]

# The event of each change of the circuit breaker.
_EVENTS = {
    "opened": "source_unavailable",
    "half open": "source_probed",
    "closed": "source_recovered",
    "gave up": "source_gone",
}
# How many folders a process remembers.
_MOST = 1 << 16
# How deep the attributes of a data set are searched, and how many entries of a list.
_DEPTH, _ENTRIES = 3, 4


class _OpenedFolders:
    """The folders in which this process has opened files, if they were not empty at that time."""

    def __init__(self) -> None:
        # Folders as the user writes them, so that a file in a known folder costs almost nothing.
        self._known: set[str] = set()
        self.folders: set[str] = set()
        self._is_listening = False

    def listen(self) -> None:
        """Starts to record. An audit hook cannot be removed, so there is one for the process."""
        if not self._is_listening:
            self._is_listening = True
            sys.addaudithook(self._on_audit)

    def _on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        name = arguments[0]
        if type(name) is not str:
            return
        folder = name.rpartition("/")[0]
        if folder not in self._known:
            self._add(folder, name)

    def _add(self, folder: str, name: str) -> None:
        # An exception here would make the user's `open` fail.
        try:
            if len(self._known) < _MOST:
                whole = str(Path(name).absolute().parent)
                # A folder that is missing or empty may become available later.
                if _is_available(whole):
                    self._known.add(folder)
                    self.folders.add(whole)
        except Exception:
            return


_opened = _OpenedFolders()


class Sources:
    """Waits for the source of a sample, if it was available before and is not now."""

    def __init__(
        self,
        patience: float,
        pause: Callable[[float], None],
        notify: Callable[[str, dict[str, Any]], None] | None,
        folders: Iterable[str] = (),
    ) -> None:
        """`folders` existed when the loader was created."""
        self._patience = patience
        self._pause = pause
        self._notify = notify
        self._folders = set(folders)
        self._breakers: dict[str, _native.Breaker] = {}
        # The missing file that existed again at the last check.
        self._tried_again: str | None = None
        if patience > 0:
            _opened.listen()

    def know(self, folders: Iterable[str]) -> None:
        """These folders were there."""
        self._folders.update(folders)

    def came_back(self, raised: BaseException) -> bool:
        """Whether the source of a sample was unavailable and is available again, so that a retry makes
        sense."""
        folder = _folder(raised)
        if folder is None or self._patience <= 0 or not _native.Policy.may_be_of_source(*symptom(raised)):
            return False
        root = self._root(folder)
        if root is None:
            # It was never available.
            return False
        if _is_available(root):
            return self._is_file_back(raised)
        breaker = self._breakers.get(root)
        if breaker is None:
            breaker = self._breakers[root] = _native.Breaker(self._patience)
        self._note(root, breaker.failed(False, time.monotonic()))
        has_waited = False
        while True:
            access = breaker.may_try(time.monotonic())
            if isinstance(access, SourceAccess.Go):
                return has_waited
            if isinstance(access, SourceAccess.GiveUp):
                message = f"{root} has been unavailable for {self._patience:g} s"
                raise SourceUnavailableError.explained(message, path=root) from raised
            has_waited = True
            if isinstance(access, SourceAccess.Wait):
                self._pause(access.seconds)
                continue
            self._note(root, ["half open"])
            if _is_available(root):
                self._note(root, breaker.worked(time.monotonic()))
            else:
                self._note(root, breaker.failed(False, time.monotonic()))

    def _is_file_back(self, raised: BaseException) -> bool:
        """Whether the source was unavailable only when the file was opened: the file was missing and exists
        now. True only once in a row for each file: the second time, the sample itself is bad."""
        name = os.fsdecode(getattr(raised, "filename", ""))
        is_back = isinstance(raised, FileNotFoundError) and name != self._tried_again and Path(name).exists()
        self._tried_again = name if is_back else None
        return is_back

    def _root(self, folder: str) -> str | None:
        """The nearest folder, from this one upwards, that was available before: it is, or contains, a known
        folder. None if that is "/"."""
        known = self._folders | _opened.folders
        for above in (folder, *map(str, Path(folder).parents)):
            if above == os.sep:
                return None
            if above in known or any(other.startswith(above + os.sep) for other in known):
                return above
        return None

    def note_success(self) -> None:
        """Notes that a sample was loaded, so the source is available."""
        for folder, breaker in self._breakers.items():
            self._note(folder, breaker.worked(time.monotonic()))

    def _note(self, folder: str, changes: list[str]) -> None:
        if self._notify is not None:
            for change in changes:
                text = f"{folder} has been unavailable for {self._patience:g} s"
                why = "the folder is empty" if Path(folder).is_dir() else "there is no such folder"
                self._notify(_EVENTS[change], {"root": folder, "text": text, "why": why})


class NamedFolders:
    """The folders that functions and plain arguments of calls name, if they were there once. Each is looked
    into once, since there may be very many calls."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of_function(self, function: object) -> frozenset[str]:
        with contextlib.suppress(Exception):
            return folders_of(function)
        return frozenset()

    def of_arguments(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> set[str]:
        found: set[str] = set()
        for argument in itertools.chain(arguments, keywords.values()):
            # The code of other classes is not asked.
            parts = argument[:_ENTRIES] if type(argument) in (list, tuple) else (argument,)
            for part in parts:
                if type(part) is str or isinstance(part, PurePath):
                    _find(part, found, 0)
        new = found - self._known
        there = {folder for folder in new if folder != os.sep and _is_available(folder)}
        if len(self._known) < _MOST:
            self._known |= there
        return (found - new) | there


def folders_of(obj: object) -> frozenset[str]:
    """The folders that a data set or a function names in its attributes, closure or arguments, if they exist
    and are not empty."""
    found: set[str] = set()
    is_function = isinstance(obj, functools.partial) or hasattr(obj, "__closure__")
    if is_function:
        _find(obj, found, _DEPTH + 1)
    else:
        _find(getattr(obj, "__dict__", obj), found, _DEPTH)
    return frozenset(folder for folder in found if folder != os.sep and _is_available(folder))


def _find(obj: Any, found: set[str], depth: int) -> None:
    if isinstance(obj, (str, os.PathLike)):
        try:
            name = os.fspath(obj)
            if isinstance(name, str) and os.sep in name and len(name) < 4096 and "\0" not in name:
                path = Path(name).absolute()
                found.add(str(path if path.is_dir() else path.parent))
        except OSError:
            return
    elif depth and isinstance(obj, dict):
        for inner in list(obj.values())[:64]:
            _find(inner, found, depth - 1)
    elif depth and isinstance(obj, (list, tuple)):
        for inner in obj[:_ENTRIES]:
            _find(inner, found, depth - 1)
    elif depth and isinstance(obj, functools.partial):
        _find([obj.func, obj.args, obj.keywords], found, depth - 1)
    elif depth and hasattr(obj, "__closure__"):
        _find(_closure_values(obj), found, depth - 1)
    elif depth and hasattr(obj, "__dict__") and (hasattr(obj, "__getitem__") or callable(obj)):
        # A data set that wraps others, or a callable object.
        _find(vars(obj), found, depth - 1)


def _closure_values(function: Any) -> list[Any]:
    """The values in the closure of a function; some cells may not be set yet."""
    values = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            values.append(cell.cell_contents)
    return values


def _folder(raised: BaseException) -> str | None:
    """The folder of the file that could not be read."""
    name = getattr(raised, "filename", None)
    if not isinstance(raised, OSError) or not isinstance(name, (str, bytes, os.PathLike)):
        return None
    return str(Path(os.fsdecode(name)).absolute().parent)


def _is_available(folder: str) -> bool:
    """Whether a folder exists and is not empty: a lost mount leaves an empty folder, or none."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
