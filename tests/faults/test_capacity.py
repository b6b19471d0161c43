"""Fewer workers run at once if the machine is short of processes or memory; the batches stay the same."""

from __future__ import annotations

import textwrap

import pytest
import torch

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(600)

WORKERS = 16
# One worker fits into it, and four at once do not.
MEMORY = 1300 << 20

OPENING = f"""
import contextlib, functools, random, resource, threading, warnings
import numpy as np
import torch, torch.utils.data
from feedline.torch import DataLoader
WORKERS = {WORKERS}
warnings.simplefilter("ignore")

class Drawn(torch.utils.data.Dataset):
    '''Samples with random numbers of each library, which depend on the worker.'''
    def __len__(self):
        return 192
    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        return index, worker.id, random.random(), float(np.random.rand()), float(torch.rand(()))

def numbers(loader):
    return [[column.tolist() for column in batch] for batch in loader]

def seeded(seed):
    return torch.Generator().manual_seed(seed)

def expected():
    plain = torch.utils.data.DataLoader(
        Drawn(), 4, shuffle=True, num_workers=WORKERS, generator=seeded(3), multiprocessing_context="fork"
    )
    return numbers(plain)
"""


def with_opening(program: str) -> str:
    return OPENING + textwrap.dedent(program)


# ---- processes ----

# The trainer, the thread that watches the workers, the zygote, and five workers.
FEW = """
(Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))
def limit(count):
    used = int((Path(arguments[0]) / "pids.current").read_text())
    (Path(arguments[0]) / "pids.max").write_text(str(used + count))
"""


def test_a_loader_runs_with_the_processes_that_a_cgroup_allows(trainers: Trainers, processes: Cgroup) -> None:
    program = with_opening(FEW) + textwrap.dedent(
        """
        wanted = expected()
        events = []
        loader = DataLoader(
            Drawn(), 4, shuffle=True, num_workers=WORKERS, generator=seeded(3), on_event=events.append
        )
        # The zygote, the thread that watches the workers, and five workers.
        limit(7)
        got = numbers(loader)
        reduced = [event for event in events if event.name == "workers_reduced"]
        workers = [event.details["workers"] for event in reduced]
        say([got == wanted, workers, reduced[0].text, len(loader.deaths)])
        """
    )

    is_same, workers, text, deaths = trainers.answer(program, processes, seconds=300)

    assert is_same
    assert workers[0] <= 6
    assert workers[0] >= 3
    assert deaths == 0
    for part in (f"of {WORKERS} workers run at once", "Resource temporarily unavailable", "hint: lower"):
        assert part in text


def test_a_user_with_few_processes_gets_all_batches(trainers: Trainers) -> None:
    program = with_opening(
        """
        wanted = expected()
        if os.getuid() == 0:
            # Nothing is limited for root. The user may not read the packages, so they are imported before.
            import feedline._workers.pickling
            feedline._workers.pickling._rejecting_reducers()
            np.random.seed(0)
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
        resource.setrlimit(resource.RLIMIT_NPROC, (9, 9))
        events = []
        loader = DataLoader(
            Drawn(), 4, shuffle=True, num_workers=WORKERS, generator=seeded(3), on_event=events.append
        )
        got = numbers(loader)
        reduced = [event for event in events if event.name == "workers_reduced"]
        say([got == wanted, [event.details["workers"] for event in reduced]])
        """
    )
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("torch before 2.6 waits forever in set_num_threads for a refused thread")

    is_same, workers = trainers.answer(program, seconds=300)

    assert is_same
    assert 1 <= workers[0] < WORKERS


DOUBLE = """
def double(number):
    time.sleep(0.01)
    return 2 * number

def reduced(events):
    return any(event.name == "workers_reduced" for event in events)

events = []
"""


def test_an_executor_runs_with_few_processes(trainers: Trainers, processes: Cgroup) -> None:
    program = with_opening(FEW + DOUBLE) + textwrap.dedent(
        """
        limit(8)
        with fl.Executor(WORKERS, on_event=events.append) as pool:
            is_right = True
            until = time.monotonic() + 200
            while is_right and not reduced(events) and time.monotonic() < until:
                is_right = list(pool.map(double, range(300))) == [2 * number for number in range(300)]
        say([is_right, reduced(events)])
        """
    )

    assert trainers.answer(program, processes, seconds=300) == [True, True]


