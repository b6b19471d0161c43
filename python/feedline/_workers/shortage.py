"""Shortages that user code meets: too many open files, no memory, no threads, no space. In a worker, the
cause is often what the worker has leaked, so the worker ends and a fresh one runs its task again. Only a
worker that meets a shortage in its first task reports it as an error. The trainer cannot end: it gives back
what Feedline holds without need, waits, and tries again."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._open_descriptors import describe_open_files
from feedline.cached_files import close_cached
from feedline.faults import shortage_name, shortage_of

__all__ = [
    "EXIT_CODE",
    "SHORTAGE_MET",
    "ShortageExit",
    "ShortagesMet",
    "leave_if_short",
    "note_task_done",
    "step_back",
]

# The exit code of a worker that leaves: that of sysexits.h for failures that are temporary.
EXIT_CODE = os.EX_TEMPFAIL
# How the crash log begins, by the kind of error; the supervisor knows them.
_MARKS = {
    "TooManyOpenFilesError": "feedline: short of descriptors",
    "OutOfMemoryError": "feedline: short of memory",
    "OutOfThreadsError": "feedline: short of processes",
    "OutOfSpaceError": "feedline: short of space",
}
_tasks_done = 0


# Seconds before the attempts that follow a shortage in the trainer.
_PAUSES = (0.05, 0.2, 1.0)
# The event of a step back.
SHORTAGE_MET = "shortage_met"

Notify = Callable[[str, dict[str, Any]], object]


def step_back(
    raised: BaseException, times: int, pause: Callable[[float], object], notify: Notify | None = None
) -> bool:
    """Gives back what can be spared after an exception that means a shortage, and waits. `times` is how often
    that was done for this sample; `notify` is called with an event. Returns False if it does not help: it is
    no shortage, or one that stays."""
    kind = shortage_of(raised)
    if times >= len(_PAUSES) or kind is None:
        return False
    if notify is not None:
        notify(SHORTAGE_MET, _event(kind, raised))
    # The frames of the attempt hold what it has loaded.
    traceback.clear_frames(raised.__traceback__)
    gc.collect()
    close_cached()
    _native.give_back_idle()
    pause(_PAUSES[times])
    return True


def _event(kind: str, raised: BaseException) -> dict[str, Any]:
    resource, error = shortage_name(kind), _first_line(raised)
    what = "what is idle is given back, and the sample is made again"
    text = f"the machine is short of {resource} ({error}): {what}"
    return {"text": text, "level": "warning", "resource": resource, "error": error}


class ShortagesMet:
    """The resources whose shortage was reported in this epoch: each is an event once."""

    def __init__(self) -> None:
        self._resources: set[str] = set()

    def is_news(self, name: str, details: dict[str, Any]) -> bool:
        """Whether an event is to be reported; events of other names always are."""
        if name != SHORTAGE_MET:
            return True
        is_news = details["resource"] not in self._resources
        self._resources.add(details["resource"])
        return is_news


class ShortageExit(BaseException):
    """Ends a worker that is short of something. `text` goes into its crash log."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def note_task_done() -> None:
    """The worker has finished a task."""
    global _tasks_done
    _tasks_done += 1


def leave_if_short(raised: BaseException) -> None:
    """Raises `ShortageExit` for an exception that means a shortage, if a fresh worker may not have it."""
    kind = shortage_of(raised) if _tasks_done else None
    if kind is None:
        return
    lines = [
        _MARKS[kind],
        f"it raised {_first_line(raised)}",
    ]
    if kind == "TooManyOpenFilesError":
        first, *others = describe_open_files()
        lines += [f"it had {first}", *others]
    raise ShortageExit("\n".join(lines)) from None


def _first_line(raised: BaseException) -> str:
    lines = str(raised).splitlines()
    return f"{type(raised).__name__}: {lines[0]}" if lines else type(raised).__name__
