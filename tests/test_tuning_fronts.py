"""Another number of workers while a torch loader or an Executor runs: events, and the same results."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from faults.remains import eventually
from feedline import Event
from feedline._workers.tuning import Tuning
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

pytestmark = [
    pytest.mark.timeout(300),
    # Of more workers than processors, which a user of "auto" does not ask for.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
IDS = 6


class Decided:
    """A tuner that decides what the test says, one number after the other, at each measurement."""

    def __init__(self, *changes: tuple[int, bool]) -> None:
        self.changes = list(changes)
        self.measured: list[tuple[int, float]] = []

    def measure(self, seconds: float, results: int, waited: float) -> fl._native.TuningChange | None:
        self.measured.append((results, waited / seconds))
        if not self.changes:
            return None
        count, ends_others = self.changes.pop(0)
        return fl._native.TuningChange(count, "a test", ends_others)


@pytest.fixture(autouse=True)
def measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline._workers.tuning._INTERVAL", 0.0)


class Drawn(Dataset[Any]):
    """Samples that show their worker, and the random numbers that it has; how many are made at once is in a
    folder: a file for each."""

    def __init__(self, folder: Path | None = None, count: int = 160, seconds: float = 0.002) -> None:
        self.folder, self.count, self.seconds = folder, count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        at_once = 0
        if self.folder is not None:
            mark = self.folder / str(info.id)
            mark.touch()
            at_once = len(list(self.folder.iterdir()))
            time.sleep(self.seconds)
            mark.unlink()
        drawn = [float(torch.rand(())), float(np.random.default_rng(info.seed).random())]
        return torch.tensor([index, info.id, info.num_workers, *drawn, at_once], dtype=torch.float64)


class Marked(Dataset[Any]):
    """Samples that leave a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        (self.folder / str(index)).touch()
        return index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        for number in range(30 + info.id):
            yield torch.tensor([number, info.id, float(torch.rand(()))])


