"""Control groups of tests, at the root of a controller. A test makes its own and removes exactly that one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from faults.remains import eventually

__all__ = ["Cgroup", "cgroup"]

ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """A control group. As text, it is its folder."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self._limit = limit

    def limit(self, amount: int | str) -> None:
        (self.folder / self._limit).write_text(str(amount))

    def number(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def peak_bytes(self) -> int:
        """The most memory that its processes have used at a time."""
        is_old = (self.folder / "memory.max_usage_in_bytes").exists()
        return self.number("memory.max_usage_in_bytes" if is_old else "memory.peak")

    def __str__(self) -> str:
        return str(self.folder)


@contextlib.contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    """A control group of the controller "memory" or "pids", without a limit."""
    if controller == "pids" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("torch before 2.6 waits forever in set_num_threads for a refused thread")
    files = {"memory": ("memory.limit_in_bytes", "memory.max"), "pids": ("pids.max", "pids.max")}[controller]
    # Version 1 has a folder for each controller, version 2 one for all.
    is_old = (ROOT / controller).is_dir()
    parent = ROOT / controller if is_old else ROOT
    folder = parent / f"feedline-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as refusal:
        pytest.skip(f"no control group can be made: {refusal}")
    try:
        limit = files[0] if is_old else files[1]
        if not (folder / limit).exists():
            pytest.skip(f"control groups here do not limit {controller}")
        yield Cgroup(folder, limit)
    finally:
        assert eventually(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