def test_a_pipeline_with_functions_runs_with_few_processes(trainers: Trainers, processes: Cgroup) -> None:
    program = with_opening(FEW + DOUBLE) + textwrap.dedent(
        """
        pipeline = fl.arrays({"number": np.arange(3000)})
        pipeline = pipeline.map(lambda sample: {"number": double(sample["number"])}).batch(10)
        loader = pipeline.loader(workers=WORKERS, on_event=events.append)
        # The zygote, threads of the pipeline, and some workers.
        limit(12)
        doubled = np.concatenate([batch["number"] for batch in loader]).tolist()
        is_right = doubled == [2 * number for number in range(3000)]
        loader.close()
        say([is_right, reduced(events)])
        """
    )

    assert trainers.answer(program, processes, seconds=300) == [True, True]


# ---- memory ----

LARGE = """
(Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))

class Large(torch.utils.data.Dataset):
    '''Samples for which a worker needs half a gigabyte for a moment.'''
    def __len__(self):
        return 16
    def __getitem__(self, index):
        kept = bytearray(b"x") * (400 << 20)
        sample = torch.full((98 << 20,), index, dtype=torch.uint8)
        time.sleep(0.05)
        return sample[:1].clone() + len(kept) * 0

def large(index):
    return int(Large()[index][0])
"""


@pytest.mark.alone
def test_workers_that_do_not_fit_into_memory_together_take_turns(trainers: Trainers, memory: Cgroup) -> None:
    program = with_opening(LARGE) + textwrap.dedent(
        """
        events = []
        loader = DataLoader(Large(), num_workers=4, on_event=events.append)
        got = [int(batch[0][0]) for batch in loader]
        reduced = [event for event in events if event.name == "workers_reduced"]
        say([got, sorted({death.cause for death in loader.deaths}),
             [event.details["workers"] for event in reduced], reduced[0].text if reduced else ""])
        """
    )

    memory.limit(MEMORY)
    got, causes, workers, text = trainers.answer(program, memory, seconds=300)

    assert got == list(range(16))
    assert causes == ["out of memory"]
    assert min(workers) < 4
    for part in ("memory is short", "MiB", "hint: lower the number of workers"):
        assert part in text


@pytest.mark.alone
def test_calls_that_do_not_fit_into_memory_together_take_turns(trainers: Trainers, memory: Cgroup) -> None:
    program = with_opening(LARGE) + textwrap.dedent(
        """
        with fl.Executor(4) as pool:
            results = list(pool.map(large, range(16)))
        array = np.arange(16)
        pipeline = fl.arrays({"number": array}).map(lambda sample: {"number": large(int(sample["number"]))})
        with pipeline.batch(2).loader(workers=4) as loader:
            mapped = np.concatenate([batch["number"] for batch in loader]).tolist()
        say([results, mapped])
        """
    )

    memory.limit(MEMORY)
    results, mapped = trainers.answer(program, memory, seconds=300)

    assert results == mapped == list(range(16))


# ---- descriptors ----


@pytest.mark.parametrize("limit", [64, 128, 256])
@pytest.mark.parametrize("policy", ["None", 'fl.FaultPolicy("skip")'], ids=["plain", "policy"])
def test_a_data_set_that_leaks_descriptors_is_loaded_by_fresh_workers(
    trainers: Trainers, limit: int, policy: str
) -> None:
    program = with_opening(
        f"""
        class Leaks(torch.utils.data.Dataset):
            def __len__(self):
                return 600
            def __getitem__(self, index):
                self.kept = getattr(self, "kept", [])
                self.kept.append(open("/dev/null"))
                return index

        resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
        loader = DataLoader(Leaks(), 12, num_workers=2, faults={policy})
        got = [int(index) for batch in loader for index in batch]
        causes = sorted({{death.cause for death in loader.deaths}})
        say([got == list(range(600)), loader.report().skipped, causes,
             loader.deaths[0].certificate if loader.deaths else ""])
        """
    )

    is_right, skipped, causes, text = trainers.answer(program, seconds=300)

    assert is_right
    assert skipped == 0
    assert causes in ([], ["limit of the system"])
    if causes:
        for part in ("Too many open files", "open descriptors: ", "/dev/null (", "hint: close files"):
            assert part in text


def test_a_pipeline_whose_functions_leak_descriptors_is_loaded_by_fresh_workers(trainers: Trainers) -> None:
    program = with_opening(
        """
        kept = []
        def leak(sample):
            kept.append(open("/dev/null"))
            return sample

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        loader = fl.arrays({"number": np.arange(600)}).map(leak).batch(12).loader(workers=2)
        got = np.concatenate([batch["number"] for batch in loader]).tolist()
        loader.close()
        say(got == list(range(600)))
        """
    )

    assert trainers.answer(program, seconds=300) is True
