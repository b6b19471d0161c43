"""What to do about samples that cannot be loaded: one policy for pipelines, torch loaders and executors."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

from feedline import _native
from feedline._arguments import suggests_all
from feedline._config import call_as_json, plain
from feedline._described import described
from feedline._open_descriptors import describe_open_files
from feedline.errors import FeedlineError, InvalidArgumentError

__all__ = ["Backoff", "FaultPolicy", "explain_shortage", "hint_for", "shortage_name", "symptom"]

Action = Literal["raise", "skip", "replace"]
Rule = int | str | Mapping[str, Any]


@final
class Another:
    """The default of `replacement`: a bad sample is replaced by the sample of another index."""

    _only: Another | None = None

    def __new__(cls) -> Another:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (Another, ())

    def __repr__(self) -> str:
        return "<another sample>"


ANOTHER: Final = Another()


@suggests_all()
@dataclass(frozen=True)
class Backoff:
    """How long to wait before a sample is retried.

    Args:
        first: seconds before the second attempt.
        factor: each wait is this many times as long as the one before.
        longest: no wait is longer than this many seconds.
        jitter: the share of each wait that is random, so that ranks do not retry all at once.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5


@suggests_all()
@dataclass(frozen=True)
class FaultPolicy:
    """What to do about samples that cannot be loaded.

    Args:
        action: "raise" ends the run with an error that names the sample. "skip" leaves the sample out.
            "replace" uses another sample instead.
        retry: how often a sample is retried first. Only transient errors are retried: timeouts, broken
            connections, errors of the disk or the network; not a file that is corrupt or missing. Errors that
            `by_type` names are always retried.
        backoff: seconds before the second attempt, doubled for each further one; or a `Backoff`.
        replacement: the sample to use with "replace"; by default the sample of another index.
        fill: whether another sample fills the slot of a skipped one, so that batches stay full: the last one
            of the epoch, or the next one if the source can only be read forwards. True by default.
        limit: how many faults are allowed before the run ends: a count for each epoch (a whole number), or a
            share (a float below 1.0) of the last `window` samples. The default is half of them: with more
            faults, the cause is not single samples. None allows any number; but an epoch without a good
            sample is always an error.
        window: the number of samples over which a share is judged. A shorter epoch is judged as a whole.
        by_type: rules for classes of errors, by class or name: how often to retry (a whole number), what to
            do ("raise", "skip", "replace"), or both as {"retry": 3, "action": "skip"}. The most specific
            class decides.
        quarantine: a file to which every bad sample is written, one per line, before the run continues; or a
            folder ("bad/"), in which each process has its own file. `exclude=` reads it.
        patience: seconds that a source, such as a mount, may be unavailable; no sample is skipped meanwhile.
            Only a source that has worked before counts as unavailable.

    Skipped and replaced samples are shown in warnings: the first sample, the tenth, the hundredth and so on,
    and a summary at the end of each epoch (`feedline.errors.SampleSkippedWarning`). If the machine runs out
    of memory, threads, descriptors or space, the sample is made again after a pause, then the error is
    raised, unless `by_type` names it: MemoryError, TooManyOpenFilesError, OutOfThreadsError, OutOfSpaceError.
    """

    action: Action = "raise"
    retry: int = field(default=0, kw_only=True)
    backoff: float | Backoff = field(default=0.1, kw_only=True)
    replacement: Any = field(default=ANOTHER, kw_only=True)
    fill: bool | None = field(default=None, kw_only=True)
    limit: int | float | None = field(default=0.5, kw_only=True)
    window: int = field(default=1000, kw_only=True)
    by_type: Mapping[type[BaseException] | str, Rule] | None = field(default=None, kw_only=True)
    quarantine: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    patience: float = field(default=300.0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.action, str) or self.action not in ("raise", "skip", "replace"):
            raise InvalidArgumentError.explained(
                f'FaultPolicy: action must be "raise", "skip" or "replace", got {described(self.action)}'
            )
        if self.replacement is not ANOTHER and "replace" not in self._actions():
            raise InvalidArgumentError.explained(
                f"FaultPolicy: replacement={described(self.replacement)} works only with "
                f'action="replace", got action={described(self.action)}'
            )
        # The core checks everything else, for pipelines, torch loaders and executors alike.
        _native.Policy(self.config())

    def _actions(self) -> list[Any]:
        rules = [] if self.by_type is None else list(self._rules().values())
        return [self.action, *(rule.get("action") if isinstance(rule, Mapping) else rule for rule in rules)]

    def _rules(self) -> dict[str, Any]:
        if not isinstance(self.by_type, Mapping):
            raise InvalidArgumentError.explained(
                f"FaultPolicy: by_type must be a dict of rules by class or name, "
                f"got {described(self.by_type)}"
            )
        return {_class_name(kind): _rule(rule) for kind, rule in self.by_type.items()}

    def settings(self) -> dict[str, Any]:
        """The settings that differ from the default, as plain data; without the replacement."""
        given: dict[str, Any] = {"action": self.action}
        for name in ("retry", "fill", "limit", "window", "patience"):
            value = plain(getattr(self, name))
            if name == "limit" and value is None:
                # Leaving it out would mean the default.
                given[name] = "none"
                continue
            is_number = not isinstance(value, bool) and (not isinstance(value, float) or math.isfinite(value))
            if name != "fill" and not is_number:
                raise InvalidArgumentError.explained(
                    f"FaultPolicy: {name} must be a finite number, got {described(value)}"
                )
            if value is not None and value != FaultPolicy.__dataclass_fields__[name].default:
                given[name] = value
        if isinstance(self.backoff, Backoff):
            given["backoff"] = {name: plain(value) for name, value in self.backoff.__dict__.items()}
        elif (backoff := plain(self.backoff)) != 0.1:
            given["backoff"] = backoff
        if self.by_type is not None:
            given["by_type"] = self._rules()
        if self.quarantine is not None:
            given["quarantine"] = _path(self.quarantine)
        return given

    def config(self) -> str:
        """The policy as JSON, for the core."""
        return call_as_json({"call": "FaultPolicy", **self.settings()})

    @property
    def has_replacement(self) -> bool:
        """Whether the user gave a sample that replaces bad ones."""
        return self.replacement is not ANOTHER

    @property
    def text(self) -> str:
        """The policy as the command line takes it: "action=skip,retry=2"."""
        return _native.Policy(self.config()).text

    @classmethod
    def parse(cls, text: str) -> FaultPolicy:
        """Parses text as on the command line: "retry=2,action=skip,limit=0.01,by_type.OSError=retry:5"."""
        if not isinstance(text, str):
            raise InvalidArgumentError.explained(
                f'FaultPolicy: give text such as "retry=2,action=skip", got {described(text)}'
            )
        try:
            given = json.loads(_native.Policy(text).config)
        except UnicodeEncodeError:
            raise InvalidArgumentError.explained(
                f"FaultPolicy: this text cannot be read: {described(text)}"
            ) from None
        if given.get("limit") == "none":
            given["limit"] = None
        if isinstance(given.get("backoff"), dict):
            given["backoff"] = Backoff(**given["backoff"])
        return cls(**given)


