"""Compares the resources of a process before and after: children, threads, descriptors, shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from programs import threads

__all__ = [
    "children",
    "descendants",
    "eventually",
    "has_ended",
    "nothing_left",
    "parent",
    "shared_names",
    "zygote_of",
]


def eventually(holds: Callable[[], object], seconds: float = 120) -> bool:
    """Waits until the condition holds; returns False if the time is over first."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        # Other processes need the processor to make the condition true.
        time.sleep(0.001)
    return True


def _status(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def has_ended(pid: int) -> bool:
    """Whether a process has ended; one that is not reaped yet counts as ended."""
    return _status(pid).get("State", "Z")[0] in "ZX"


def parent(pid: int) -> int:
    return int(_status(pid)["PPid"])


def zygote_of(pid: int | None) -> int:
    """The process that forked a worker."""
    assert pid is not None
    return parent(pid)


def children(pid: int) -> set[int]:
    """Processes that a process has started and not reaped."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def descendants(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    for child in children(pid):
        found.add(child)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= descendants(child)
    return found


def shared_names() -> set[str]:
    """Feedline's and torch's names in /dev/shm, without those of other programs."""
    ours = ("feedline", f"_{os.getpid()}_")
    return {path.name for path in Path("/dev/shm").iterdir() if any(part in path.name for part in ours)}


def _descriptors() -> Counter[str]:
    kinds: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[str(path.readlink()).split("[")[0]] += 1
    return kinds


def _mappings() -> Counter[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Counter(line.split("memfd:")[1] for line in lines if "memfd:" in line)


_KINDS = ("children", "threads", "descriptors", "names in /dev/shm", "memory files that are mapped")


def _all() -> tuple[set[Any] | Counter[str], ...]:
    return children(os.getpid()), threads(), _descriptors(), shared_names(), _mappings()


def _more(before: tuple[set[Any] | Counter[str], ...]) -> list[str]:
    """Resources that exist now and did not before. Leftovers of earlier tests may have gone meanwhile."""
    kinds = zip(_KINDS, before, _all(), strict=True)
    found = [f"{name}: {then} before, {now} after" for name, then, now in kinds if now - then]  # type: ignore[operator]
    if found:
        found += [f"{thread}: {_stack(thread)}" for thread in threading.enumerate() if thread.daemon]
    return found


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else " < ".join(f.name for f in reversed(traceback.extract_stack(frame)))


@contextlib.contextmanager
def nothing_left(seconds: float = 30) -> Iterator[None]:
    """Asserts that the block returns all resources that it takes."""
    gc.collect()
    before = _all()
    yield
    gc.collect()
    # A thread that has ended is still listed for a moment.
    eventually(lambda: not _more(before), seconds)
    assert not (more := _more(before)), more
