"""Runs of the torch loader that are stopped and continued at random, also by SIGKILL, deliver what a run does
that was never stopped; and the frameworks save and load the loader's state."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import feedline as fl
import killed
import numpy as np
import pytest
import torch
from feedline.torch import DataLoader, StatefulDataLoader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::feedline.errors.FeedlineWarning"),
]


class Numbers(Dataset[Any]):
    def __init__(self, count: int, bad: frozenset[int]) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return torch.tensor([index, random.random(), np.random.random(), float(torch.rand(()))])


class Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(worker, self.count, workers)


EXAMPLES = int(os.environ.get("FEEDLINE_EXAMPLES", "25"))
WORKERS = st.sampled_from([0, 0, 0, 1, 2, 5])


@st.composite
def plans(draw: Any) -> dict[str, Any]:
    count = draw(st.integers(1, 40))
    stops = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=3))
    return {
        "count": count,
        "size": draw(st.integers(1, 7)),
        "kind": draw(st.sampled_from(["shuffled", "in order", "replacement", "iterable"])),
        "drop_last": draw(st.booleans()),
        "bad": draw(st.frozensets(st.integers(0, count - 1), max_size=count // 4)),
        "policy": draw(st.sampled_from(["skip", "replace", "smaller batches"])),
        "stops": sorted(stops),
        "workers": draw(st.lists(WORKERS, min_size=2, max_size=3)),
    }


def make(plan: dict[str, Any], workers: int) -> DataLoader[Any]:
    if plan["kind"] == "iterable":
        return StatefulDataLoader(
            Stream(plan["count"]),
            batch_size=plan["size"],
            num_workers=plan["workers"][0],
            drop_last=plan["drop_last"],
            snapshot_every_n_steps=3,
        )
    action = "replace" if plan["policy"] == "replace" else "skip"
    policy = fl.FaultPolicy(action=action, fill=plan["policy"] != "smaller batches", limit=None)  # type: ignore[arg-type]
    options: dict[str, Any] = {"num_workers": workers, "faults": policy, "seeding": "sample"}
    data = Numbers(plan["count"], plan["bad"])
    if plan["kind"] == "replacement":
        sampler = RandomSampler(data, replacement=True, num_samples=plan["count"])
        batches = BatchSampler(sampler, plan["size"], drop_last=plan["drop_last"])
        return DataLoader(data, batch_sampler=batches, **options)
    return DataLoader(
        data,
        batch_size=plan["size"],
        shuffle=plan["kind"] == "shuffled",
        drop_last=plan["drop_last"],
        **options,
    )


def whole_run(plan: dict[str, Any], epochs: int) -> list[list[Any]]:
    torch.manual_seed(5)
    loader = make(plan, plan["workers"][0])
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


def stopped_run(plan: dict[str, Any], epochs: int) -> list[list[Any]]:
    torch.manual_seed(5)
    loader = make(plan, plan["workers"][0])
    received: list[list[Any]] = [[] for _ in range(epochs)]
    epoch, stops = 0, list(plan["stops"])
    while epoch < epochs:
        is_stopped = False
        for batch in loader:
            if stops and stops[0] <= (epoch, len(received[epoch])):
                # The batch that the loop has just got is lost with the process.
                is_stopped = True
                break
            received[epoch].append(batch.tolist())
            state = loader.state_dict()
        if not is_stopped:
            state = loader.state_dict()
            epoch += 1
            if not stops or stops[0][0] >= epoch:
                continue
        elif not received[epoch] and epoch == 0:
            # Nothing was saved: the run begins anew.
            torch.manual_seed(5)
            stops.pop(0)
            loader = make(plan, plan["workers"][0])
            continue
        stops.pop(0)
        torch.manual_seed(len(stops) + 77)
        loader = make(plan, plan["workers"][len(stops) % len(plan["workers"])])
        loader.load_state_dict(json.loads(json.dumps(state)))
    return received


@given(plans())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@pytest.mark.timeout(600 + 10 * EXAMPLES)
def test_a_run_that_is_stopped_anywhere_delivers_the_same(plan: dict[str, Any]) -> None:
    assert stopped_run(plan, 3) == whole_run(plan, 3)


class Countdown:
    """Kills the process that makes a certain sample, counted in all processes from when it is set."""

    def __init__(self) -> None:
        self.left = multiprocessing.Value("i", 0)

    def step(self) -> None:
        with self.left.get_lock():
            self.left.value -= 1
            is_now = self.left.value == 0
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalNumbers(Numbers):
    def __init__(self, countdown: Countdown) -> None:
        super().__init__(60, frozenset())
        self.countdown = countdown

    def __getitem__(self, index: int) -> Any:
        self.countdown.step()
        return super().__getitem__(index)


class MortalStream(Stream):
    def __init__(self, countdown: Countdown) -> None:
        super().__init__(60)
        self.countdown = countdown

    def __iter__(self) -> Any:
        for number in super().__iter__():
            self.countdown.step()
            yield number


class StatefulMortalStream(MortalStream):
    at, resumed = 0, 0

    def __iter__(self) -> Any:
        self.at, self.resumed = self.resumed, 0
        for number in itertools.islice(Stream.__iter__(self), self.at, None):
            self.countdown.step()
            self.at += 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resumed = state["at"]


@pytest.mark.parametrize("samples", [3, 30])
@pytest.mark.parametrize("kind", [MortalNumbers, MortalStream, StatefulMortalStream])
def test_a_worker_that_is_killed_in_a_continued_epoch_changes_nothing(kind: Any, samples: int) -> None:
    is_map = kind is MortalNumbers

    def make(data: Any, seed: int = 5) -> DataLoader[Any]:
        torch.manual_seed(seed)
        seeding = "sample" if is_map else "worker"
        return DataLoader(data, batch_size=4, num_workers=2, shuffle=is_map, seeding=seeding)

    countdown = Countdown()
    loader = make(kind(countdown))
    whole = [batch.tolist() for batch in loader]
    batches = iter(loader := make(kind(countdown)))
    received = [next(batches).tolist() for _ in range(5)]
    state = loader.state_dict()
    del batches
    again = make(kind(countdown), seed=99)
    again.load_state_dict(state)
    countdown.left.value = samples
    received += [batch.tolist() for batch in again]
    assert [death.signal for death in again.deaths] == ["SIGKILL"]
    assert received == whole


TRAINER = """
import os, sys, time
import torch
from torch.utils.data import Dataset
from feedline.torch import DataLoader

class Slow(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.tensor([index, torch.rand(()).item()])

def make_loader(workers):
    # A trainer that goes on has other random numbers.
    torch.manual_seed(os.getpid() if os.path.exists(sys.argv[1] + "/saved.json") else 4)
    return DataLoader(Slow(), batch_size=3, shuffle=True, num_workers=workers, seeding="sample")

plain = torch.Tensor.tolist
"""


@pytest.mark.timeout(killed.TIMEOUT)
def test_a_trainer_that_is_killed_again_and_again_receives_the_same(tmp_path: Path) -> None:
    chance = killed.printed_chance()
    whole = killed.received(TRAINER, tmp_path / "whole", 0, 0, chance)
    assert killed.received(TRAINER, tmp_path / "killed", 1, killed.KILLS, chance) == whole
