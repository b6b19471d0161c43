"""Data sets that draw random numbers and die, and their batches from torch's own loader."""

from __future__ import annotations

import copy
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from feedline._torch.supervised import WithWorkers
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset

from faults.remains import eventually

__all__ = [
    "WAYS",
    "Drawn",
    "Listed",
    "Once",
    "Streamed",
    "die",
    "expected",
    "is_idle",
    "is_same",
    "iterate",
    "pid_of",
    "seeded",
]

SIGNALS = ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"]
WAYS = [*SIGNALS, "exit 0", "exit 3"]
Hook = Callable[[int], None]


def nothing(_index: int) -> None:
    """The action of a data set that does not die."""


def die(way: str) -> None:
    """Ends this process by a signal or by an exit."""
    if way.startswith("exit"):
        os._exit(int(way.split()[1]))
    # A process that was started by nohup inherits an ignored signal.
    if signal.getsignal(signal.Signals[way]) is signal.SIG_IGN:
        signal.signal(signal.Signals[way], signal.SIG_DFL)
    os.kill(os.getpid(), signal.Signals[way])


class Once:
    """Dies at one index, only the first time."""

    def __init__(self, marker: Path, way: str, index: int) -> None:
        self.marker = marker
        self.way = way
        self.index = index

    def __call__(self, index: int) -> None:
        if index != self.index:
            return
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        die(self.way)


def draw(index: int) -> dict[str, Any]:
    """Draws a sample from all three generators. A batch of such samples does not fit into a frame."""
    noise = torch.rand(500) + random.random() + np.random.rand()
    return {"index": index, "noise": noise, "number": random.gauss(0, 1), "array": np.random.randn(3)}


class Drawn(Dataset[Any]):
    """A map-style data set with `__getitem__`."""

    def __init__(self, count: int = 48, hook: Hook = nothing) -> None:
        self.count = count
        self.hook = hook

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        sample = draw(index)
        # Die between drawing and returning: the replacement must draw the same numbers again.
        self.hook(index)
        return sample


class Listed(Drawn):
    """A map-style data set with `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Streamed(IterableDataset[Any]):
    """An iterable data set; each worker has every n-th sample."""

    def __init__(self, count: int = 48, hook: Hook = nothing) -> None:
        self.count = count
        self.hook = hook

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.count, step):
            sample = draw(index)
            self.hook(index)
            yield sample


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_EXPECTED: dict[object, list[list[Any]]] = {}


def expected(kind: type[Any], *, seed: int = 1, epochs: int = 1, **arguments: Any) -> list[list[Any]]:
    """The epochs of torch's own loader with workers that do not die; computed once."""
    key = (kind, seed, epochs, tuple(sorted(arguments.items())))
    if key not in _EXPECTED:
        loader = torch.utils.data.DataLoader(kind(), generator=seeded(seed), **arguments)
        # Copy: torch keeps a descriptor for each tensor from a worker.
        _EXPECTED[key] = [[copy.deepcopy(batch) for batch in loader] for _ in range(epochs)]
    return _EXPECTED[key]


def is_same(one: Any, other: Any) -> bool:
    """Whether two batches, or lists of batches, are equal to the last bit, including types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def iterate(loader: DataLoader[Any]) -> WithWorkers:
    """An iterator with workers, typed as such."""
    iterator = iter(loader)
    assert isinstance(iterator, WithWorkers)
    return iterator


def pid_of(iterator: WithWorkers, worker: int) -> int:
    """The process id of a worker; waits until the worker is forked."""
    assert eventually(lambda: iterator._workers[worker].pid is not None)
    pid = iterator._workers[worker].pid
    assert pid is not None
    return pid


def is_idle(iterator: WithWorkers, worker: int) -> bool:
    """Whether a worker has answered all of its tasks."""
    worker_pool = iterator._worker_pool
    assert worker_pool is not None
    doing = worker_pool.activity(worker)
    newest = max(batch.task for batch in iterator._waiting.values() if batch.worker_id == worker)
    return doing is not None and (doing.stage, doing.task) == ("waiting", newest)
