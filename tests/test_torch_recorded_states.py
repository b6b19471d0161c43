"""States of torch loaders that were recorded with each version of their format still lead to the batches that
followed them.

`FEEDLINE_RECORD=1` records those of the present version that are missing; files that exist are not changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
from feedline.errors import StateMismatchError
from feedline.torch import DataLoader, StatefulDataLoader
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

GOLDEN = Path(__file__).parent / "golden" / "states" / "torch"
VERSION = 1

pytestmark = pytest.mark.filterwarnings("ignore::feedline.errors.FeedlineWarning")


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise ValueError("a bad sample")
        return index


class Good(Numbers):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(30))


class Counting(Stream):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < 30:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def ranked() -> DataLoader[Any]:
    sampler: Any = DistributedSampler(Good(), num_replicas=2, rank=1, seed=3)
    return DataLoader(Good(), batch_size=4, sampler=sampler)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in_order": lambda: DataLoader(Good(), batch_size=4),
    "shuffled": lambda: DataLoader(Good(), batch_size=4, shuffle=True, drop_last=True),
    "skipping": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, faults=fl.FaultPolicy("skip")),
    "replacing": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, faults=fl.FaultPolicy("replace")),
    "ranked": ranked,
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "stateful": lambda: StatefulDataLoader(Counting(), batch_size=4),
    "seeded": lambda: DataLoader(Good(), batch_size=4, shuffle=True, seeding="sample"),
}


def record(name: str) -> dict[str, Any]:
    torch.manual_seed(11)
    loader = LOADERS[name]()
    list(loader)
    running = iter(loader)
    for _ in range(3):
        next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batch.tolist() for batch in running]
    return {"state": state, "batches": [rest, [batch.tolist() for batch in loader]]}


@pytest.mark.parametrize("name", LOADERS)
def test_recorded_states_of_every_version_still_lead_to_their_batches(name: str) -> None:
    newest = GOLDEN / f"{name}-{VERSION}.json"
    if os.environ.get("FEEDLINE_RECORD") and not newest.exists():
        newest.parent.mkdir(parents=True, exist_ok=True)
        newest.write_text(json.dumps(record(name)) + "\n")
    found = sorted(GOLDEN.glob(f"{name}-*.json"))
    assert newest in found
    for file in found:
        recorded = json.loads(file.read_text())
        torch.manual_seed(12)
        loader = LOADERS[name]()
        loader.load_state_dict(recorded["state"])
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == recorded["batches"]


def test_states_of_a_newer_version_are_refused_with_their_version() -> None:
    state = json.loads((GOLDEN / f"shuffled-{VERSION}.json").read_text())["state"]
    with pytest.raises(StateMismatchError, match=f"version 99, this Feedline reads version {VERSION}"):
        LOADERS["shuffled"]().load_state_dict({**state, "version": 99})
