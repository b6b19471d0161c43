"""seeding="sample": random transforms draw the same numbers whatever process makes a sample, and whenever."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline.errors import FeedlineWarning, InvalidArgumentError
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset, default_collate

# torch warns of more workers than the machine has processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def draws() -> list[float]:
    normal = [random.gauss(0, 1), np.random.standard_normal(), float(torch.randn(()))]
    return [random.random(), np.random.random(), float(torch.rand(())), *normal]


class Random(Dataset[Any]):
    """Samples of random numbers. It draws more of them for some samples, fails the first time for one, and
    kills its process for another."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 23

    def _is_first(self, index: int) -> bool:
        if self.folder is None:
            return False
        path = self.folder / str(index)
        is_first = not path.exists()
        path.touch()
        return is_first

    def __getitem__(self, index: int) -> Any:
        numbers = [index, *draws()]
        for _ in range(index % 3):
            draws()
        if index == 7 and self._is_first(index):
            raise OSError("the first time it fails")
        if index == 11 and torch.utils.data.get_worker_info() is not None and self._is_first(index):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(numbers, dtype=torch.float64)


def noisy(samples: list[Any]) -> Any:
    return default_collate(samples), torch.tensor(draws())


def make(workers: int, dataset: Random | None = None, **settings: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    return DataLoader(
        dataset or Random(),
        batch_size=4,
        shuffle=True,
        num_workers=workers,
        seeding="sample",
        collate_fn=noisy,
        **settings,
    )


def batches(loader: Any, epochs: int = 2) -> list[list[Any]]:
    return [[[part.tolist() for part in batch] for batch in loader] for _ in range(epochs)]


def test_batches_are_the_same_with_any_number_of_workers() -> None:
    alone = batches(make(0))
    assert alone[0] != alone[1]
    numbers = {number for batch in alone[0] for sample in batch[0] for number in sample[1:]}
    assert len(numbers) == 23 * 6
    for workers in (1, 2):
        assert batches(make(workers)) == alone


def test_a_sample_that_is_retried_and_one_that_kills_its_worker_draw_the_same(tmp_path: Path) -> None:
    alone = batches(make(0))
    policy = fl.FaultPolicy(action="raise", retry=2)
    with pytest.warns(FeedlineWarning, match="sample 11"):
        assert batches(make(2, Random(tmp_path), faults=policy, persistent_workers=False)) == alone


def test_a_run_that_is_continued_draws_the_same() -> None:
    alone = batches(make(0))
    loader = make(2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    other = make(0)
    torch.manual_seed(99)
    other.load_state_dict(state)
    assert batches(other) == [alone[0][3:], alone[1]]


def test_a_run_that_goes_on_with_2_8_and_no_workers_draws_the_same() -> None:
    alone = batches(make(0), 1)[0]
    received: list[Any] = []
    state: dict[str, Any] | None = None
    for workers, stop in ((2, 1), (8, 3), (0, 6)):
        loader = make(workers)
        if state is not None:
            torch.manual_seed(99)
            loader.load_state_dict(state)
        for batch in loader:
            received.append([part.tolist() for part in batch])
            state = loader.state_dict()
            if len(received) == stop:
                break
    assert received == alone


def test_persistent_workers_draw_others_in_each_epoch() -> None:
    loader = make(1, persistent_workers=True)
    first, second = batches(loader)
    assert sorted(sample for batch in first for sample in batch[0]) != sorted(
        sample for batch in second for sample in batch[0]
    )
    state = loader.state_dict()
    third = batches(loader, 1)[0]
    again = make(1, persistent_workers=True)
    again.load_state_dict(state)
    assert batches(again, 1)[0] == third


def test_the_trainers_own_random_numbers_do_not_depend_on_samples() -> None:
    class Still(Random):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index])

    def train(loader: Any) -> list[list[float]]:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        # Each keeps the second of a pair of normal numbers.
        iterator, drawn = iter(loader), [draws()]
        for _ in range(4):
            next(iterator)
            drawn.append(draws())
        return drawn

    still: Any = DataLoader(Still(), batch_size=4, shuffle=True)
    assert train(make(0)) == train(still)


def test_what_has_no_index_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(InvalidArgumentError, match="seeds by index"):
        DataLoader(Stream(), seeding="sample")
    with pytest.raises(InvalidArgumentError, match='"worker" or "sample"'):
        DataLoader(Random(), seeding="batch")
