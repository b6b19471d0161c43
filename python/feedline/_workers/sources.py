"""Whether the folders that samples come from are still there.

A folder that is missing is no sign of a source that went away: a path may just be wrong. A source can only
go away if it was there before, so each process remembers the folders in which it has opened files, and the
trainer remembers what was there when the loader was made.
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
from feedline.errors import SourceUnavailableError
from feedline.faults import symptom

__all__ = ["NamedFolders", "Sources", "folders_of"]

# What a change of the breaker is called as an event.
_EVENTS = {
    "opened": "source_unavailable",
    "half open": "source_probed",
    "closed": "source_recovered",
    "gave up": "source_gone",
}
# Folders that a process remembers.
_MOST = 1 << 16
# How deep the attributes of a data set are looked at, and how many entries of a list.
_DEPTH, _ENTRIES = 3, 4


class _Opened:
    """The folders in which this process has opened files, as they were when it did so for the first time."""

    def __init__(self) -> None:
        # By the words of the user, so that a file of a known folder costs next to nothing.
        self._known: set[str] = set()
        self.folders: set[str] = set()
        self._is_listening = False

    def listen(self) -> None:
        """From now on. A hook of the interpreter cannot be removed, so there is one for all."""
        if not self._is_listening:
            self._is_listening = True
            sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        name = arguments[0]
        if type(name) is not str:
            return
        folder = name.rpartition("/")[0]
        if folder not in self._known:
            self._look(folder, name)

    def _look(self, folder: str, name: str) -> None:
        # What is raised here would end the `open` of the user.
        try:
            if len(self._known) < _MOST:
                whole = str(Path(name).absolute().parent)
                # One that is not there, or empty, may be so later.
                if _is_there(whole):
                    self._known.add(folder)
                    self.folders.add(whole)
        except Exception:
            return


_opened = _Opened()


class Sources:
    """Waits for the source of a sample, if it was there and is unavailable."""

    def __init__(
        self,
        patience: float,
        pause: Callable[[float], None],
        notify: Callable[[str, dict[str, Any]], None] | None,
        folders: Iterable[str] = (),
    ) -> None:
        """`folders` were there when the loader was made."""
        self._patience = patience
        self._pause = pause
        self._notify = notify
        self._folders = set(folders)
        self._breakers: dict[str, _native.Breaker] = {}
        # The file that was there again at the last look.
        self._tried_again: str | None = None
        if patience > 0:
            _opened.listen()

    def know(self, folders: Iterable[str]) -> None:
        """These folders were there."""
        self._folders.update(folders)

    def came_back(self, raised: BaseException) -> bool:
        """Whether the source of a sample was unavailable and is back: the sample is worth another try."""
        folder = _folder(raised)
        if folder is None or self._patience <= 0 or not _native.Policy.may_be_of_source(*symptom(raised)):
            return False
        root = self._root(folder)
        if root is None:
            # It never was there.
            return False
        if _is_there(root):
            return self._is_file_back(raised)
        breaker = self._breakers.get(root)
        if breaker is None:
            breaker = self._breakers[root] = _native.Breaker(self._patience)
        self._note(root, breaker.failed(False, time.monotonic()))
        was_away = False
        while True:
            said, seconds = breaker.may_try(time.monotonic())
            if said == "go":
                return was_away
            if said == "give up":
                message = f"{root} has been unavailable for {self._patience:g} s"
                raise SourceUnavailableError.explained(message, path=root) from raised
            was_away = True
            if said == "wait":
                self._pause(seconds)
                continue
            self._note(root, ["half open"])
            if _is_there(root):
                self._note(root, breaker.worked(time.monotonic()))
            else:
                self._note(root, breaker.failed(False, time.monotonic()))

    def _is_file_back(self, raised: BaseException) -> bool:
        """Whether the source was unavailable when the file was opened, and is back before anybody could
        look: a file that was not there is there now. Once in a row for each file: else the sample alone is
        bad."""
        name = os.fsdecode(getattr(raised, "filename", ""))
        is_back = isinstance(raised, FileNotFoundError) and name != self._tried_again and Path(name).exists()
        self._tried_again = name if is_back else None
        return is_back

    def _root(self, folder: str) -> str | None:
        """The nearest folder, from this one upwards, that was there before: in it or below it lies one in
        which something was read. None if that is the root of all files."""
        known = self._folders | _opened.folders
        for above in (folder, *map(str, Path(folder).parents)):
            if above == os.sep:
                return None
            if above in known or any(one.startswith(above + os.sep) for one in known):
                return above
        return None

    def is_well(self) -> None:
        """A sample was made: what failed before it was not the source."""
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
        there = {folder for folder in new if folder != os.sep and _is_there(folder)}
        if len(self._known) < _MOST:
            self._known |= there
        return (found - new) | there


def folders_of(thing: object) -> frozenset[str]:
    """The folders that a data set or a function names in its attributes, or calls in their arguments, if they
    are there."""
    found: set[str] = set()
    is_function = isinstance(thing, functools.partial) or hasattr(thing, "__closure__")
    if is_function:
        _find(thing, found, _DEPTH + 1)
    else:
        _find(getattr(thing, "__dict__", thing), found, _DEPTH)
    return frozenset(folder for folder in found if folder != os.sep and _is_there(folder))


def _find(thing: Any, found: set[str], depth: int) -> None:
    if isinstance(thing, (str, os.PathLike)):
        try:
            name = os.fspath(thing)
            if isinstance(name, str) and os.sep in name and len(name) < 4096 and "\0" not in name:
                path = Path(name).absolute()
                found.add(str(path if path.is_dir() else path.parent))
        except OSError:
            return
    elif depth and isinstance(thing, dict):
        for value in list(thing.values())[:64]:
            _find(value, found, depth - 1)
    elif depth and isinstance(thing, (list, tuple)):
        for value in thing[:_ENTRIES]:
            _find(value, found, depth - 1)
    elif depth and isinstance(thing, functools.partial):
        _find([thing.func, thing.args, thing.keywords], found, depth - 1)
    elif depth and hasattr(thing, "__closure__"):
        _find(_closed_over(thing), found, depth - 1)
    elif depth and hasattr(thing, "__dict__") and (hasattr(thing, "__getitem__") or callable(thing)):
        # A data set of data sets, or a function that is an object.
        _find(vars(thing), found, depth - 1)


def _closed_over(function: Any) -> list[Any]:
    """What a function has from the one around it; some of it may not be set yet."""
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


def _is_there(folder: str) -> bool:
    """A mount that has gone leaves an empty folder, or none."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
