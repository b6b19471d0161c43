"""Shared multiprocessing objects reach the workers with every start method."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
from feedline.errors import NotPicklableError
from feedline.torch import DataLoader
from torch.utils.data import Dataset

METHODS = ["fork", "spawn", "forkserver"]


class Curriculum(Dataset[Any]):
    """Reports the work of its workers to the trainer through every kind of shared object."""

    def __init__(self, context: Any) -> None:
        self.value = context.Value("i", 0)
        self.array = context.Array("d", [0.0, 7.0])
        self.queue = context.Queue()
        self.simple = context.SimpleQueue()
        self.here, self.there = context.Pipe()
        self.lock, self.event, self.is_open = context.Lock(), context.Event(), context.Semaphore(8)
        self.shared: Any = torch.zeros(2).share_memory_()  # type: ignore[no-untyped-call]
        self.own = torch.ones(2)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with self.value.get_lock():
            self.value.value += 1
        with self.lock:
            self.array[0] += 1
        if index == 3:
            self.queue.put("by queue")
            self.simple.put("by simple queue")
            self.there.send("by pipe")
            self.event.set()
            self.shared[0] = 5
            self.own[0] = 5
        return index + int(self.array[1])


@pytest.mark.parametrize("method", METHODS)
def test_shared_multiprocessing_objects_reach_workers(method: str) -> None:
    dataset = Curriculum(multiprocessing.get_context(method))
    # A feeder thread in the trainer, which does not exist after a fork.
    dataset.queue.put("of the trainer")
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context=method)
    assert torch.cat(list(loader)).tolist() == list(range(7, 15))
    assert dataset.value.value == 8
    assert dataset.array[:] == [8.0, 7.0]
    assert {dataset.queue.get(timeout=60) for _ in range(2)} == {"of the trainer", "by queue"}
    assert dataset.simple.get() == "by simple queue"
    assert dataset.here.poll(60)
    assert dataset.here.recv() == "by pipe"
    assert dataset.event.is_set()
    assert dataset.shared.tolist() == [5, 0]
    # Each worker has its own copy of a tensor that is not shared.
    assert dataset.own.tolist() == [1, 1]


def test_a_new_queue_of_the_same_data_set_is_not_mistaken_for_the_old_one() -> None:
    context = multiprocessing.get_context("spawn")
    dataset = Curriculum(context)
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    for _ in range(2):
        dataset.queue = context.Queue()
        list(loader)
        assert dataset.queue.get(timeout=60) == "by queue"


class ManyPipes(Dataset[Any]):
    """More descriptors than one packet carries."""

    def __init__(self, count: int) -> None:
        self.pipes = [multiprocessing.get_context("spawn").Pipe(duplex=False) for _ in range(count)]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        for place, (_, there) in enumerate(self.pipes):
            there.send(place)
        return index


def test_more_descriptors_than_a_packet_carries_arrive_in_order_and_are_closed_again() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    dataset = ManyPipes(150)
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    list(loader)
    assert [here.recv() for here, _ in dataset.pipes if here.poll(60)] == list(range(150))
    del loader, dataset
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


MODULE = """
KEPT = None

def keep(*things):
    global KEPT
    KEPT = things

def report(number):
    queue, there = KEPT
    queue.put(number)
    there.send(number)
    return number
"""


@contextmanager
def module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import importlib

    (folder / "kept_by_workers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("kept_by_workers")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_initargs_of_an_executor_may_be_shared_objects_and_arguments_may_not(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = multiprocessing.get_context(method)
    queue, (here, there) = context.Queue(), context.Pipe()
    with (
        module(tmp_path, monkeypatch) as kept,
        fl.Executor(1, mp_context=method, initializer=kept.keep, initargs=(queue, there)) as pool,
    ):
        assert list(pool.map(kept.report, [1, 2])) == [1, 2]
        assert [queue.get(timeout=60), queue.get(timeout=60)] == [1, 2]
        assert [here.recv(), here.recv()] == [1, 2]
        for thing in [queue, context.Lock(), context.Value("i"), context.Array("i", 2)]:
            with pytest.raises(NotPicklableError, match=r"arguments\[0\] .* through inheritance") as raised:
                pool.submit(print, thing)
            assert "initargs" in raised.value.hint
        with pytest.raises(NotPicklableError, match=r"function\.there .* through inheritance"):
            pool.submit(lambda: there.send(3))
        with pytest.raises(NotPicklableError, match=r"arguments\[0\]\['q'\] "):
            pool.submit(print, {"q": queue})
