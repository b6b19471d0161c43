"""Errors and warnings: one class for each kind.

Each error says what happened, where, and what to do; the details are also in its attributes.
"""

from __future__ import annotations

import os
from typing import Any, Self

__all__ = [
    "ClosedError",
    "CodecPanicError",
    "CopiedMemoryWarning",
    "CorruptImageError",
    "CorruptRecordError",
    "DeadlineExceededError",
    "DescriptorsClosedError",
    "EmptyShardWarning",
    "FeedlineError",
    "FeedlineWarning",
    "InternalError",
    "InvalidArgumentError",
    "InvalidFieldError",
    "InvalidSourceError",
    "NoReplacementError",
    "NotPicklableError",
    "OutOfMemoryError",
    "OutOfThreadsError",
    "ReadError",
    "ResourceShortageWarning",
    "SampleSkippedWarning",
    "ShapeMismatchError",
    "SharedFileWarning",
    "SourceUnavailableError",
    "SourceUnavailableWarning",
    "StateMismatchError",
    "TooLargeError",
    "TooManyDeathsError",
    "TooManyFaultsError",
    "TooManyOpenFilesError",
    "TooSmallError",
    "UnknownFormatError",
    "UnsafeFormatError",
    "UsedAfterForkError",
    "WorkerDiedError",
    "WorkerDiedWarning",
    "WorkerNotStartedError",
    "WorkerStalledWarning",
]


class FeedlineError(Exception):
    """The base class of all errors of Feedline.

    Attributes:
        index: the index of the sample in the source.
        path: the file that contains the sample.
        offset: the first byte of the sample in the file, if it is a part of one.
        record: the number of the record in the file, from 0.
        stage: source, plan, fetch, worker, collate or deliver.
        epoch: the epoch in which the sample was made, for `replay`.
        hint: what to do.
        code: the code of the error's kind, for `feedline explain`.
    """

    code: str = ""

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        path: str | None = None,
        offset: int | None = None,
        record: int | None = None,
        stage: str | None = None,
        hint: str = "",
        epoch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.index = index
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.record = record
        self.stage = stage
        self.hint = hint
        self.epoch = epoch

    @classmethod
    def explained(cls, message: str, hint: str = "", *, replay: str = "", **attributes: Any) -> Self:
        """An error with a hint below the message; by default the hint of its kind. The last line is `replay`,
        what to type to make the sample again."""
        from feedline import _native

        hint = hint or next((kind.hint for kind in _native.error_kinds() if kind.name == cls.__name__), "")
        lines = [message]
        lines += [f"hint: {hint}"] if hint else []
        lines += [f"see: feedline explain {cls.code}"] if cls.code else []
        lines += [replay] if replay else []
        error = cls("\n".join(lines), hint=hint)
        error.__dict__.update(attributes)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


def replay_line(index: object, epoch: int | None, seed: int | None = None) -> str:
    """What to type to make a sample again; empty if its index is neither a number nor text."""
    if epoch is None or isinstance(index, bool) or not isinstance(index, (int, str)):
        return ""
    try:
        typed = repr(index)
    except ValueError:
        # Python writes no number of thousands of digits.
        return ""
    shown = "" if seed is None else f", seed={seed}"
    return f"replay: loader.replay(index={typed}, epoch={epoch}{shown})"


def _rebuild(kind: type[FeedlineError], message: str, details: dict[str, Any]) -> FeedlineError:
    error = kind(message)
    error.__dict__.update(details)
    return error


class InvalidArgumentError(FeedlineError, ValueError):
    """A setting has an invalid value."""

    code = "FL101"

    @classmethod
    def explained(cls, message: str, hint: str = "", *, replay: str = "", **attributes: Any) -> Self:
        """An error with a hint below the message; by default the hint points to the help of the call that
        the message names."""
        name = message.split(":")[0]
        place = _HELP.get(name)
        hint = hint or (f"see help({place})" if place else "")
        return super().explained(message, hint, replay=replay, **attributes)


_HELP = {
    "FaultPolicy": "feedline.FaultPolicy",
    "DataLoader": "feedline.torch.DataLoader",
    "Executor": "feedline.Executor",
    "chaos": "feedline.testing.chaos",
    "loader": "feedline.Pipeline.loader",
}


class InvalidSourceError(FeedlineError):
    """The data set does not exist or is invalid."""

    code = "FL102"


class ReadError(FeedlineError):
    """The bytes of a sample could not be read."""

    code = "FL201"


