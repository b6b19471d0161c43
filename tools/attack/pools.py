"""Data sets and functions fork and start their own pools inside workers: batches must not change."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import numpy as np
import torch
from faults.forks import (
    POLICIES,
    SAMPLES,
    WAYS,
    Forking,
    ForkingBatches,
    OfSamples,
    Sample,
    all_samples,
    both_return,
    child_exits,
    child_raises,
    has_executor,
    has_pool,
    sample_of,
    square,
    wait_for,
)
from feedline.torch import DataLoader

from attack.findings import expect

__all__ = ["attack"]

Make = Callable[[int], Sample]


def child_writes(index: int) -> Sample:
    """A child writes to the sample that its parent returns."""
    sample = sample_of(index)
    child = os.fork()
    if child == 0:
        sample[:] = -7
        os._exit(3)
    assert wait_for(child) == 3
    return sample


def grandchild_exits(index: int) -> Sample:
    """A child forks as well, and ends before its own child."""
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(4)
    assert wait_for(child) == 4
    return sample_of(index)


def has_process_pool(index: int) -> Sample:
    # A worker is a daemon, which may not have children; some programs turn that off.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        assert list(pool.map(square, range(6))) == [0, 1, 4, 9, 16, 25]
    return sample_of(index)


def has_killed_executor(index: int) -> Sample:
    """A worker of the inner pool dies."""
    with fl.Executor(2) as pool:
        assert list(pool.map(abs, [index] * 4)) == [index] * 4
        pool.workers[0].kill()
        assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
    return sample_of(index)


class WritesToArgument:
    """A function of a pipeline that forks a child, which writes to the function's argument."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        child = os.fork()
        if child == 0:
            sample["x"][...] = -7
            os._exit(0)
        assert wait_for(child) == 0
        return {"x": sample_of(int(sample["x"][0]))}


FORKS: list[Make] = [*WAYS, child_writes, grandchild_exits]
NESTED: list[Make] = [has_executor, has_pool, has_process_pool, has_killed_executor]


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Does a few runs with forks, and one with pools, which takes longer."""
    counts: Counter[str] = Counter()
    for make in [*draws.sample(FORKS, 2), draws.choice(NESTED)]:
        front = draws.choice([in_data_set, in_calls, in_pipeline])
        seen, what = front(draws, make)
        right = all_samples()
        expect(seen.shape == right.shape, f"{what}: {len(seen)} samples of {len(right)}")
        wrong = np.flatnonzero((seen != right).any(axis=1))
        expect(not len(wrong), f"{what}: wrong samples {wrong.tolist()}, such as {seen[wrong[:1]]}")
        counts += Counter({"runs": 1, "pools" if make in NESTED else "forks": SAMPLES})
    return counts


def in_data_set(draws: Random, make: Make) -> tuple[Sample, str]:
    kind = draws.choice([Forking, ForkingBatches])
    settings: dict[str, Any] = {
        "batch_size": draws.randint(1, 6),
        "num_workers": draws.randint(1, 3),
        "persistent_workers": draws.random() < 0.5,
    }
    policy = draws.choice(sorted(POLICIES))
    loader = DataLoader(kind(make), faults=POLICIES[policy], **settings)
    epochs = [torch.cat(list(loader)).numpy() for _ in range(2)]
    what = f"{make.__name__} in {kind.__name__} with {settings}, {policy}"
    expect((epochs[0] == epochs[1]).all(), f"{what}: two epochs differ")
    return epochs[0], what


def in_calls(draws: Random, make: Make) -> tuple[Sample, str]:
    policy, workers, chunk = draws.choice(sorted(POLICIES)), draws.randint(1, 3), draws.randint(1, 5)
    with fl.Executor(workers, faults=POLICIES[policy]) as pool:
        seen = list(pool.map(make, range(SAMPLES), chunksize=chunk))
    what = f"{make.__name__} in {workers} workers of an Executor, chunks of {chunk}, {policy}"
    bad = [result for result in seen if not isinstance(result, np.ndarray)]
    expect(not bad, f"{what}: results are {bad[:2]!r}")
    return np.stack(seen), what


def in_pipeline(draws: Random, make: Make) -> tuple[Sample, str]:
    """Uses threads only for forks that are safe in a process with threads."""
    threads = make in (child_exits, child_raises, both_return) and draws.random() < 0.3
    function: Any = WritesToArgument() if make is child_writes else OfSamples(make)
    policy = POLICIES[draws.choice(sorted(POLICIES))] or fl.FaultPolicy()
    size, workers = draws.randint(1, 6), draws.randint(1, 3)
    numbers = np.arange(SAMPLES)
    if make is child_writes:
        numbers = np.repeat(numbers, 100).reshape(SAMPLES, 100)
    pipeline = fl.arrays({"x": numbers}).map(function, threads=threads).batch(size)
    with pipeline.loader(workers=workers, faults=policy) as loader:
        seen = np.concatenate([batch["x"] for batch in loader])
    where = "threads" if threads else "processes"
    return seen, f"{make.__name__} in a pipeline with {workers} {where}, batches of {size}, {policy}"
