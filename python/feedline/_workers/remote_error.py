"""An exception on its way from a worker to the trainer: it keeps its type, its words and its traceback."""

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

__all__ = ["RemoteError", "RemoteTraceback", "place"]

# Raised in the trainer's `next`, these would mean something else: the end of the epoch, of the program.
_MEANT_OTHERWISE = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt)
# What an OSError has beside its arguments.
_OS_ERROR = ("errno", "strerror", "filename", "filename2")


class _Text(str):
    """A text that is shown as it is: KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of the worker, as the cause of its exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass
class RemoteError:
    """What was raised in a worker."""

    kind: bytes | None
    name: str
    message: str
    traceback: str
    position: int | None
    stage: str
    # What an error of ours knows, which others have in their text alone.
    details: dict[str, Any] = field(default_factory=dict)
    # The error itself, where it never left the trainer.
    original: BaseException | None = None
    # The exception as it was raised, pickled.
    exact: bytes | None = None

    @classmethod
    def of(
        cls, raised: BaseException, *, position: int | None = None, stage: str = "", exact: bool = False
    ) -> RemoteError:
        """Keeps no reference to the exception: that would keep the frames alive. `exact`: it can be made
        again as it was, also where its type needs more than a text."""
        explain_shortage(raised)
        text = "".join(traceback.format_exception(raised))
        kind: bytes | None = None
        if not isinstance(raised, _MEANT_OTHERWISE):
            try:
                kind = pickle.dumps(type(raised))
            except Exception:
                kind = None
        details = dict(vars(raised)) if isinstance(raised, FeedlineError) else {}
        details.pop("__notes__", None)
        whole = _packed(raised) if exact else None
        return cls(kind, type(raised).__name__, _said(raised), text, position, stage, details, exact=whole)

    @classmethod
    def reported(cls, error: BaseException, *, position: int | None, stage: str) -> RemoteError:
        """An error that the trainer has made itself, because there was nobody left to raise one."""
        message, *more = str(error).splitlines() or [""]
        name = type(error).__name__
        return cls(None, name, message, "\n".join(more), position, stage, original=error)

    def exception(self, where: str, details: str, *, exact: bool = True, **attributes: Any) -> BaseException:
        """The exception to raise in the trainer, of the same type, with text that says where it was. Unless
        it must be `exact`, a type that needs more than a text becomes a RuntimeError, as torch has it."""
        if self.original is not None:
            return self.original
        text = f"Caught {self.name} {where}.\nOriginal {self.traceback}{details}"
        if self.kind is None and self.name in {kind.__name__ for kind in _MEANT_OTHERWISE}:
            text += (
                f"\n{self.name} would have ended the epoch or the program without a word, "
                "so it arrives as this error"
            )
        note = details.strip() or f"feedline: {where}"
        exception = self._made(text, note if exact and self.exact is not None else None)
        for name, value in attributes.items():
            try:
                setattr(exception, name, value)
            except Exception:
                # It guards its attributes: the text has it all.
                continue
        return exception

    def _made(self, text: str, note: str | None) -> BaseException:
        """With a `note`, it is made again as it was where its type needs more than a text."""
        if self.kind is None:
            return RuntimeError(text)
        try:
            kind: Any = pickle.loads(self.kind)
            if kind is KeyError:
                return KeyError(_Text(text))
            made = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:
            return RuntimeError(text) if note is None else self.again(note)
        if isinstance(made, FeedlineError):
            made.__dict__.update(self.details)
        return made if isinstance(made, BaseException) else RuntimeError(text)

    def again(self, note: str = "") -> BaseException:
        """The exception as it was raised, whatever its type, with a note more and the traceback of the
        worker as its cause. A RuntimeError that says so, if it cannot be made again."""
        error = self.original
        if error is None:
            try:
                error = _unpacked(self.exact)
            except Exception as reason:
                error = RuntimeError(f"{self.name}: {self.message}")
                error.add_note(
                    f"feedline: {self.name} could not be sent from the worker ({_said(reason)}), "
                    "so it arrives as a RuntimeError"
                )
            _set(error, "__cause__", RemoteTraceback(self.traceback))
        if note:
            _add_note(error, note)
        return error


def _add_note(error: BaseException, note: str) -> None:
    notes = getattr(error, "__notes__", [])
    _set(error, "__notes__", [*notes, note])


def _set(error: BaseException, name: str, value: object) -> None:
    """Also where a class of the user's guards its attributes."""
    with contextlib.suppress(Exception):
        BaseException.__setattr__(error, name, value)


# ---- exceptions as bytes ----


@dataclass
class _Bare:
    """An exception that pickle cannot make again: its class by name, and what it knows. Its constructor is
    not called."""

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

    def made(self) -> BaseException:
        try:
            parts = self.name.split(".")
            kind: Any = functools.reduce(getattr, parts, importlib.import_module(self.module))
        except Exception as reason:
            raise TypeError(f"there is no {self.module}.{self.name} here") from reason
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{self.module}.{self.name} is no exception here")
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


def _packed(raised: BaseException) -> bytes | None:
    try:
        whole = pickle.dumps(raised)
        # Many a class can be pickled and not made again, since its constructor wants other arguments.
        if type(pickle.loads(whole)) is type(raised):
            return whole
    except Exception:
        pass
    try:
        return pickle.dumps(_Bare.of(raised))
    except Exception:
        return None


def _unpacked(packed: bytes | None) -> BaseException:
    if packed is None:
        raise TypeError("it cannot be pickled")
    made = pickle.loads(packed)
    error = made.made() if isinstance(made, _Bare) else made
    if not isinstance(error, BaseException):
        raise TypeError(f"a {type(error).__name__} arrived in its place")
    return error


def _said(raised: BaseException) -> str:
    """Its words in one line; a `__str__` of the user's may fail too."""
    try:
        lines = str(raised).strip().splitlines()
    except Exception:
        return f"<{type(raised).__name__} without words>"
    return lines[0] if lines else type(raised).__name__


def place(
    index: object,
    position: int | None,
    batch: int | None,
    worker: int | None,
    stage: str,
    path: str | None = None,
) -> str:
    """Where something happened, in words."""
    parts = []
    if stage == "collating":
        parts.append("while the samples were collated")
    elif position is not None and index is not None:
        file = "" if path is None else f" ({one_line(path)})"
        parts.append(f"at sample {described(index)}{file}, position {position}")
    elif index is not None:
        parts.append(f"among samples {described(index)}")
    if batch is not None:
        parts.append(f"batch {batch}")
    if worker is not None:
        parts.append(f"worker {worker}")
    return ", ".join(parts)
