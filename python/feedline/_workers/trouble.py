"""An exception on its way from a worker to the trainer: it keeps its type, its words and its traceback."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import FeedlineError
from feedline.faults import explain_shortage

__all__ = ["Trouble", "place"]

# Raised in the trainer's `next`, these would mean something else: the end of the epoch, of the program.
_MEANT_OTHERWISE = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt)


class _Words(str):
    """A text that is shown as it is: KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass
class Trouble:
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

    @classmethod
    def of(cls, raised: BaseException, *, position: int | None = None, stage: str = "") -> Trouble:
        """Keeps no reference to the exception: that would keep the frames alive."""
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
        return cls(kind, type(raised).__name__, _said(raised), text, position, stage, details)

    @classmethod
    def told(cls, error: BaseException, *, position: int | None, stage: str) -> Trouble:
        """An error that the trainer has made itself, because there was nobody left to raise one."""
        message, *more = str(error).splitlines()
        name = type(error).__name__
        return cls(None, name, message, "\n".join(more), position, stage, original=error)

    def exception(self, where: str, details: str, **attributes: Any) -> BaseException:
        """The exception to raise in the trainer, of the same type where one can be made of a text."""
        if self.original is not None:
            return self.original
        text = f"Caught {self.name} {where}.\nOriginal {self.traceback}{details}"
        if self.kind is None and self.name in {kind.__name__ for kind in _MEANT_OTHERWISE}:
            text += (
                f"\n{self.name} would have ended the epoch or the program without a word, "
                "so it arrives as this error"
            )
        exception = self._made(text)
        for name, value in attributes.items():
            try:
                setattr(exception, name, value)
            except Exception:
                # It guards its attributes: the text has it all.
                continue
        return exception

    def _made(self, text: str) -> BaseException:
        try:
            kind: Any = RuntimeError if self.kind is None else pickle.loads(self.kind)
        except Exception:
            return RuntimeError(text)
        try:
            if kind is KeyError:
                return KeyError(_Words(text))
            made = kind(message=text) if getattr(kind, "message", None) else kind(text)
        except Exception:
            return RuntimeError(text)
        if isinstance(made, FeedlineError):
            made.__dict__.update(self.details)
        return made if isinstance(made, BaseException) else RuntimeError(text)


def _said(raised: BaseException) -> str:
    """Its words in one line; a `__str__` of the user's may fail too."""
    try:
        words = str(raised).strip().splitlines()
    except Exception:
        return f"<{type(raised).__name__} without words>"
    return words[0] if words else type(raised).__name__


def place(index: object, position: int | None, batch: int | None, worker: int | None, stage: str) -> str:
    """Where something happened, in words."""
    parts = []
    if stage == "collating":
        parts.append("while the samples were collated")
    elif position is not None and index is not None:
        parts.append(f"at sample {index!r}, position {position}")
    elif index is not None:
        shown = repr(index)
        parts.append(f"among samples {shown if len(shown) < 200 else shown[:200] + '...'}")
    if batch is not None:
        parts.append(f"batch {batch}")
    if worker is not None:
        parts.append(f"worker {worker}")
    return ", ".join(parts)
