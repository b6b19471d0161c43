"""Sends an exception from a worker to the trainer, with its type, message and traceback."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any

from feedline._described import described, one_line
from feedline.errors import FeedlineError
from feedline.faults import explain_shortage

__all__ = ["ATTEMPTS", "RemoteError", "RemoteTraceback", "place"]

# The attribute of an exception with the number of attempts before it was raised.
ATTEMPTS = "_feedline_attempts"

# Raised in the trainer's `next`, these would end the epoch or the program.
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt)
# Attributes of an OSError that are not in its arguments.
_OS_ERROR = ("errno", "strerror", "filename", "filename2")


class _Text(str):
    """Text whose repr is the text itself: KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback in the worker, used as the cause of the exception in the trainer."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass
class RemoteError:
    """An exception that was raised in a worker, in a form that can be sent."""

    kind: bytes | None
    name: str
    message: str
    traceback: str
    offset: int | None
    stage: str
    # The attributes of a FeedlineError.
    details: dict[str, Any] = field(default_factory=dict)
    # The error itself, if it was created in the trainer.
    original: BaseException | None = None
    # The pickled exception.
    exact: bytes | None = None
    # How often the sample was tried before it was raised.
    attempts: int = 1

    @classmethod
    def of(
        cls, raised: BaseException, *, offset: int | None = None, stage: str = "", exact: bool = False
    ) -> RemoteError:
        """Keeps no reference to the exception, which would keep its frames alive. With `exact`, it is pickled
        too, so that it can be rebuilt even if its constructor needs more than a message."""
        explain_shortage(raised)
        text = "".join(traceback.format_exception(raised))
        kind: bytes | None = None
        if not isinstance(raised, _CONTROL_FLOW):
            try:
                kind = pickle.dumps(type(raised))
            except Exception:
                kind = None
        details = dict(vars(raised)) if isinstance(raised, FeedlineError) else {}
        details.pop("__notes__", None)
        whole = _pickled(raised) if exact else None
        return cls(
            kind,
            type(raised).__name__,
            _first_line(raised),
            text,
            offset,
            stage,
            details,
            exact=whole,
            attempts=getattr(raised, ATTEMPTS, 1),
        )

    @classmethod
    def reported(cls, error: BaseException, *, offset: int | None, stage: str) -> RemoteError:
        """An error that the trainer created, because the worker could not raise one any more."""
        message, *more = str(error).splitlines() or [""]
        name = type(error).__name__
        return cls(None, name, message, "\n".join(more), offset, stage, original=error)

    def exception(
        self, where: str, details: str, *, exact: bool = True, replay: str = "", **attributes: Any
    ) -> BaseException:
        """The exception to raise in the trainer, of the same type, with a message that says where it was
        raised; `replay` is its last line. Without `exact`, an exception whose constructor needs more than a
        message becomes a RuntimeError, as in torch."""
        if self.original is not None:
            return self.original
        text = f"Caught {self.name} {where}.\nOriginal {self.traceback}{details}"
        if self.kind is None and self.name in {kind.__name__ for kind in _CONTROL_FLOW}:
            text += (
                f"\n{self.name} would have ended the epoch or the program silently, "
                "so this error is raised instead"
            )
        note = details.strip() or f"feedline: {where}"
        if replay:
            text, note = f"{text}\n{replay}", f"{note}\n{replay}"
        exception = self._rebuilt(text, note if exact and self.exact is not None else None)
        for name, value in attributes.items():
            try:
                setattr(exception, name, value)
            except Exception:
                # The class forbids setting attributes: the message has all details.
                continue
        return exception

    def _rebuilt(self, text: str, note: str | None) -> BaseException:
        """The exception with this message. With a `note`, an exception whose constructor needs more than a
        message is rebuilt from its pickle."""
        if self.kind is None:
            return RuntimeError(text)
        try:
            kind: Any = pickle.loads(self.kind)
            if kind is KeyError:
                return KeyError(_Text(text))
            error = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:
            return RuntimeError(text) if note is None else self.again(note)
        if isinstance(error, FeedlineError):
            error.__dict__.update(self.details)
        return error if isinstance(error, BaseException) else RuntimeError(text)

    def again(self, note: str = "") -> BaseException:
        """The exception as it was raised, whatever its type, with an added note and the traceback of the
        worker as its cause. If it cannot be rebuilt, a RuntimeError that says so."""
        error = self.original
        if error is None:
            try:
                error = _unpickled(self.exact)
            except Exception as reason:
                error = RuntimeError(f"{self.name}: {self.message}")
                error.add_note(
                    f"feedline: {self.name} could not be sent from the worker ({_first_line(reason)}), "
                    "so a RuntimeError is raised instead"
                )
            _set(error, "__cause__", RemoteTraceback(self.traceback))
        if note:
            _add_note(error, note)
        return error


