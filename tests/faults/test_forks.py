"""User code forks inside a worker: the child never acts as the worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import feedline as fl
import numpy as np
import pytest
import torch
from feedline.torch import DataLoader

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
    has_executor,
    has_pool,
    sample_of,
    wait_for,
)
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("make", WAYS)
def test_a_child_forked_in_a_torch_worker_changes_no_batch(make: Callable[[int], Sample]) -> None:
    for name, policy in POLICIES.items():
        for dataset in (Forking(make), ForkingBatches(make)):
            loader = DataLoader(dataset, batch_size=4, num_workers=2, faults=policy)
            seen = torch.cat(list(loader)).numpy()
            assert (seen == all_samples()).all(), name
            assert loader.deaths == []


@pytest.mark.parametrize("make", [has_executor, has_pool])
def test_a_pool_inside_a_worker_changes_no_batch(make: Callable[[int], Sample]) -> None:
    loader = DataLoader(Forking(make), batch_size=4, num_workers=2)

    assert (torch.cat(list(loader)).numpy() == all_samples()).all()


@pytest.mark.parametrize("make", WAYS)
def test_a_child_forked_in_a_pool_worker_sends_no_result(make: Callable[[int], Sample]) -> None:
    for policy in POLICIES.values():
        with fl.Executor(2, faults=policy) as pool:
            seen = list(pool.map(make, range(SAMPLES), chunksize=3))

        assert (np.stack(seen) == all_samples()).all()


def run_pipeline(make: Callable[[int], Sample], *, threads: bool) -> None:
    for faults in (fl.FaultPolicy(), fl.FaultPolicy("skip")):
        pipeline = fl.arrays({"x": np.arange(SAMPLES)}).map(OfSamples(make), threads=threads)
        with pipeline.batch(4).loader(workers=2, faults=faults) as loader:
            seen = np.concatenate([batch["x"] for batch in loader])

        assert (seen == all_samples()).all()


@pytest.mark.parametrize("make", WAYS)
def test_a_child_forked_in_a_pipeline_function_changes_no_batch(make: Callable[[int], Sample]) -> None:
    run_pipeline(make, threads=False)


def test_a_child_forked_in_a_pipeline_thread_changes_no_batch(trainers: Trainers) -> None:
    """Runs in its own process: a fork in a thread disturbs libraries that have threads."""
    program = f"""
    sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
    from faults import forks, test_forks
    for make in (forks.child_exits, forks.child_raises, forks.both_return):
        test_forks.run_pipeline(make, threads=True)
    until = time.monotonic() + 100
    while any(thread.name.startswith("feedline") for thread in threading.enumerate()):
        assert time.monotonic() < until
    say("done")
    """

    assert trainers.answer(program) == "done"


def test_a_child_that_returns_is_ended_with_a_message(capfd: pytest.CaptureFixture[str]) -> None:
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
def test_the_crash_of_a_child_is_not_in_the_certificate_of_its_worker() -> None:
    loader = DataLoader(Forking(crash_in_child), batch_size=4, num_workers=1, faults=fl.FaultPolicy("skip"))
    list(loader)

    assert loader.deaths
    assert all("abort" not in str(death.stack) for death in loader.deaths)
