"""A memory cgroup for one process, of either version, where this machine allows it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from attack.findings import NotPossibleError

__all__ = ["kills_in", "memory_group", "remove_group"]

_ROOT = Path("/sys/fs/cgroup")
# Seconds that the kernel may take to let go of a process that has ended.
_GRACE = 30.0


def _folder(pid: int) -> Path:
    """Of the group that a process makes."""
    first = _ROOT / "memory"
    return (first if first.is_dir() else _ROOT) / f"feedline-attack-{pid}"


def remove_group(pid: int) -> None:
    """Removes the group of a process that has ended without doing so; its processes must have ended too."""
    with contextlib.suppress(OSError):
        _folder(pid).rmdir()


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group of `limit` bytes, which is removed afterwards; nothing may be left in it then."""
    is_first = (_ROOT / "memory").is_dir()
    folder = _folder(os.getpid())
    try:
        folder.mkdir()
    except OSError as refusal:
        raise NotPossibleError(f"no control group can be made: {refusal}") from None
    try:
        try:
            (folder / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit))
        except OSError as refusal:
            raise NotPossibleError(f"no control group of memory can be made: {refusal}") from None
        yield folder
    finally:
        until = time.monotonic() + _GRACE
        while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        folder.rmdir()


def kills_in(folder: Path) -> int:
    """How many processes of a group the kernel has killed."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(FileNotFoundError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
