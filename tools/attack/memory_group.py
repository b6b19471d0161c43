"""A memory cgroup for one process, with cgroup v1 or v2, if this machine allows it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from attack.findings import NotPossibleError

__all__ = ["kills_in", "memory_group", "remove_group"]

_ROOT = Path("/sys/fs/cgroup")
# Seconds that the kernel may take to remove an ended process from a cgroup.
_GRACE = 30.0


def _folder(pid: int) -> Path:
    """The folder of the cgroup that a process creates."""
    first = _ROOT / "memory"
    return (first if first.is_dir() else _ROOT) / f"feedline-attack-{pid}"


def remove_group(pid: int) -> None:
    """Removes the cgroup of a process that ended without removing it; all processes in it must have ended."""
    with contextlib.suppress(OSError):
        _folder(pid).rmdir()


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A cgroup of `limit` bytes, which is removed afterwards; all processes in it must have ended by then."""
    is_first = (_ROOT / "memory").is_dir()
    folder = _folder(os.getpid())
    try:
        folder.mkdir()
    except OSError as refusal:
        raise NotPossibleError(f"no cgroup can be created: {refusal}") from None
    try:
        try:
            (folder / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit))
        except OSError as refusal:
            raise NotPossibleError(f"no memory cgroup can be created: {refusal}") from None
        yield folder
    finally:
        until = time.monotonic() + _GRACE
        while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
            time.sleep(0.01)
        folder.rmdir()


def kills_in(folder: Path) -> int:
    """How many processes of a cgroup the kernel has killed."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(FileNotFoundError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