def symptom(exception: BaseException) -> tuple[list[str], int | None]:
    """The properties of an exception that a policy judges: the names of its classes, and its errno."""
    # A base class need not be an exception: urllib's HTTPError is a response too.
    kinds = [kind for kind in type(exception).__mro__ if issubclass(kind, BaseException)]
    names = [_class_name(kind) for kind in kinds]
    shortage = shortage_of(exception)
    if shortage is not None:
        # So that a rule for MemoryError applies to every exception that means out of memory.
        also = [shortage, "MemoryError"] if shortage == "OutOfMemoryError" else [shortage]
        names += [name for name in also if name not in names]
    return names, _errno(exception)


def _errno(exception: BaseException) -> int | None:
    number = getattr(exception, "errno", None) if isinstance(exception, OSError) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


# Resources that the machine has run out of, by errno or by the text of a RuntimeError: torch and Python have
# no classes for these.
_SHORTAGE_ERRNOS = {
    errno.ENOMEM: "OutOfMemoryError",
    errno.EMFILE: "TooManyOpenFilesError",
    errno.ENFILE: "TooManyOpenFilesError",
    # No class of Feedline's: a name for rules of a policy.
    errno.ENOSPC: "OutOfSpaceError",
    errno.EDQUOT: "OutOfSpaceError",
}
_SHORTAGE_TEXTS = (
    (re.compile("(?i)can(not|'t) allocate memory|DefaultCPUAllocator|out of memory"), "OutOfMemoryError"),
    (re.compile("can't start new thread"), "OutOfThreadsError"),
)
_SHORTAGE_HINTS = {
    "OutOfMemoryError": ("memory", "use fewer workers or smaller batches, or give the container more memory"),
    "OutOfThreadsError": ("threads or processes", "use fewer workers, or raise the limit with ulimit -u"),
    "OutOfSpaceError": (
        "space on a file system",
        "see df -h and df -i; free space where the code writes, often /tmp or /dev/shm, or set TMPDIR",
    ),
    "TooManyOpenFilesError": (
        "descriptors",
        "raise the limit with ulimit -n, or close files in the data set",
    ),
}