def auto(dataset: Any, tuner: Decided, first: int, ids: int = IDS, **settings: Any) -> DataLoader[Any]:
    """A loader with `num_workers="auto"` on a machine for which that means `ids`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedline.torch.loader_workers", lambda: (first, ids))
        loader = DataLoader(dataset, num_workers="auto", **settings)
    tuning = loader._loader_state.tuning
    assert tuning is not None
    tuning._tuner = tuner
    return loader


def same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


CHANGES = [(IDS, False), (1, False), (3, False), (2, True), (IDS, False)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_are_those_of_a_fixed_number_while_the_number_changes(method: str, persistent: bool) -> None:
    settings: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "multiprocessing_context": method,
        "persistent_workers": persistent,
    }
    tuner = Decided()
    events: list[Event] = []
    tuned = auto(Drawn(), tuner, 2, on_event=events.append, **settings)
    fixed = DataLoader(Drawn(), num_workers=IDS, **settings)
    for epoch in range(2):
        torch.manual_seed(epoch)
        expected = list(fixed)
        torch.manual_seed(epoch)
        tuner.changes = list(CHANGES)
        # Whether a shortage is warned of depends on whether it is over before all workers have started.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fl.errors.ResourceShortageWarning)
            batches = list(tuned)
        assert same(batches, expected)
    assert tuner.changes == []
    assert tuned.deaths == []
    shown = [event.details["workers"] for event in events if "a test" in event.text]
    assert shown == [count for count, _ in CHANGES * 2]
    assert events[0].name == "workers_chosen"
    assert events[0].details["of"] == IDS
    # The report has each change, too.
    assert sum("a test" in note for note in tuned.report().notes) == len(CHANGES) * 2


@pytest.mark.parametrize("in_order", [True, False])
def test_a_stream_is_the_same_while_the_number_changes(in_order: bool) -> None:
    def samples(loader: Any) -> list[Any]:
        found = list(loader)
        return found if in_order else sorted(found, key=lambda sample: sample[:2].tolist())

    torch.manual_seed(1)
    expected = samples(DataLoader(Stream(), batch_size=None, num_workers=IDS, in_order=in_order))
    torch.manual_seed(1)
    tuner = Decided((IDS, False), (1, False), (4, False))
    tuned = auto(Stream(), tuner, 2, batch_size=None, in_order=in_order)
    assert same(samples(tuned), expected)
    assert tuner.changes == []


@pytest.mark.parametrize("at_once", [1, 3])
def test_only_as_many_workers_compute_as_run_at_once(tmp_path: Path, at_once: int) -> None:
    loader = auto(Drawn(tmp_path), Decided(), at_once, batch_size=2)
    batches = torch.cat(list(loader))
    assert batches[:, 5].max() <= at_once
    # All ids have batches, each from its own process.
    assert set(batches[:, 1].tolist()) == set(range(IDS))


def test_without_a_limit_more_workers_compute_at_once(tmp_path: Path) -> None:
    """So that the test above can fail."""
    loader = auto(Drawn(tmp_path, seconds=0.02), Decided(), IDS, batch_size=2)
    assert torch.cat(list(loader))[:, 5].max() > 3


def test_processes_stay_while_fewer_compute_and_end_if_memory_is_short() -> None:
    def alive() -> int:
        return sum(worker.is_ready() for worker in iterator._workers)

    tuner = Decided((1, False))
    loader = auto(Drawn(count=100_000), tuner, 3, batch_size=2)
    iterator: Any = iter(loader)
    assert eventually(lambda: alive() == IDS)
    while tuner.changes:
        next(iterator)
    for _ in range(50):
        next(iterator)
    assert alive() == IDS
    tuner.changes.append((2, True))
    with pytest.warns(fl.errors.ResourceShortageWarning, match="2 of 6 workers run at once: memory is short"):
        assert eventually(lambda: next(iterator) is not None and not tuner.changes and alive() <= 2)
    # The order is kept by workers that take turns.
    numbers = [int(next(iterator)[0, 0]) for _ in range(20)]
    assert numbers == list(range(numbers[0], numbers[0] + 40, 2))
    iterator._shutdown_workers()


def test_workers_pass_the_turn_while_the_consumer_does_something_else(tmp_path: Path) -> None:
    loader = auto(Marked(tmp_path), Decided(), 1, batch_size=1)
    iterator = iter(loader)
    next(iterator)
    # Two for each worker are ordered ahead, and nobody asks for them.
    assert eventually(lambda: len(list(tmp_path.iterdir())) >= 2 * IDS)
    assert len(list(iterator)) == 99


def test_a_worker_that_dies_while_others_wait_for_their_turn_is_replaced() -> None:
    torch.manual_seed(2)
    expected = list(DataLoader(Drawn(), batch_size=4, num_workers=IDS))
    torch.manual_seed(2)
    loader = auto(Drawn(), Decided(), 2, batch_size=4)
    iterator: Any = iter(loader)
    batches = [next(iterator)]
    iterator._workers[3].kill()
    with pytest.warns(fl.errors.WorkerDiedWarning):
        batches += list(iterator)
    assert same(batches, expected)
    assert [death.worker for death in loader.deaths] == [3]


def test_a_tuned_loader_keeps_its_number_when_it_is_pickled() -> None:
    loader = auto(Drawn(), Decided(), 2, batch_size=4)
    tuning = loader._loader_state.tuning
    assert tuning is not None
    again = pickle.loads(pickle.dumps(tuning))
    assert (again.running, again.most, again._has_fixed_ids) == (2, IDS, True)


def test_the_next_epoch_begins_with_the_number_of_the_last() -> None:
    tuner = Decided((5, False))
    loader = auto(Drawn(), tuner, 2, batch_size=4)
    assert len(list(loader)) == 40
    tuning = loader._loader_state.tuning
    assert tuning is not None
    assert tuning.running == 5


# ---- the Executor ----


def nap(number: int) -> int:
    time.sleep(0.01)
    return number


def executor(tuner: Decided, first: int, most: int = IDS, **settings: Any) -> fl.Executor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedline.executor.tuned_workers", lambda: (first, most))
        pool = fl.Executor(**settings)
    tuning = pool._pool._tuning
    assert tuning is not None
    tuning._tuner = tuner
    return pool


def test_an_executor_runs_more_and_fewer_workers_and_makes_each_call_once() -> None:
    tuner, events = Decided(*[(count, False) for count in (IDS, 1, 4)]), list[Event]()
    with executor(tuner, 2, on_event=events.append) as pool:
        results = list(pool.map(nap, range(300)))
        assert eventually(lambda: sum(worker.is_ready() for worker in pool.workers) == 4)
        notes = pool.report().notes
    assert results == list(range(300))
    assert pool.deaths == []
    names = [event.name for event in events if "a test" in event.text]
    assert names == ["workers_increased", "workers_reduced", "workers_increased"]
    assert sum("a test" in note for note in notes) == 3


def test_the_consumer_of_an_executor_waits_if_calls_are_queued() -> None:
    tuner = Decided()
    with executor(tuner, 2) as pool:
        list(pool.map(nap, range(60)))
    queued = [waited for _, waited in tuner.measured]
    assert sum(results for results, _ in tuner.measured) >= 59
    assert max(queued) >= 0.99
    tuner = Decided()
    with executor(tuner, 2) as pool:
        # One call at a time: no call waits for a worker.
        for number in range(10):
            pool.submit(nap, number).result()
    assert {waited for _, waited in tuner.measured} == {0.0}


def test_few_calls_are_given_away_so_that_the_others_can_be_cancelled(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with executor(Decided(), 1) as pool:
        futures = [pool.submit(wait_for, str(go)) for _ in range(20)]
        assert eventually(lambda: futures[0].running())
        # Two for each worker that runs.
        assert sum(future.cancel() for future in futures) == 18
        go.touch()
        assert [future.result() for future in futures[:2]] == [True, True]


def wait_for(path: str) -> bool:
    return eventually(Path(path).exists)


def test_results_are_made_ahead_for_the_workers_that_run() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1_000):
            taken.append(number)
            yield number

    tuner = Decided()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feedline.executor.tuned_workers", lambda: (2, IDS))
        results = fl.map(nap, numbers())
    tuning = results._pool._pool._tuning
    assert tuning is not None
    tuning._tuner = tuner
    with results:
        next(results)
        assert len(taken) == 9
        tuner.changes.append((IDS, False))
        while tuner.changes:
            next(results)
        before = len(taken)
        next(results)
        assert len(taken) >= before + 1
        assert len(results._futures) == 4 * IDS


# ---- the tuner itself, in real runs ----


def sleeper(_: Any) -> int:
    time.sleep(0.05)
    return os.getpid()


class Sleepy(Dataset[Any]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        return sleeper(index)


def torch_front(events: list[Event]) -> Iterator[Any]:
    yield from DataLoader(Sleepy(), batch_size=2, num_workers="auto", on_event=events.append)


def executor_front(events: list[Event]) -> Iterator[Any]:
    with fl.Executor(on_event=events.append) as pool:
        yield from pool.map(sleeper, range(100_000), buffersize=200)


def map_front(events: list[Event]) -> Iterator[Any]:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        sleeper(sample)
        return sample

    pipeline = fl.arrays({"x": np.arange(100_000)}).map(function).batch(2)
    with pipeline.loader(on_event=events.append) as loader:
        yield from loader


@pytest.mark.parametrize("front", [torch_front, executor_front, map_front])
def test_work_that_only_waits_gets_more_workers(
    front: Callable[[list[Event]], Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real tuner; what others do on this machine is not to decide."""
    real = Tuning.__init__

    def idle(tuning: Tuning, *arguments: Any, **named: Any) -> None:
        real(tuning, *arguments, **named)
        tuning._tuner = IdleMachine(*arguments[:2])

    monkeypatch.setattr(Tuning, "__init__", idle)
    events: list[Event] = []
    iterator = front(events)
    until = time.monotonic() + 120
    while time.monotonic() < until and not any(event.name == "workers_increased" for event in events):
        next(iterator)
    increased = next(event for event in events if event.name == "workers_increased")
    assert increased.details["workers"] > events[0].details["workers"]
    assert "the consumer waits, and processors are idle" in increased.text
    del iterator


class IdleMachine:
    """The real tuner, on a machine whose processors are idle and whose memory is not short."""

    def __init__(self, first: int, most: int) -> None:
        self._tuner = fl._native.Tuner(first, most)

    def measure(self, seconds: float, results: int, waited: float) -> fl._native.TuningChange | None:
        return self._tuner.measure(seconds, results, waited, (fl._native.processors(), False, False))
