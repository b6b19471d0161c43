"""Closing does not wait for workers, whatever they are doing."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from feedline._torch.supervised import WithWorkers
from feedline.torch import DataLoader
from torch.utils.data import Dataset

from faults.remains import eventually, has_ended
from faults.sets import Drawn, is_idle, iterate, pid_of
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]


def sleep() -> None:
    time.sleep(1000)


def compute() -> None:
    while True:
        pass


def hold_the_lock() -> None:
    """Holds the GIL, so that no Python code runs, including signal handlers."""
    ctypes.PyDLL(None).sleep(1000)


class Stuck(Dataset[Any]):
    """From the given index on, each sample takes forever."""

    def __init__(self, action: Callable[[], None], first: int) -> None:
        self.action = action
        self.first = first

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        if index >= self.first:
            self.action()
        return torch.full((2000,), index)


def pids_of(iterator: WithWorkers) -> list[int]:
    return [pid_of(iterator, worker) for worker in range(iterator._num_workers)]


def are_fetching(iterator: WithWorkers) -> bool:
    worker_pool = iterator._worker_pool
    assert worker_pool is not None
    doing = [worker_pool.activity(worker) for worker in range(iterator._num_workers)]
    return all(said is not None and said.stage == "fetching" for said in doing)


def closes(held: list[WithWorkers]) -> bool:
    """Whether a dropped iterator and all its processes are gone long before a worker would end."""
    pids = pids_of(held[0])
    held.clear()
    return eventually(lambda: all(has_ended(pid) for pid in pids))


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("action", [sleep, compute, hold_the_lock])
def test_closing_does_not_wait_for_busy_workers(workers: int, action: Callable[[], None]) -> None:
    held = [iterate(DataLoader(Stuck(action, workers), num_workers=workers))]
    for _ in range(workers):
        next(held[0])
    assert eventually(lambda: are_fetching(held[0]))

    assert closes(held)


@pytest.mark.parametrize("workers", [1, 4])
def test_closing_does_not_wait_for_idle_workers(workers: int) -> None:
    held = [iterate(DataLoader(Drawn(), num_workers=workers))]
    next(held[0])
    assert eventually(lambda: all(is_idle(held[0], worker) for worker in range(workers)))

    assert closes(held)


@pytest.mark.parametrize("workers", [1, 4])
def test_closing_does_not_wait_for_stopped_workers(workers: int) -> None:
    iterator = iterate(DataLoader(Drawn(), num_workers=workers))
    next(iterator)
    for pid in pids_of(iterator):
        os.kill(pid, signal.SIGSTOP)
    held = [iterator]
    del iterator

    assert closes(held)


def test_closing_does_not_wait_for_workers_that_have_not_started() -> None:
    iterator = iterate(DataLoader(Drawn(), num_workers=2, worker_init_fn=lambda _: time.sleep(1000)))
    held = [iterator]
    del iterator

    assert closes(held)


# ---- without the garbage collector ----


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def drop_the_iterator(loader: DataLoader[Any], pids: list[int]) -> None:
    iterator = iterate(loader)
    next(iterator)
    pids.extend(pids_of(iterator))


def break_out_of_the_loop(loader: DataLoader[Any], pids: list[int]) -> None:
    for _ in (iterator := iterate(loader)):
        pids.extend(pids_of(iterator))
        break


def leave_a_generator(loader: DataLoader[Any], pids: list[int]) -> None:
    iterator = iterate(loader)
    next(batch for batch in iterator)
    pids.extend(pids_of(iterator))


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("leave", [drop_the_iterator, break_out_of_the_loop, leave_a_generator])
def test_an_abandoned_epoch_ends_its_workers_at_once(
    leave: Callable[[DataLoader[Any], list[int]], None],
) -> None:
    loader = DataLoader(Drawn(), num_workers=2)
    pids: list[int] = []

    leave(loader, pids)

    assert len(pids) == 2
    assert eventually(lambda: all(has_ended(pid) for pid in pids))


@pytest.mark.usefixtures("no_collection")
def test_persistent_workers_end_with_their_loader() -> None:
    loader = DataLoader(Drawn(), num_workers=2, persistent_workers=True)
    iterator = iterate(loader)
    list(iterator)
    pids = pids_of(iterator)

    del loader, iterator

    assert eventually(lambda: all(has_ended(pid) for pid in pids))


@pytest.mark.usefixtures("no_collection")
def test_persistent_workers_live_on_from_epoch_to_epoch() -> None:
    loader = DataLoader(Drawn(), num_workers=2, persistent_workers=True)
    iterator = iterate(loader)
    first = pids_of(iterator)
    list(iterator)
    iterator = iterate(loader)
    # Abandoned in the middle: batches in transit belong to no current epoch.
    next(iterator)

    assert len(list(loader)) == 48
    assert pids_of(iterator) == first


# ---- after errors ----


def fail() -> None:
    raise LookupError("this one is missing")


def test_closing_is_quick_after_an_exception_in_a_worker() -> None:
    iterator = iterate(DataLoader(Stuck(fail, 3), num_workers=2))
    for _ in range(3):
        next(iterator)
    for number in (3, 4):
        with pytest.raises(LookupError, match=f"this one is missing(.|\n)*sample {number}"):
            next(iterator)
    held = [iterator]
    del iterator

    assert closes(held)


def test_closing_is_quick_after_a_timeout_which_names_the_sample() -> None:
    iterator = iterate(DataLoader(Stuck(sleep, 3), num_workers=2, timeout=5))
    for _ in range(3):
        next(iterator)
    with pytest.raises(RuntimeError, match=r"timed out after 5 seconds(.|\n)*sample 3"):
        next(iterator)
    held = [iterator]
    del iterator

    assert closes(held)


def test_closing_twice_has_no_further_effect() -> None:
    iterator = iterate(DataLoader(Drawn(), num_workers=2))
    next(iterator)
    pids = pids_of(iterator)
    iterator._shutdown_workers()
    iterator._shutdown_workers()

    assert all(has_ended(pid) for pid in pids)
    with pytest.raises((RuntimeError, StopIteration)):
        next(iterator)


# ---- the process ----


@pytest.mark.parametrize("setting", ["persistent_workers=True", "multiprocessing_context='spawn'"])
def test_the_interpreter_ends_silently_with_a_loader_alive(trainers: Trainers, setting: str) -> None:
    program = f"""
    import time, torch
    from feedline.torch import DataLoader
    loader = DataLoader(torch.arange(100), num_workers=2, {setting})
    taken = len(list(loader))
    running = iter(loader)
    batch = next(running)
    say(taken)
    """

    trainer = trainers.start(program)
    taken = trainer.first_answer()
    code = trainer.wait()

    assert (taken, code, trainer.errors) == (100, 0, "")


def test_two_epochs_of_one_loader_run_at_the_same_time(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    loader = DataLoader(torch.arange(20), num_workers=2)
    say([[int(one), int(other)] for one, other in zip(loader, loader)])
    """

    assert trainers.answer(program, seconds=200) == [[number, number] for number in range(20)]


def test_ctrl_c_ends_a_wait_for_a_batch_and_the_epoch_continues(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    class Gated(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            while not Path(arguments[0]).exists():
                time.sleep(0.01)
            return index
    running = iter(DataLoader(Gated(), num_workers=1))
    def press():
        while getattr(running._worker_pool.activity(0), "stage", "") != "fetching":
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=press).start()
    try:
        next(running)
        say("the batch came first")
    except KeyboardInterrupt:
        # No batch is ready before this.
        Path(arguments[0]).touch()
        say([int(item) for item in running])
    """

    assert trainers.answer(program, trainers.folder / "open") == [0, 1, 2, 3]
