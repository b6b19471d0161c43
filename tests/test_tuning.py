"""Another number of workers while a pipeline with functions runs: events, and the same batches."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import feedline as fl
import numpy as np
import pytest
from faults.remains import eventually
from feedline import Event
from feedline._mapped.loader import MappedLoader
from feedline._workers.worker_count import tuned_workers

pytestmark = pytest.mark.timeout(300)
COUNT = 400


def make(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    time.sleep(0.001)
    return {"x": sample["x"], "drawn": random.random(), "pid": os.getpid()}


def loader(**settings: Any) -> MappedLoader:
    made = fl.arrays({"x": np.arange(COUNT)}).shuffle(seed=3).map(make).batch(4).loader(**settings)
    assert isinstance(made, MappedLoader)
    return made


def content(batches: list[Any]) -> list[list[float]]:
    return [[*batch["x"].tolist(), *batch["drawn"].tolist()] for batch in batches]


def running(tuned: MappedLoader) -> int:
    return sum(worker.is_ready() for worker in tuned.workers)


def test_the_first_number_and_the_most_come_from_processors_and_memory() -> None:
    gibibyte = 1 << 30
    assert tuned_workers(2, 64 * gibibyte) == (2, 16)
    assert tuned_workers(8, 64 * gibibyte) == (8, 32)
    assert tuned_workers(128, 512 * gibibyte) == (128, 128)
    # Memory for three.
    assert tuned_workers(8, 3 * gibibyte // 2) == (3, 3)
    assert tuned_workers(8, 0) == (1, 1)


def apply(tuning: Any, tuned: Any, count: int) -> None:
    """Has another number of workers run, as if the tuner had decided that."""
    change: Any = SimpleNamespace(workers=count, reason="a test", ends_others=False)
    tuning._apply(change, tuned._backend._worker_pool, tuned._backend._reports)


def test_batches_are_the_same_while_the_number_of_workers_changes() -> None:
    with loader(workers=2) as fixed:
        expected = content(list(fixed))
    events: list[Event] = []
    with loader(on_event=events.append) as tuned:
        tuning = tuned._tuning
        assert tuning is not None
        most = tuning.most
        if most < 4:
            pytest.skip("too little memory for four workers")
        # What was decided does not matter here, but that it is done.
        numbers = [most, 1, 3, most, 2]
        batches = []
        for batch in tuned:
            batches.append(batch)
            if len(batches) % 15 == 0 and numbers:
                count = numbers.pop(0)
                apply(tuning, tuned, count)
                # Those that are not needed end, and the others start, while the epoch goes on.
                assert eventually(lambda count=count: running(tuned) == count)  # type: ignore[misc]
        assert tuned.deaths == []
    assert numbers == []
    assert content(batches) == expected
    names = [event.name.removeprefix("workers_") for event in events if "a test" in event.text]
    assert names == ["increased", "reduced", "increased", "increased", "reduced"]
    assert len({pid for batch in batches for pid in batch["pid"].tolist()}) >= most


def test_a_worker_that_dies_after_a_change_is_replaced() -> None:
    with loader() as tuned:
        tuning = tuned._tuning
        assert tuning is not None
        iterator = iter(tuned)
        next(iterator)
        apply(tuning, tuned, tuning.most)
        assert eventually(lambda: running(tuned) == tuning.most)
        last = tuned.workers[tuning.most - 1]
        pid = last.pid
        last.kill()
        with pytest.warns(fl.errors.WorkerDiedWarning):
            rest = list(iterator)
        assert len(rest) == COUNT // 4 - 1
        assert [death.pid for death in tuned.deaths] == [pid]


def test_a_number_that_was_given_is_not_changed() -> None:
    with loader(workers=3) as fixed:
        assert len(list(fixed)) == COUNT // 4
        assert fixed._tuning is None
        assert (len(fixed.workers), running(fixed)) == (3, 3)
