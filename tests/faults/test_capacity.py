"""Fewer workers run at once if the machine is short of processes or memory; the batches stay the same."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(600)

WORKERS = 16
# One worker fits into it, and four at once do not.
MEMORY = 1300 << 20

OPENING = f"""
import contextlib, functools, random, resource, threading, time, warnings
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
def pids():
    return int((Path(arguments[0]) / "pids.current").read_text())
def limit(count):
    # The threads that wrote to torch's queues end some time after torch's loader.
    used, since = pids(), time.monotonic()
    while threading.active_count() > 1 or time.monotonic() - since < 1:
        time.sleep(0.02)
        if pids() != used:
            used, since = pids(), time.monotonic()
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
        peak = loader.report().resources["processes"].peak
        say([got == wanted, workers, reduced[0].text, len(loader.deaths), peak])
        """
    )

    is_same, workers, text, deaths, peak = trainers.answer(program, processes, seconds=300)

    assert is_same
    assert workers[0] <= 6
    assert workers[0] >= 3
    assert deaths == 0
    # Without the thread.
    assert 2 <= peak <= 6
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
        peak = loader.report().resources["processes"].peak
        say([got == wanted, [event.details["workers"] for event in reduced], peak])
        """
    )
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("torch before 2.6 waits forever in set_num_threads for a refused thread")

    is_same, workers, peak = trainers.answer(program, seconds=300)

    assert is_same
    assert 1 <= workers[0] < WORKERS
    assert 2 <= peak <= 8


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


@pytest.mark.alone
def test_native_samples_that_do_not_fit_into_memory_together_take_turns(
    trainers: Trainers, memory: Cgroup, tmp_path: Path
) -> None:
    # One sample takes 256 MB; 16 threads read ahead.
    program = with_opening(
        """
        (Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))
        first = Path(arguments[1]) / "00"
        with first.open("wb") as file:
            file.truncate(256_000_000)
        for number in range(1, 12):
            os.link(first, Path(arguments[1]) / f"{number:02}")
        paths = sorted(Path(arguments[1]).iterdir())
        loader = fl.files(paths).batch(1, index=True).loader(threads=4, readers=16)
        got = []
        for batch in loader:
            got.append((int(batch["index"][0]), len(bytes(batch["bytes"].view(0)))))
            del batch
        used = loader.report().resources["memory"]
        say([got, used.peak, used.budget])
        """
    )

    memory.limit(1000 << 20)
    got, peak, budget = trainers.answer(program, memory, tmp_path, seconds=300)

    assert got == [[index, 256_000_000] for index in range(12)]
    # The sample that is waited for takes its memory in any case, and its batch too.
    assert 256_000_000 <= peak <= budget + 2 * 257_000_000


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
        files = loader.report().resources["worker_files"]
        say([got == list(range(600)), loader.report().skipped, causes,
             loader.deaths[0].certificate if loader.deaths else "", files.peak, files.budget])
        """
    )

    is_right, skipped, causes, text, peak, budget = trainers.answer(program, seconds=300)

    assert is_right
    assert 12 < peak <= budget == limit
    assert skipped == 0
    assert causes in ([], ["limit of the system"])
    if causes:
        for part in ("Too many open files", "open descriptors: ", "/dev/null (", "hint: close files"):
            assert part in text


@pytest.mark.parametrize("limit", [64, 128, 256])
def test_a_pipeline_whose_functions_leak_descriptors_is_loaded_by_fresh_workers(
    trainers: Trainers, limit: int
) -> None:
    program = with_opening(
        f"""
        kept = []
        def leak(sample):
            kept.append(open("/dev/null"))
            return sample

        resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
        loader = fl.arrays({{"number": np.arange(600)}}).map(leak).batch(12).loader(workers=2)
        got = np.concatenate([batch["number"] for batch in loader]).tolist()
        files = loader.report().resources["worker_files"]
        loader.close()
        say([got == list(range(600)), files.peak, files.budget])
        """
    )

    is_right, peak, budget = trainers.answer(program, seconds=300)

    assert is_right
    assert 12 < peak <= budget == limit


@pytest.mark.parametrize("limit", [64, 128, 256])
def test_calls_that_leak_descriptors_are_made_by_fresh_workers(trainers: Trainers, limit: int) -> None:
    program = with_opening(
        f"""
        kept = []
        def leak(number):
            kept.append(open("/dev/null"))
            return number

        resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
        with fl.Executor(2) as pool:
            got = list(pool.map(leak, range(600), chunksize=12))
        say(got == list(range(600)))
        """
    )

    assert trainers.answer(program, seconds=300) is True
