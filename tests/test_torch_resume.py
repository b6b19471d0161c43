"""Runs of the torch loader that are stopped and continued at random, also by SIGKILL, deliver what a run does
that was never stopped; and the frameworks save and load the loader's state."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import feedline as fl
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
    max_examples=int(os.environ.get("FEEDLINE_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@pytest.mark.timeout(600)
def test_a_run_that_is_stopped_anywhere_delivers_the_same(plan: dict[str, Any]) -> None:
    assert stopped_run(plan, 3) == whole_run(plan, 3)


TRAINER = """
import json, os, sys, time
import torch
from torch.utils.data import Dataset
from feedline.torch import DataLoader

class Slow(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.tensor([index, torch.rand(()).item()])

def main(folder, workers):
    torch.manual_seed(4)
    loader = DataLoader(Slow(), batch_size=3, shuffle=True, num_workers=workers, seeding="sample")
    saved = os.path.join(folder, "saved.json")
    received, epoch = [], 0
    if os.path.exists(saved):
        with open(saved) as file:
            state, received, epoch = json.load(file)
        loader.load_state_dict(state)
    while epoch < 2:
        for batch in loader:
            received.append([epoch, batch.tolist()])
            with open(saved + ".new", "w") as file:
                json.dump([loader.state_dict(), received, epoch], file)
            os.replace(saved + ".new", saved)
        epoch += 1
        with open(saved + ".new", "w") as file:
            json.dump([loader.state_dict(), received, epoch], file)
        os.replace(saved + ".new", saved)

main(sys.argv[1], int(sys.argv[2]))
"""


def trained(folder: Path, workers: int, kills: int, chance: random.Random) -> list[Any]:
    """What a trainer has received that is killed so often while it runs."""
    program = folder / "trainer.py"
    program.write_text(TRAINER)
    saved = folder / "saved.json"
    command = [sys.executable, str(program), str(folder), str(workers)]
    for _ in range(kills):
        before = saved.read_bytes() if saved.exists() else b""
        process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + 120
        # It has begun, and gone on: then it may be killed at any moment.
        while process.poll() is None and time.monotonic() < deadline:
            if saved.exists() and saved.read_bytes() != before:
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    subprocess.run(command, check=True, timeout=240)
    received: list[Any] = json.loads(saved.read_text())[1]
    return received


@pytest.mark.timeout(900)
def test_a_trainer_that_is_killed_again_and_again_receives_the_same(tmp_path: Path) -> None:
    seed = int(os.environ.get("FEEDLINE_SEED", "0")) or random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = trained(tmp_path / "whole", 0, 0, chance)
    kills = int(os.environ.get("FEEDLINE_KILLS", "4"))
    assert trained(tmp_path / "killed", 1, kills, chance) == whole
