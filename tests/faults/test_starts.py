"""How workers start, their environment, and the errors if they cannot start."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from feedline.errors import NotPicklableError, WorkerNotStartedError
from feedline.torch import DataLoader
from torch.utils.data import Dataset

from faults.remains import zygote_of
from faults.sets import Drawn, die, iterate, pid_of
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]


class Settings(Exception):  # noqa: N818
    """An error of the user's own."""


# ---- workers that cannot start ----


@pytest.mark.parametrize("kind", [ValueError, KeyError, Settings])
def test_an_exception_of_a_starting_worker_is_raised_by_the_first_next(kind: type[Exception]) -> None:
    def fail(worker: int) -> None:
        if worker == 0:
            raise kind("no such camera")

    iterator = iterate(DataLoader(Drawn(), num_workers=2, worker_init_fn=fail))

    with pytest.raises(kind, match="no such camera") as caught:
        next(iterator)
    assert type(caught.value) is kind
    assert "worker process 0" in str(caught.value)
    assert "in fail" in str(caught.value), "the traceback of the worker is missing"
    assert "hint" not in str(caught.value)


@pytest.mark.parametrize("way", ["SIGSEGV", "exit 0", "exit 5"])
def test_a_worker_that_always_dies_while_starting_ends_the_run(way: str) -> None:
    loader = DataLoader(Drawn(), num_workers=2, worker_init_fn=lambda worker: die(way) if worker else None)
    iterator = iterate(loader)

    with pytest.raises(
        WorkerNotStartedError, match="worker 1 died again and again while it was starting"
    ) as caught:
        list(iterator)

    assert len(loader.deaths) == 3
    assert {death.stage for death in loader.deaths} == {"starting"}
    for death in loader.deaths:
        assert f"pid {death.pid}" in str(caught.value)
    assert str(caught.value).count(way if way == "SIGSEGV" else f"exited with code {way[-1]}") == 3
    assert "hint" in str(caught.value)


def test_a_data_set_that_a_fresh_interpreter_cannot_load_is_reported_with_its_traceback() -> None:
    iterator = iterate(DataLoader(Unloadable(), num_workers=1, multiprocessing_context="spawn"))

    with pytest.raises(WorkerNotStartedError, match="only where it was made") as caught:
        next(iterator)
    assert "Traceback" in str(caught.value)
    assert "in load_elsewhere" in str(caught.value)


def load_elsewhere(pid: int) -> Any:
    if os.getpid() != pid:
        raise PermissionError("this can be loaded only where it was made")
    return Unloadable()


class Unloadable(Drawn):
    def __reduce__(self) -> Any:
        return load_elsewhere, (os.getpid(),)


def test_a_data_set_that_cannot_be_sent_to_a_fresh_interpreter_is_refused_with_the_part_to_blame() -> None:
    dataset = Drawn()
    dataset.hook = Locked(threading.Lock())
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")

    with pytest.raises(
        NotPicklableError, match=r"dataset\.hook\.lock cannot be pickled: it is a _thread\.lock"
    ):
        iter(loader)


class Locked:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self, index: int) -> None:
        """Nothing."""


# ---- the environment of a worker ----


class Versioned(Dataset[Any]):
    """Gives its own version and the process that forked the worker."""

    def __init__(self) -> None:
        self.version = 1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.version, os.getppid()


def test_a_second_epoch_uses_the_same_fresh_interpreter_and_sees_changes_of_the_data_set() -> None:
    dataset = Versioned()
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context="spawn")
    epochs = []
    for version in (1, 1, 2):
        dataset.version = version
        epochs.append({(int(seen), int(zygote)) for seen, zygote in loader})

    assert [version for ((version, _),) in epochs] == [1, 1, 2]
    assert len({zygote for ((_, zygote),) in epochs}) == 1


def test_a_second_epoch_sees_changes_of_the_data_set_with_fork() -> None:
    dataset = Versioned()
    loader = DataLoader(dataset, num_workers=2)
    seen = []
    for version in (1, 2):
        dataset.version = version
        seen.append({int(found) for found, _ in loader})

    assert seen == [{1}, {2}]


class Looks(Dataset[Any]):
    """Gives details of the environment of a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = torch.utils.data.get_worker_info()
        return {
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "torch threads": torch.get_num_threads(),
            "daemon": multiprocessing.current_process().daemon,
            "parent": multiprocessing.parent_process() is not None,
            "worker": info is not None and info.id == index % 2 and info.num_workers == 2,
            "trainer": os.getpid() == TRAINER,
            "main thread": threading.current_thread() is threading.main_thread(),
        }


TRAINER = os.getpid()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_are_daemons_with_one_thread(context: str) -> None:
    loader = DataLoader(Looks(), batch_size=None, num_workers=2, multiprocessing_context=context)

    for found in loader:
        assert found == {
            "threads": 1,
            "torch threads": 1,
            "daemon": True,
            "parent": found["parent"],
            "worker": True,
            "trainer": False,
            "main thread": True,
        }


def test_a_trainer_that_used_openmp_does_not_hang_its_workers(trainers: Trainers) -> None:
    program = """
    import torch
    from feedline.torch import DataLoader
    torch.set_num_threads(2)
    large = torch.ones(1500, 1500)
    def work(index):
        return (large[:500] @ large).sum() + torch.sort(torch.rand(200_000)).values.sum() * 0
    class Heavy(torch.utils.data.Dataset):
        def __len__(self):
            return 6
        def __getitem__(self, index):
            return work(index)
    # OpenMP's threads now exist in this process, but not in a fork.
    right = float(work(0))
    assert len(os.listdir("/proc/self/task")) > 1
    say([float(item) == right for _ in range(2) for item in DataLoader(Heavy(), num_workers=2)])
    """

    assert trainers.answer(program, seconds=200) == [True] * 12


def test_lambdas_local_classes_and_open_files_need_no_pickle_with_fork(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(20)))
    with path.open("rb") as file:

        class Local(Dataset[Any]):
            transform = staticmethod(lambda byte: byte * 2)

            def __len__(self) -> int:
                return 20

            def __getitem__(self, index: int) -> int:
                return int(self.transform(os.pread(file.fileno(), 1, index)[0]))

        loader = DataLoader(
            Local(),
            batch_size=5,
            num_workers=2,
            collate_fn=lambda batch: sum(batch),
            worker_init_fn=lambda _: None,
        )

        assert list(loader) == [20, 70, 120, 170]


def test_local_classes_and_lambdas_go_to_a_fresh_interpreter_by_value() -> None:
    class Local(Dataset[Any]):
        transform = staticmethod(lambda number: number * 2)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return int(self.transform(index))

    loader = DataLoader(Local(), batch_size=None, num_workers=1, multiprocessing_context="spawn")

    assert list(loader) == [0, 2, 4, 6]


def test_workers_come_from_a_zygote_and_not_from_the_trainer() -> None:
    iterator = iterate(DataLoader(Drawn(), num_workers=2))

    assert len({zygote_of(pid_of(iterator, worker)) for worker in range(2)} - {os.getpid()}) == 1


def test_a_program_that_a_worker_starts_does_not_ignore_ctrl_c(trainers: Trainers) -> None:
    program = """
    import subprocess, torch
    from feedline.torch import DataLoader
    class Starts(torch.utils.data.Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, index):
            ignored = subprocess.check_output(["grep", "SigIgn", "/proc/self/status"], text=True)
            return int(ignored.split()[1], 16) >> (signal.SIGINT - 1) & 1
    say([int(item) for item in DataLoader(Starts(), num_workers=1)])
    """

    assert trainers.answer(program) == [0, 0]