def _add_note(error: BaseException, note: str) -> None:
    notes = getattr(error, "__notes__", [])
    _set(error, "__notes__", [*notes, note])


def _set(error: BaseException, name: str, value: object) -> None:
    """Sets an attribute, even if a user's class overrides `__setattr__`."""
    with contextlib.suppress(Exception):
        BaseException.__setattr__(error, name, value)


# ---- exceptions as bytes ----


@dataclass
class _Bare:
    """An exception that pickle cannot rebuild: the name of its class, its arguments and its attributes. Its
    constructor is not called."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]
    missing: list[str]

    @classmethod
    def of(cls, raised: BaseException) -> _Bare:
        known = dict(getattr(raised, "__dict__", {}))
        if isinstance(raised, OSError):
            known.update({name: getattr(raised, name, None) for name in _OS_ERROR})
        attributes = {name: value for name, value in known.items() if _can_be_pickled(value)}
        arguments = tuple(
            argument if _can_be_pickled(argument) else f"<{type(argument).__name__}>"
            for argument in raised.args
        )
        kind = type(raised)
        missing = sorted(set(known) - set(attributes))
        return cls(kind.__module__, kind.__qualname__, arguments, attributes, missing)

    def rebuild(self) -> BaseException:
        try:
            parts = self.name.split(".")
            kind: Any = functools.reduce(getattr, parts, importlib.import_module(self.module))
        except Exception as reason:
            raise TypeError(f"there is no {self.module}.{self.name} here") from reason
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{self.module}.{self.name} is not an exception here")
        error: BaseException = kind.__new__(kind, *self.arguments)
        for name, value in {"args": self.arguments, **self.attributes}.items():
            _set(error, name, value)
        if self.missing:
            _add_note(error, f"feedline: without {', '.join(self.missing)}, which cannot be pickled")
        return error


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


def _pickled(raised: BaseException) -> bytes | None:
    try:
        whole = pickle.dumps(raised)
        # Many classes can be pickled but not unpickled, since their constructor takes other arguments.
        if type(pickle.loads(whole)) is type(raised):
            return whole
    except Exception:
        pass
    try:
        return pickle.dumps(_Bare.of(raised))
    except Exception:
        return None


def _unpickled(packed: bytes | None) -> BaseException:
    if packed is None:
        raise TypeError("it cannot be pickled")
    unpickled = pickle.loads(packed)
    error = unpickled.rebuild() if isinstance(unpickled, _Bare) else unpickled
    if not isinstance(error, BaseException):
        raise TypeError(f"its pickle contains a {type(error).__name__}")
    return error


def _first_line(raised: BaseException) -> str:
    """The first line of the message; a `__str__` of a user class may fail."""
    try:
        lines = str(raised).strip().splitlines()
    except Exception:
        return f"<{type(raised).__name__} without a message>"
    return lines[0] if lines else type(raised).__name__


def place(
    index: object,
    offset: int | None,
    batch: int | None,
    worker: int | None,
    stage: str,
    path: str | None = None,
) -> str:
    """Where something happened, as text: sample, offset, batch and worker."""
    parts = []
    if stage == "collating":
        parts.append("while the samples were collated")
    elif offset is not None and index is not None:
        file = "" if path is None else f" ({one_line(path)})"
        parts.append(f"at sample {described(index)}{file}")
        within = f"offset {offset}" if batch is None else f"offset {offset} of batch {batch}"
        parts.append(within)
        batch = None
    elif index is not None:
        parts.append(f"among samples {described(index)}")
    if batch is not None:
        parts.append(f"batch {batch}")
    if worker is not None:
        parts.append(f"worker {worker}")
    return ", ".join(parts)
