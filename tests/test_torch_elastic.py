"""A state of N ranks continues with M ranks: the rest of the epoch is divided among them."""

from __future__ import annotations

import json
import random
from typing import Any

import feedline as fl
import pytest
from feedline.errors import StateMismatchError
from feedline.torch import DataLoader
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler


class Numbers(Dataset[int]):
    def __init__(self, count: int, bad: frozenset[int] = frozenset()) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return index


def make(world: int, rank: int, count: int, size: int, **settings: Any) -> DataLoader[Any]:
    data = settings.pop("data", None) or Numbers(count)
    drop_last = settings.pop("drop_last", False)
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=world, rank=rank, seed=7, drop_last=drop_last
    )
    return DataLoader(data, batch_size=size, sampler=sampler, **settings)


def ranks_of(world: int, state: Any, count: int, size: int, **settings: Any) -> list[DataLoader[Any]]:
    loaders = [make(world, rank, count, size, **settings) for rank in range(world)]
    for loader in loaders:
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(2)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    return loaders


def taken(loaders: list[DataLoader[Any]], batches: int) -> tuple[list[list[int]], Any]:
    """What each rank gets in a number of batches, and the state of one of them."""
    received, states = [], []
    for loader in loaders:
        iterator = iter(loader)
        received.append([int(index) for _ in range(batches) for index in next(iterator)])
        states.append(loader.state_dict())
    return received, random.Random(1).choice(states)


@pytest.mark.parametrize("seed", range(12))
def test_no_sample_is_lost_or_repeated_but_to_make_ranks_even(seed: int) -> None:
    chance = random.Random(seed)
    print("seed", seed)
    count, size = chance.randint(60, 100), chance.randint(1, 4)
    worlds = [chance.choice([1, 2, 3, 4, 8]) for _ in range(4)]
    state, done, whole = None, 0, list(ranks_of(1, None, count, 1)[0].sampler)
    for number, world in enumerate(worlds):
        loaders = ranks_of(world, state, count, size)
        if number < len(worlds) - 1:
            batches = min(2, (count - done) // (world * size))
            received, state = taken(loaders, batches)
            expected = whole[done : done + batches * size * world]
            assert sorted(index for rank in received for index in rank) == sorted(expected)
            # In the order of the whole run: positions go round the ranks.
            assert [rank[at] for at in range(batches * size) for rank in received] == expected
            done += batches * size * world
            continue
        rests = [[int(index) for batch in loader for index in batch] for loader in loaders]
        assert len({len(rest) for rest in rests}) == 1
        order = [rest[at] for at in range(len(rests[0])) for rest in rests]
        assert order[: count - done] == whole[done:]
        assert order[count - done :] == whole[: len(order) - (count - done)]


def test_two_ranks_become_one_and_then_four() -> None:
    two, state = taken(ranks_of(2, None, 96, 4), 5)
    one, state = taken(ranks_of(1, state, 96, 4), 3)
    four = [[int(index) for batch in loader for index in batch] for loader in ranks_of(4, state, 96, 4)]
    assert sorted(index for rank in (*two, *one, *four) for index in rank) == list(range(96))


def test_the_next_epoch_is_that_of_the_new_world() -> None:
    _, state = taken(ranks_of(3, None, 50, 4), 2)
    loaders = ranks_of(2, state, 50, 4)
    for loader, fresh in zip(loaders, ranks_of(2, None, 50, 4), strict=True):
        list(loader)
        for one in (loader, fresh):
            assert isinstance(one.sampler, DistributedSampler)
            one.sampler.set_epoch(3)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in fresh]


def test_between_epochs_any_world_continues() -> None:
    loaders = ranks_of(3, None, 50, 4)
    for loader in loaders:
        list(loader)
    state = loaders[0].state_dict()
    for loader, fresh in zip(ranks_of(2, state, 50, 4), ranks_of(2, None, 50, 4), strict=True):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in fresh]


@pytest.mark.filterwarnings("ignore::feedline.errors.FeedlineWarning")
def test_what_is_not_elastic_says_so_when_the_state_is_made() -> None:
    bad = frozenset(range(0, 50, 3))
    policy = fl.FaultPolicy(action="skip", limit=None)
    settings = {"data": Numbers(50, bad), "faults": policy}
    _, state = taken(ranks_of(2, None, 50, 4, **settings), 2)
    assert "skipped samples" in state["not_elastic"]
    with pytest.raises(StateMismatchError, match=r"rank . of 2, this is rank 0 of 3"):
        ranks_of(3, state, 50, 4, data=Numbers(50, bad), faults=policy)
    _, state = taken(ranks_of(2, None, 50, 4), 2)
    assert "not_elastic" not in state
