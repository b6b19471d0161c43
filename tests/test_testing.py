"""feedline.testing: faults on purpose, and checks that must hold despite them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
from feedline.errors import InvalidArgumentError
from feedline.testing import Chaos, ChaosError, assert_accounted, assert_same_batches, chaos
from feedline.torch import DataLoader
from pictures import encoded, photo, write


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def double(number: int) -> int:
    return 2 * number


def test_the_same_seed_makes_the_same_faults_at_about_the_rate() -> None:
    struck = Chaos(seed=3, eio=0.1).victims("eio", range(10_000))

    assert struck == Chaos(seed=3, eio=0.1).victims("eio", range(10_000))
    assert struck != Chaos(seed=4, eio=0.1).victims("eio", range(10_000))
    assert 800 < len(struck) < 1200
    assert Chaos(seed=3).victims("eio", range(100)) == []


@pytest.mark.parametrize("rate", [-0.1, 1.5, "often", True])
def test_an_invalid_rate_is_refused_with_its_value(rate: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=str(rate)):
        chaos(Numbers(), kill=rate)


def test_chaos_refuses_unsupported_objects() -> None:
    with pytest.raises(InvalidArgumentError, match="7"):
        chaos(7, kill=0.5)


def test_chaos_leaves_the_loader_unchanged_and_returns_a_faulty_copy() -> None:
    loader = DataLoader(Numbers(), batch_size=4, faults=fl.FaultPolicy("skip"))
    chaotic = chaos(loader, seed=1, raise_=0.2)

    report = assert_accounted(chaotic)

    assert report.skipped == len(Chaos(seed=1, raise_=0.2).victims("raise_", range(60))) > 0
    assert assert_accounted(loader).skipped == 0


@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning")
def test_workers_that_chaos_kills_lose_nothing() -> None:
    loader = chaos(DataLoader(Numbers(), batch_size=4, num_workers=2, max_deaths=100), seed=2, kill=0.05)

    report = assert_accounted(loader)

    assert report.delivered == 60
    assert sum(report.workers_lost.values()) == len(Chaos(seed=2, kill=0.05).victims("kill", range(60))) > 0


def test_a_data_set_and_a_function_can_have_faults_too() -> None:
    bad = Chaos(seed=5, raise_=0.1).victims("raise_", range(60))
    chaotic = chaos(Numbers(), seed=5, raise_=0.1)
    with pytest.raises(ChaosError, match=f"sample {bad[0]}"):
        chaotic[bad[0]]

    with fl.Executor(2, faults=fl.FaultPolicy("skip")) as pool:
        results = list(pool.map(chaos(double, seed=5, raise_=0.1), range(60)))
    good = [result for result in results if not isinstance(result, fl.Skipped)]
    assert good == [2 * number for number in range(60) if number not in bad]


def test_a_native_pipeline_can_have_faults_too(tmp_path: Path) -> None:
    paths = write(tmp_path, {f"{number:02}.png": encoded(photo(number, 8, 8), "PNG") for number in range(40)})
    pipeline = fl.files(paths).decode().batch(4)
    loader = chaos(pipeline, seed=1, eio=0.2).loader(faults=fl.FaultPolicy("skip", retry=20, backoff=0.001))

    report = assert_accounted(loader)

    assert (report.delivered, report.skipped) == (40, 0)
    assert report.retried > 0


class Loses:
    """A loader whose report lacks samples."""

    def __init__(self) -> None:
        self._loader = DataLoader(Numbers(), batch_size=4)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._loader)[:1])

    def report(self) -> Any:
        report = self._loader.report()
        return type(report)(**{**report.__dict__, "delivered": report.delivered // 2})


def test_a_lost_sample_is_noticed() -> None:
    with pytest.raises(AssertionError, match="30 samples were delivered and 0 skipped, but 60 were expected"):
        assert_accounted(Loses())


def test_batches_that_depend_on_the_workers_are_noticed() -> None:
    def make(workers: int) -> DataLoader[torch.Tensor]:
        return DataLoader(Numbers(), batch_size=4, num_workers=workers)

    assert_same_batches(make, workers=[0, 1, 2])
    with pytest.raises(AssertionError, match="batch 3 with 0 workers and with 2 differ"):
        assert_same_batches(
            lambda workers: [torch.tensor(n if n != 3 else workers) for n in range(6)], [0, 2]
        )
    with pytest.raises(AssertionError, match="2 batches with 2 workers, 3 with 3"):
        assert_same_batches(lambda workers: [1] * workers, [2, 3])
