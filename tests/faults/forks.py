"""Functions that make a sample and fork meanwhile, for data sets, pipelines and pools."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import feedline as fl
import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

__all__ = [
    "POLICIES",
    "SAMPLES",
    "WAYS",
    "Forking",
    "ForkingBatches",
    "OfSamples",
    "Sample",
    "all_samples",
    "both_return",
    "child_collates",
    "child_exits",
    "child_raises",
    "has_executor",
    "has_pool",
    "sample_of",
    "square",
    "wait_for",
]

Sample = np.ndarray[Any, Any]
SAMPLES = 16
WIDTH = 2000


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sample_of(index: int) -> Sample:
    return np.full(WIDTH, index)


def all_samples() -> Sample:
    return np.stack([sample_of(index) for index in range(SAMPLES)])


def child_collates(index: int) -> Sample:
    """The child makes its own batch, as large as the worker's, while the worker continues."""
    child = os.fork()
    if child == 0:
        kept = [default_collate([torch.full((WIDTH,), -7)] * 4) for _ in range(4)]
        os._exit(len(kept) - 4)
    if index % 4 == 3:
        wait_for(child)
    return sample_of(index)


def child_exits(index: int) -> Sample:
    if index % 3 == 1:
        child = os.fork()
        if child == 0:
            sys.exit(5)
        assert wait_for(child) == 5
    return sample_of(index)


def child_raises(index: int) -> Sample:
    if index % 3 == 1:
        child = os.fork()
        if child == 0:
            raise KeyError("in the child")
        assert wait_for(child) == 1
    return sample_of(index)


def both_return(index: int) -> Sample:
    if index % 3 == 1 and (child := os.fork()) != 0:
        assert wait_for(child) == 1
    return sample_of(index)


def square(number: int) -> int:
    # Too large for a frame, so the child writes its batches to shared memory.
    return int(default_collate([torch.full((WIDTH,), number)] * 4)[0, 0]) ** 2


def has_executor(index: int) -> Sample:
    with fl.Executor(2) as pool:
        assert list(pool.map(square, range(6))) == [0, 1, 4, 9, 16, 25]
    return sample_of(index)


def has_pool(index: int) -> Sample:
    # A worker is a daemon, which may not have children; users turn that off.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(6)) == [0, 1, 4, 9, 16, 25]
    return sample_of(index)


class Forking(Dataset[Any]):
    def __init__(self, make: Callable[[int], Sample]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.make(index))


class ForkingBatches(Forking):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


WAYS = [child_collates, child_exits, child_raises, both_return]
POLICIES = {
    "no policy": None,
    "skip": fl.FaultPolicy("skip"),
    "retry": fl.FaultPolicy("skip", retry=2, backoff=0.001),
}


class OfSamples:
    """A pipeline function that forks."""

    def __init__(self, make: Callable[[int], Sample]) -> None:
        self.make = make

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": self.make(int(sample["x"]))}
