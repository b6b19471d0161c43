"""The user's code forks inside a worker: the child is not the worker, whatever it does."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline.torch import DataLoader
from torch.utils.data import Dataset, default_collate

from faults.trainers import Trainers

Sample = np.ndarray[Any, Any]
SAMPLES = 16
WIDTH = 2000

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.timeout(300),
]


def wait_for(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sample_of(index: int) -> Sample:
    return np.full(WIDTH, index)


def all_samples() -> Sample:
    return np.stack([sample_of(index) for index in range(SAMPLES)])


def child_collates(index: int) -> Sample:
    """The child makes a batch of its own, as large as the worker's, while the worker goes on."""
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
    # Larger than what travels in a frame: the child has batches to write.
    return int(default_collate([torch.full((WIDTH,), number)] * 4)[0, 0]) ** 2


def has_executor(index: int) -> Sample:
    with fl.Executor(2) as pool:
        assert list(pool.map(square, range(6))) == [0, 1, 4, 9, 16, 25]
    return sample_of(index)


def has_pool(index: int) -> Sample:
    # A worker is a daemon, which may have no children; people turn that off.
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


@pytest.mark.parametrize("make", WAYS)
def test_a_child_of_a_worker_of_torch_changes_no_batch(make: Callable[[int], Sample]) -> None:
    for name, policy in POLICIES.items():
        for dataset in (Forking(make), ForkingBatches(make)):
            loader = DataLoader(dataset, batch_size=4, num_workers=2, faults=policy)
            seen = torch.cat(list(loader)).numpy()
            assert (seen == all_samples()).all(), name
            assert loader.deaths == []


@pytest.mark.parametrize("make", [has_executor, has_pool])
def test_a_pool_inside_of_a_worker_changes_no_batch(make: Callable[[int], Sample]) -> None:
    loader = DataLoader(Forking(make), batch_size=4, num_workers=2)

    assert (torch.cat(list(loader)).numpy() == all_samples()).all()


@pytest.mark.parametrize("make", WAYS)
def test_a_child_of_a_worker_of_a_pool_answers_nothing(make: Callable[[int], Sample]) -> None:
    for policy in POLICIES.values():
        with fl.Executor(2, faults=policy) as pool:
            seen = list(pool.map(make, range(SAMPLES), chunksize=3))

        assert (np.stack(seen) == all_samples()).all()


class OfSamples:
    """A function of a pipeline that forks."""

    def __init__(self, make: Callable[[int], Sample]) -> None:
        self.make = make

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": self.make(int(sample["x"]))}


def run_pipeline(make: Callable[[int], Sample], *, threads: bool) -> None:
    for faults in (fl.FaultPolicy(), fl.FaultPolicy("skip")):
        pipeline = fl.arrays({"x": np.arange(SAMPLES)}).map(OfSamples(make), threads=threads)
        with pipeline.batch(4).loader(workers=2, faults=faults) as loader:
            seen = np.concatenate([batch["x"] for batch in loader])

        assert (seen == all_samples()).all()


@pytest.mark.parametrize("make", WAYS)
def test_a_child_of_a_function_of_a_pipeline_changes_no_batch(make: Callable[[int], Sample]) -> None:
    run_pipeline(make, threads=False)


def test_a_child_of_a_thread_of_a_pipeline_changes_no_batch(trainers: Trainers) -> None:
    """In a program of its own: a fork in a thread is known to disturb libraries that have threads."""
    program = f"""
    sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
    from faults import test_forks
    for make in (test_forks.child_exits, test_forks.child_raises, test_forks.both_return):
        test_forks.run_pipeline(make, threads=True)
    until = time.monotonic() + 100
    while any(thread.name.startswith("feedline") for thread in threading.enumerate()):
        assert time.monotonic() < until
    say("done")
    """

    assert trainers.answer(program) == "done"


def test_a_child_that_comes_back_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    list(DataLoader(Forking(both_return), batch_size=4, num_workers=1))

    assert (
        "forked inside worker 0, returned from the code that forked it and was ended"
        in capfd.readouterr().err
    )


def crash_in_child(index: int) -> Sample:
    if index == 5:
        child = os.fork()
        if child == 0:
            os.abort()
        assert wait_for(child) < 0
    if index == 6:
        os.kill(os.getpid(), 9)
    return sample_of(index)


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning")
def test_the_crash_of_a_child_is_no_part_of_the_workers_end() -> None:
    loader = DataLoader(Forking(crash_in_child), batch_size=4, num_workers=1, faults=fl.FaultPolicy("skip"))
    list(loader)

    assert loader.deaths
    assert all("abort" not in str(death.stack) for death in loader.deaths)
