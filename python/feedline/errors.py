"""Everything that can go wrong, one class for each kind.

Each error says what happened, where, and what to do; what it knows stands in its attributes too.
"""

from __future__ import annotations

import os
from typing import Any, Self

__all__ = [
    "BadSetting",
    "BadSource",
    "Closed",
    "CodecPanicked",
    "Damaged",
    "FeedlineError",
    "Internal",
    "NoReplacement",
    "NotPicklable",
    "OutOfFiles",
    "OutOfMemory",
    "OutOfThreads",
    "ReadFailed",
    "ShapeMismatch",
    "TooLarge",
    "TooManyDeaths",
    "TooManyFaults",
    "TooSmall",
    "UnknownFormat",
    "UsedAfterFork",
    "WorkerDied",
    "WorkerDiedWarning",
    "WorkerNotStarted",
    "WrongCheckpoint",
]


class FeedlineError(Exception):
    """The root of all errors of Feedline.

    Attributes:
        index: which sample of the source it is about.
        path: the file that sample lies in.
        offset: the first byte of it in the file, where it is a part of one.
        stage: source, plan, fetch, worker, collate or deliver.
        hint: what to do.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        path: str | None = None,
        offset: int | None = None,
        stage: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.index = index
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.stage = stage
        self.hint = hint

    @classmethod
    def explained(cls, message: str, hint: str = "", **attributes: Any) -> Self:
        """An error with a hint below the message: that of its kind, if there is no better one."""
        from feedline import _native

        hint = hint or next((hint for name, _, hint in _native.kinds() if name == cls.__name__), "")
        error = cls(f"{message}\nhint: {hint}" if hint else message, hint=hint)
        error.__dict__.update(attributes)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


def _rebuild(kind: type[FeedlineError], message: str, details: dict[str, Any]) -> FeedlineError:
    error = kind(message)
    error.__dict__.update(details)
    return error


class BadSetting(FeedlineError, ValueError):
    """A setting has a value it cannot have."""


class BadSource(FeedlineError):
    """The data set is not there, or not as it must be."""


class ReadFailed(FeedlineError):
    """The bytes of a sample could not be read."""


class UnknownFormat(FeedlineError):
    """A file is no image that Feedline decodes."""


class Damaged(FeedlineError):
    """A file is cut off or corrupt."""


class TooLarge(FeedlineError):
    """An image has more pixels than the limit allows."""


class TooSmall(FeedlineError):
    """A crop does not fit into an image."""


class ShapeMismatch(FeedlineError):
    """Samples of one batch have different shapes."""


class CodecPanicked(FeedlineError):
    """A decoder met a bug of its own; it was caught."""


class TooManyFaults(FeedlineError):
    """More samples were bad than the policy bears."""


class NoReplacement(FeedlineError):
    """No good sample was found in place of a bad one."""


class OutOfFiles(FeedlineError):
    """The system has no descriptor left."""


class OutOfMemory(FeedlineError, MemoryError):
    """The system has no memory left."""


class OutOfThreads(FeedlineError):
    """The system allows no thread."""


class UsedAfterFork(FeedlineError):
    """A loader was used in a fork of the process that made it."""


class Closed(FeedlineError):
    """The loader was closed, or a newer epoch begun."""


class WrongCheckpoint(FeedlineError):
    """A checkpoint is of other data or settings."""


class NotPicklable(FeedlineError, TypeError):
    """Something must go to another process and cannot."""


class WorkerDied(FeedlineError, RuntimeError):
    """A worker died and was not to be replaced."""


class TooManyDeaths(FeedlineError, RuntimeError):
    """Workers died again and again; `deaths` has the history."""

    deaths: tuple[Any, ...] = ()


class WorkerNotStarted(FeedlineError, RuntimeError):
    """A worker could not be started."""


class WorkerDiedWarning(UserWarning):
    """A worker died and was replaced; nothing was lost."""


class Internal(FeedlineError):
    """A bug of Feedline."""
