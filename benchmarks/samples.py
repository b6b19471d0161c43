"""The data sets of the worker benchmark: samples are so cheap that the loader itself is measured.

They are in a file of their own because a spawned worker has to import them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

PARTS, PART_FLOATS = 16, 16_384
LARGE_KEPT = 256
ENDLESS = 10_000_000

# Data sets hold arrays, not tensors: torch moves a tensor that it sends into shared memory, where it stays,
# so a tensor that the data set holds would be copied only the first time. A new tensor on the memory of an
# array costs nothing and is copied each time, like a batch that was read or computed.
Memory = np.ndarray[Any, np.dtype[np.float32]]


class Ready(Dataset[Any]):
    """The same batch for each index."""

    def __init__(self, batch: Callable[[], Any], length: int) -> None:
        self.batch, self.length = batch, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.batch()


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Many small samples, as of MNIST: a row of a tensor, and a label."""

    def __init__(self, length: int, floats: int = 784) -> None:
        self.rows = torch.rand(length, floats)
        self.labels = [index % 10 for index in range(length)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index], self.labels[index]


class Pictures(Dataset[torch.Tensor]):
    """Large samples, as of ImageNet; a few of them, repeated."""

    def __init__(self, length: int) -> None:
        self.pictures = torch.rand(LARGE_KEPT, 3, 224, 224)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.pictures[index % LARGE_KEPT]


class Tiny(Dataset[torch.Tensor]):
    """Tiny samples, for the time to the first batch."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), float(index))


class Signed(Dataset[torch.Tensor]):
    """Samples with the index, the id of the worker that computed them, and its process id."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        assert worker is not None
        return torch.tensor([index, worker.id, os.getpid()])


def ready(subject: str, length: int) -> Ready:
    """The data set with the batch of this name."""
    match subject:
        case "tensor 4 KB":
            return Ready(_tensor(1024), length)
        case "16 arrays 1 MB":
            return Ready(_arrays(), length)
        case "16 tensors 1 MB":
            return Ready(_tensors(), length)
        case "tensor 38 MB":
            return Ready(_tensor(64, 3, 224, 224), length)
        case _:
            raise ValueError(f"no batch is called {subject}")


def _memory(*shape: int) -> Memory:
    return np.random.default_rng(1).random(shape, dtype=np.float32)


def _tensor(*shape: int) -> Callable[[], torch.Tensor]:
    memory = _memory(*shape)
    return lambda: torch.from_numpy(memory)


def _arrays() -> Callable[[], dict[str, Memory]]:
    parts = {f"part {number}": _memory(PART_FLOATS) for number in range(PARTS)}
    return lambda: dict(parts)


def _tensors() -> Callable[[], dict[str, torch.Tensor]]:
    arrays = _arrays()
    return lambda: {name: torch.from_numpy(part) for name, part in arrays().items()}