class UnknownFormatError(FeedlineError):
    """A file is not an image in a format that Feedline decodes."""

    code = "FL202"


class CorruptImageError(FeedlineError):
    """A file is truncated or corrupt."""

    code = "FL203"


class TooLargeError(FeedlineError):
    """An image has more pixels than the limit allows."""

    code = "FL204"


class TooSmallError(FeedlineError):
    """A crop does not fit into an image."""

    code = "FL205"


class ShapeMismatchError(FeedlineError):
    """Samples of one batch have different shapes."""

    code = "FL206"


class CodecPanicError(FeedlineError):
    """A decoder panicked because of a bug; the panic was caught."""

    code = "FL207"


class TooManyFaultsError(FeedlineError):
    """More samples were bad than the policy allows."""

    code = "FL209"


class NoReplacementError(FeedlineError):
    """No good sample was found to replace a bad one."""

    code = "FL210"


class CorruptRecordError(FeedlineError):
    """A record of a shard is truncated or corrupt."""

    code = "FL211"


class InvalidFieldError(FeedlineError):
    """A field of a record is missing or has another type or shape than was asked for."""

    code = "FL212"


class UnsafeFormatError(FeedlineError):
    """A record contains data in a format that is never read because it is unsafe, such as a pickle."""

    code = "FL213"


class TooManyOpenFilesError(FeedlineError):
    """The system has no file descriptors left."""

    code = "FL301"


class OutOfMemoryError(FeedlineError, MemoryError):
    """The system has no memory left."""

    code = "FL302"


class OutOfThreadsError(FeedlineError):
    """The system allows no more threads or processes."""

    code = "FL303"


class DescriptorsClosedError(FeedlineError, OSError):
    """Other code in this process closed file descriptors of Feedline."""

    code = "FL304"


class DeadlineExceededError(FeedlineError, TimeoutError):
    """A sample took longer than its deadline."""

    code = "FL208"
    deaths: tuple[Any, ...] = ()


class SourceUnavailableError(FeedlineError, OSError):
    """A source was unavailable for longer than the policy allows."""

    code = "FL105"


class UsedAfterForkError(FeedlineError):
    """A loader was used in a fork of the process that created it."""

    code = "FL501"


class ClosedError(FeedlineError):
    """The loader was closed, or a newer epoch has started."""

    code = "FL502"


class StateMismatchError(FeedlineError):
    """A state belongs to other data, settings or ranks, or is corrupt."""

    code = "FL103"


class NotPicklableError(FeedlineError, TypeError):
    """An object must be sent to another process but cannot be pickled."""

    code = "FL104"


class WorkerDiedError(FeedlineError, RuntimeError):
    """A worker died and was not replaced: `on_death` is "raise", or the same sample would kill the next one
    too. `deaths` has the death certificates."""

    code = "FL401"
    deaths: tuple[Any, ...] = ()


class TooManyDeathsError(FeedlineError, RuntimeError):
    """More workers died than `max_deaths` allows; `deaths` has the history."""

    code = "FL402"
    deaths: tuple[Any, ...] = ()


class WorkerNotStartedError(FeedlineError, RuntimeError):
    """A worker could not be started."""

    code = "FL403"


class FeedlineWarning(UserWarning):
    """The base class of all warnings of Feedline. If a filter turns them into errors, iterating raises them
    at a point where nothing is lost: the next call continues."""


class SampleSkippedWarning(FeedlineWarning):
    """Samples were skipped or replaced: shown for the first one, the tenth, the hundredth and so on, with a
    summary at the end of each epoch."""


class SourceUnavailableWarning(FeedlineWarning):
    """A source is unavailable and reading pauses, or it is available again."""


class EmptyShardWarning(FeedlineWarning):
    """Shards have no records. They are valid, and the run continues with the others."""


class WorkerDiedWarning(FeedlineWarning):
    """A worker died and was replaced; no sample was lost."""


class WorkerStalledWarning(FeedlineWarning):
    """A worker makes no progress, or the zygote does not answer; the text says what is done about it."""


class ResourceShortageWarning(FeedlineWarning):
    """The machine is short of processes or memory: fewer workers run at once, and nothing is lost."""


class SharedFileWarning(FeedlineWarning):
    """A data set holds an open file whose offset all forked workers would share."""


class CopiedMemoryWarning(FeedlineWarning):
    """A data set holds many objects, which each forked worker would copy."""


class InternalError(FeedlineError):
    """A bug in Feedline."""

    code = "FL503"
