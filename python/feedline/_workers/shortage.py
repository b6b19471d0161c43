"""Shortages that user code meets: too many open files, no memory, no threads. In a worker, the cause is often
what the worker has leaked, so the worker ends and a fresh one runs its task again. Only a worker that meets a
shortage in its first task reports it as an error. The trainer cannot end: it gives back what Feedline holds
without need, waits, and tries again."""

from __future__ import annotations

import gc
import os
import resource
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from feedline import _native
from feedline.cached_files import close_cached
from feedline.faults import shortage_of

__all__ = [
    "EXIT_CODE",
    "LeaveError",
    "describe_open_files",
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
}
# How many paths are shown, and how many descriptors are looked at.
_PATHS, _NUMBERS = 10, 1 << 16

_tasks_done = 0


# Seconds before the attempts that follow a shortage in the trainer.
_PAUSES = (0.05, 0.2, 1.0)


def step_back(raised: BaseException, times: int, pause: Callable[[float], object]) -> bool:
    """Gives back what can be spared after an exception that means a shortage, and waits. `times` is how often
    that was done for this sample. Returns False if it does not help: it is no shortage, or one that stays."""
    if times >= len(_PAUSES) or shortage_of(raised) is None:
        return False
    # The frames of the attempt hold what it has loaded.
    traceback.clear_frames(raised.__traceback__)
    gc.collect()
    close_cached()
    _native.give_back_idle()
    pause(_PAUSES[times])
    return True


class LeaveError(BaseException):
    """Ends a worker that is short of something. `text` goes into its crash log."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def note_task_done() -> None:
    """The worker has finished a task."""
    global _tasks_done
    _tasks_done += 1


def leave_if_short(raised: BaseException) -> None:
    """Raises `LeaveError` for an exception that means a shortage, if a fresh worker may not have it."""
    kind = shortage_of(raised) if _tasks_done else None
    if kind is None:
        return
    lines = [
        _MARKS[kind],
        f"it raised {type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}",
    ]
    if kind == "TooManyOpenFilesError":
        lines += describe_open_files()
    raise LeaveError("\n".join(lines)) from None


def describe_open_files() -> list[str]:
    """What the descriptors of this process are: how many of each kind, and the paths most often open."""
    kinds: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    # By number, since to list a folder needs a descriptor too.
    most_files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _NUMBERS)
    for number in range(most_files):
        try:
            target = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            continue
        if target.startswith("/") and not target.startswith("/memfd:"):
            kinds["files"] += 1
            paths[target] += 1
        else:
            kinds[target.split(":", 1)[0].removeprefix("/") + "s"] += 1
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    lines = [f"it had {sum(kinds.values())} open descriptors: {shown}"]
    often = [f"{path} ({count})" if count > 1 else path for path, count in paths.most_common(_PATHS)]
    return [*lines, f"most often open: {', '.join(often)}"] if often else lines