def shortage_of(exception: BaseException) -> str | None:
    """The error kind of the resource that the machine is short of, if that is the cause of an exception."""
    if isinstance(exception, MemoryError):
        return "OutOfMemoryError"
    if isinstance(exception, OSError):
        number = _errno(exception) or 0
        if number == errno.EAGAIN and _starts_processes(exception):
            return "OutOfThreadsError"
        return _SHORTAGE_ERRNOS.get(number)
    if not isinstance(exception, RuntimeError) or isinstance(exception, FeedlineError):
        # If a worker is killed because it uses too much memory, its sample is at fault, not the machine.
        return None
    try:
        text = str(exception)
    except Exception:
        return None
    return next((name for pattern, name in _SHORTAGE_TEXTS if pattern.search(text)), None)


# Functions that start a process.
_STARTING_CALLS = frozenset(("fork", "forkpty", "fork_exec", "_fork_exec", "posix_spawn", "posix_spawnp"))


def _starts_processes(exception: BaseException) -> bool:
    """Whether the code that raised an EAGAIN starts a process: the errno is the same for a limit on processes
    and for a read that would block."""
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not _STARTING_CALLS.isdisjoint(trace.tb_frame.f_code.co_names)


def shortage_name(kind: str) -> str:
    """What the machine is short of, by the error kind."""
    return _SHORTAGE_HINTS[kind][0]


def explain_shortage(exception: BaseException) -> None:
    """Adds a note to an exception that is caused by a shortage: what the machine is short of, what holds it
    and what to do."""
    shortage = shortage_of(exception)
    if shortage is None:
        return
    resource, hint = _SHORTAGE_HINTS[shortage]
    first = f"feedline: the machine is short of {resource}; this sample is not the cause"
    if any(str(note).startswith(first) for note in getattr(exception, "__notes__", ())):
        return
    held = ""
    if shortage == "TooManyOpenFilesError":
        held = "".join(f"{line}\n" for line in describe_open_files())
    exception.add_note(f"{first}\n{held}hint: {hint}")


_SKIP_IT = re.compile(r'(, or |; |, )?skip [a-z ]+ with faults=FaultPolicy\(action="skip"\)(, or )?')


def hint_for(policy: FaultPolicy, hint: str) -> str:
    """A hint without the advice to skip, if the policy does so already."""
    return hint if policy.action == "raise" else _SKIP_IT.sub("", hint)


def _class_name(kind: Any) -> str:
    if isinstance(kind, str):
        # Python's aliases.
        return {"IOError": "OSError", "EnvironmentError": "OSError"}.get(kind, kind)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise InvalidArgumentError.explained(
            f"FaultPolicy: by_type must be by class or name, got {described(kind)}"
        )
    if kind.__module__ in ("builtins", "feedline.errors"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _rule(rule: Any) -> Any:
    if isinstance(rule, Mapping):
        return {str(name): plain(value) for name, value in rule.items()}
    return plain(rule)


def _path(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise InvalidArgumentError.explained(
            f"FaultPolicy: quarantine must be a path, got {described(path)}"
        ) from None
