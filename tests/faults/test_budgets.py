"""Runs within real limits on descriptors, memory, address space and threads: every sample comes, and the
peaks in the report are within their budgets."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(600)

FILES, SHARDS, RECORDS = 100_000, 500, 20
MIB = 1 << 20

OPENING = """
import contextlib, ctypes, resource, warnings
import numpy as np
import torch, torch.utils.data
from feedline.torch import DataLoader
warnings.simplefilter("ignore")
MIB = 1 << 20

def peaks(loader):
    return {name: resource.__dict__ for name, resource in loader.report().resources.items()}

def enter(group):
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))

# Limits the memory of a control group to what this process has, which is charged to others, and this much.
def leave(group, bytes):
    enter(group)
    old = Path(group) / "memory.limit_in_bytes"
    limit = old if old.exists() else Path(group) / "memory.max"
    limit.write_text(str(bytes))
"""


def with_opening(program: str) -> str:
    return OPENING + textwrap.dedent(program)


def within(peaks: dict[str, dict[str, int]], *names: str, beyond: int = 0) -> bool:
    """Whether these resources were used, and their peaks are at most `beyond` over their budgets."""
    assert set(names) <= set(peaks), peaks
    return all(0 < peaks[name]["peak"] <= peaks[name]["budget"] + beyond for name in names)


# ---- descriptors ----


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of 100,000 files, which are links to a few: each counts as a file of its own."""
    folder = tmp_path_factory.mktemp("many")
    for original in range(100):
        (folder / f"original-{original}").write_bytes(b"%d" % original)
    for number in range(FILES):
        os.link(folder / f"original-{number % 100}", folder / f"{number:06}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        lines = (json.dumps({"number": shard * RECORDS + number}) + "\n" for number in range(RECORDS))
        (folder / f"{shard:03}.jsonl").write_text("".join(lines))
    return folder


FEW_DESCRIPTORS = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder = Path(arguments[0])
"""


def test_a_hundred_thousand_files_are_read_by_16_threads_with_64_descriptors(
    trainers: Trainers, many_files: Path
) -> None:
    program = with_opening(FEW_DESCRIPTORS) + textwrap.dedent(
        f"""
        paths = [folder / f"{{number:06}}" for number in range({FILES})]
        loader = fl.files(paths).batch(1000, index=True).loader(threads=16, readers=16)
        indices, is_right = [], True
        for batch in loader:
            found = batch["index"].tolist()
            is_right &= [int(value) for value in batch["bytes"]] == [index % 100 for index in found]
            indices += found
        say([is_right and indices == list(range({FILES})), peaks(loader)])
        """
    )

    is_right, peaks = trainers.answer(program, many_files, seconds=300)

    assert is_right
    assert within(peaks, "files", "memory", "threads")
    assert peaks["files"]["budget"] < 64


def test_a_hundred_thousand_files_are_read_by_16_workers_with_64_descriptors(
    trainers: Trainers, many_files: Path
) -> None:
    program = with_opening(FEW_DESCRIPTORS) + textwrap.dedent(
        f"""
        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return {FILES}
            def __getitem__(self, index):
                with fl.open_cached(folder / f"{{index:06}}") as file:
                    return index, int(file.read())

        loader = DataLoader(Numbers(), 1000, num_workers=16)
        indices, is_right = [], True
        for found, values in loader:
            is_right &= values.tolist() == [index % 100 for index in found.tolist()]
            indices += found.tolist()
        say([is_right and indices == list(range({FILES})), peaks(loader), len(loader.deaths)])
        """
    )

    is_right, peaks, deaths = trainers.answer(program, many_files, seconds=300)

    assert is_right
    assert deaths == 0
    assert within(peaks, "processes", "worker_files")
    assert peaks["worker_files"]["budget"] == 64


def test_five_hundred_shards_are_read_with_64_descriptors(trainers: Trainers, many_shards: Path) -> None:
    program = with_opening(FEW_DESCRIPTORS) + textwrap.dedent(
        f"""
        shards = sorted(folder.glob("*.jsonl"))
        pipeline = fl.jsonl(shards).parse({{"number": fl.int64()}}).shuffle(seed=3)
        native = pipeline.batch(100).loader(threads=16, readers=16)
        numbers = [number for batch in native for number in batch["number"].tolist()]
        everything = list(range({SHARDS * RECORDS}))
        is_right = sorted(numbers) == everything

        class Lines(torch.utils.data.Dataset):
            def __len__(self):
                return {SHARDS * RECORDS}
            def __getitem__(self, index):
                # The same worker reads from many shards in turns.
                shard, line = index % {SHARDS}, index // {SHARDS}
                with fl.open_cached(shards[shard]) as file:
                    return json.loads(file.read().splitlines()[line])["number"]

        loader = DataLoader(Lines(), 100, num_workers=16)
        numbers = [number for batch in loader for number in batch.tolist()]
        say([is_right, sorted(numbers) == everything, peaks(native), peaks(loader)])
        """
    )

    native_is_right, torch_is_right, native, torch = trainers.answer(program, many_shards, seconds=300)

    assert (native_is_right, torch_is_right) == (True, True)
    assert within(native, "files", "memory", "threads")
    assert within(torch, "processes", "worker_files")


def test_two_loaders_share_the_descriptors_of_one(trainers: Trainers, many_files: Path) -> None:
    program = with_opening(FEW_DESCRIPTORS) + textwrap.dedent(
        """
        paths = [folder / f"{number:06}" for number in range(4000)]
        def loader():
            return fl.files(paths).batch(50, index=True).loader(threads=4, readers=16)
        one, other = loader(), loader()
        pairs = [[batch["index"].tolist() for batch in pair] for pair in zip(one, other, strict=True)]
        is_right = [index for pair in pairs for index in pair[1]] == list(range(4000))
        is_right &= all(mine == others for mine, others in pairs)
        say([is_right, peaks(one)["files"], peaks(other)["files"]])
        """
    )

    is_right, *both = trainers.answer(program, many_files, seconds=300)

    assert is_right
    for peaks in both:
        assert 0 < peaks["peak"] <= peaks["budget"]
        # Never exceeded, not even for a sample that is needed next.
        assert peaks["process_peak"] <= peaks["process_budget"] == both[0]["budget"]


def test_an_error_about_descriptors_says_what_holds_them(trainers: Trainers, many_files: Path) -> None:
    program = with_opening(FEW_DESCRIPTORS) + textwrap.dedent(
        """
        loader = fl.files([folder / "000001"]).batch(1).loader()
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(folder / "000002", os.O_RDONLY))
        try:
            next(iter(loader))
        except fl.errors.TooManyOpenFilesError as error:
            text = str(error)
        for number in taken:
            os.close(number)
        say([text, len(taken), loader.report().notes])
        """
    )

    text, taken, notes = trainers.answer(program, many_files, seconds=300)

    for part in ("not even for one file", "this process holds", " files", f"000002 ({taken})"):
        assert part in text
    assert any("EMFILE" in note and "the budget for files goes from" in note for note in notes)


# ---- memory ----


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from 1 KB to 50 MB, 660 MB in all; those of a size are links to one."""
    folder = tmp_path_factory.mktemp("sizes")
    for size in (1_000, 100_000, 5_000_000, 50_000_000):
        (folder / f"original-{size}").write_bytes(bytes(size))
    for number in range(48):
        size = (1_000, 100_000, 5_000_000, 50_000_000)[number % 4]
        os.link(folder / f"original-{size}", folder / f"{number:02}")
    return folder


# A third of what all samples take, and something for workers.
THIRD = """
folder = Path(arguments[0])
paths = [folder / f"{number:02}" for number in range(48)]
sizes = [path.stat().st_size for path in paths]
leave(arguments[1], 64 * MIB + sum(sizes) // 3)
"""


@pytest.mark.alone
def test_samples_of_all_sizes_fit_into_a_third_of_the_memory(
    trainers: Trainers, sizes: Path, memory: Cgroup
) -> None:
    program = with_opening(THIRD) + textwrap.dedent(
        """
        loader = fl.files(paths).batch(1, index=True).loader(threads=4, readers=8)
        found = []
        for batch in loader:
            # The loader reads ahead meanwhile.
            found.append(len(bytes(batch["bytes"].view(0))))
        say([found == sizes, peaks(loader)])
        """
    )

    is_right, peaks = trainers.answer(program, sizes, memory, seconds=300)

    assert is_right
    # One giant sample exceeds the budget by no more than itself.
    assert within(peaks, "memory", beyond=51_000_000)
    assert within(peaks, "files", "threads")


@pytest.mark.alone
def test_samples_of_all_sizes_come_from_workers_in_little_memory(
    trainers: Trainers, sizes: Path, memory: Cgroup
) -> None:
    program = with_opening(THIRD) + textwrap.dedent(
        """
        class Sizes(torch.utils.data.Dataset):
            def __len__(self):
                return len(paths)
            def __getitem__(self, index):
                return torch.from_file(str(paths[index]), size=sizes[index], dtype=torch.uint8).clone()

        loader = DataLoader(Sizes(), None, num_workers=4)
        found = [len(sample) for sample in loader]
        say([found == sizes, peaks(loader)])
        """
    )

    is_right, peaks = trainers.answer(program, sizes, memory, seconds=300)

    assert is_right
    assert within(peaks, "processes")


WINDOWS = """
# Windows of a small file, which overlap: batches of 16 MiB.
numbers = Path(arguments[0]) / "numbers"
if not numbers.exists():
    np.arange(2_000_000, dtype=np.uint32).tofile(numbers)
def windows():
    return fl.tokens(str(numbers), "uint32", 524_288, stride=1000)

def starts(batches):
    return [int(row[0]) for batch in batches for row in batch["tokens"]]

everything = [1000 * number for number in range(1476)]

def address_space():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize:"))
"""


@pytest.mark.alone
def test_two_loaders_share_the_memory_of_one(trainers: Trainers, tmp_path: Path, memory: Cgroup) -> None:
    program = with_opening(WINDOWS) + textwrap.dedent(
        """
        # A quarter of it is the least that a loader takes.
        leave(arguments[1], 256 * MIB)
        one, other = windows().batch(2).loader(), windows().batch(2).loader()
        count, right = 0, True
        for mine, others in zip(one, other, strict=True):
            right &= np.array_equal(mine["tokens"], others["tokens"])
            count += len(mine["tokens"])
        say([right, count, peaks(one)["memory"], peaks(other)["memory"]])
        """
    )

    right, count, *both = trainers.answer(program, tmp_path, memory, seconds=300)

    assert right
    assert count == 1476
    for peaks in both:
        assert peaks["budget"] == 64 * MIB
        assert peaks["process_budget"] == 64 * MIB
        # What is needed next does not wait: a batch of each loader, and what is made for it.
        assert 40 * MIB < peaks["process_peak"] <= 64 * MIB + 2 * 4 * MIB


@pytest.mark.alone
def test_a_native_loader_and_a_torch_loader_fit_into_memory_together(
    trainers: Trainers, tmp_path: Path, memory: Cgroup
) -> None:
    # Each makes batches of 4 MiB as fast as it can, and would read far ahead.
    program = with_opening(WINDOWS) + textwrap.dedent(
        """
        class Large(torch.utils.data.Dataset):
            def __len__(self):
                return 738
            def __getitem__(self, index):
                return torch.full((1 << 20,), index, dtype=torch.int32)

        leave(arguments[1], 512 * MIB)
        native = windows().batch(2).loader()
        workers = DataLoader(Large(), None, num_workers=2, prefetch_factor=100)
        firsts, numbers = [], []
        for mine, others in zip(native, workers, strict=True):
            firsts += [int(row[0]) for row in mine["tokens"]]
            numbers.append(int(others[0]))
            time.sleep(0.002)
        memory = peaks(native)["memory"], peaks(workers)["shared_memory"]
        say([firsts == everything, numbers == list(range(738)), len(workers.deaths), memory])
        """
    )

    is_native_right, is_torch_right, deaths, (mine, others) = trainers.answer(
        program, tmp_path, memory, seconds=300
    )

    assert is_native_right
    assert is_torch_right
    assert deaths == 0
    assert mine["budget"] + others["budget"] <= 512 * MIB
    # A batch that is needed next does not wait.
    assert mine["peak"] <= mine["budget"] + 4 * MIB
    assert others["peak"] <= others["budget"] + 4 * MIB


def test_a_fork_has_budgets_of_its_own(trainers: Trainers, tmp_path: Path) -> None:
    program = with_opening(WINDOWS) + textwrap.dedent(
        """
        kept = list(windows().batch(64).loader(memory="64MiB"))
        before = windows().batch(1).loader()
        used = peaks(before)["memory"]["process_peak"]
        child = os.fork()
        if child == 0:
            loader = windows().batch(1).loader(memory="32MiB", prefetch="4MiB", threads=1)
            right = starts(loader) == everything
            say([right, used, peaks(loader)["memory"]])
            os._exit(0)
        os.waitpid(child, 0)
        """
    )

    right, used, peaks = trainers.answer(program, tmp_path, seconds=300)

    assert right
    assert used > 1000 * MIB
    assert 0 < peaks["process_peak"] <= peaks["process_budget"] == 32 * MIB


def test_a_limit_on_address_space_makes_the_loader_hold_less(trainers: Trainers, tmp_path: Path) -> None:
    # The budget is far more than the system grants: it refuses, and everything comes nevertheless.
    program = with_opening(WINDOWS) + textwrap.dedent(
        """
        events = []
        loader = windows().batch(8).loader(
            memory="16GiB", prefetch="8GiB", threads=2, readers=2, on_event=events.append
        )
        # Threads have a stack and an arena of malloc each.
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + 700 * MIB, resource.RLIM_INFINITY))
        running = iter(loader)
        first = next(running)
        # Until the loader cannot go on, and says so; the events come with batches.
        while "the system refused" not in str(loader.report().notes):
            time.sleep(0.001)
        found = starts([first])
        del first
        found += starts(running)
        shrunk = [event.details for event in events if event.name == "budget_shrunk"]
        say([found == everything, shrunk, peaks(loader)])
        """
    )

    right, shrunk, peaks = trainers.answer(program, tmp_path, seconds=300)

    assert right
    assert [details["budget"] for details in shrunk] == ["batches"]
    assert "16.0 MiB for a batch (ENOMEM)" in shrunk[0]["why"]
    assert shrunk[0]["to"] < 800 * MIB < shrunk[0]["from"]
    assert within(peaks, "memory", "files", "threads")


def test_an_error_about_memory_says_what_holds_it(trainers: Trainers, tmp_path: Path) -> None:
    program = with_opening(WINDOWS) + textwrap.dedent(
        """
        loader = windows().batch(8).loader(memory="16GiB", prefetch="32MiB", threads=1, readers=1)
        resource.setrlimit(resource.RLIMIT_AS, (address_space() + 400 * MIB, resource.RLIM_INFINITY))
        kept = []
        try:
            for batch in loader:
                kept.append(batch)
        except fl.errors.OutOfMemoryError as error:
            count = len(kept)
            kept.clear()
            say([str(error), count])
        """
    )

    text, count = trainers.answer(program, tmp_path, seconds=300)

    assert count > 2
    for part in ("refused 16.0 MiB for a batch", "Feedline holds", "for batches"):
        assert part in text


# A native loader holds warm memory, and the address space that is left is less than a sample needs.
SHORT = """
native = windows().batch(8).loader(memory="1GiB", prefetch="512MiB", threads=1, readers=1)
kept = [batch for _, batch in zip(range(12), native)]
del kept
# malloc of a thread that has ended keeps its address space.
resource.setrlimit(resource.RLIMIT_AS, (address_space() + 32 * MIB, resource.RLIM_INFINITY))
tried = []

def load(index):
    if index == 5:
        tried.append(index)
        return len(bytearray(NEEDED))
    return index

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return load(index)
"""

FRONTS = {
    "torch": "[int(batch) for batch in DataLoader(Large(), 1)]",
    "policy": "[int(batch) for batch in DataLoader(Large(), 1, faults=fl.FaultPolicy('skip'))]",
}


@pytest.mark.parametrize("front", FRONTS)
def test_a_shortage_in_the_trainer_is_met_by_giving_back_what_is_idle(
    trainers: Trainers, tmp_path: Path, front: str
) -> None:
    program = with_opening(WINDOWS + SHORT) + textwrap.dedent(
        f"""
        NEEDED = 96 * MIB
        found = {FRONTS[front]}
        say([found, len(tried)])
        """
    )

    found, tried = trainers.answer(program, tmp_path, seconds=300)

    assert found == [0, 1, 2, 3, 4, 96 * MIB, 6, 7]
    assert tried == 2


@pytest.mark.parametrize("front", FRONTS)
def test_a_shortage_that_stays_is_raised_and_never_skipped(
    trainers: Trainers, tmp_path: Path, front: str
) -> None:
    program = with_opening(WINDOWS + SHORT) + textwrap.dedent(
        f"""
        NEEDED = 1 << 40
        try:
            found = {FRONTS[front]}
        except MemoryError as error:
            say(["".join(error.__notes__), len(tried)])
        """
    )

    notes, tried = trainers.answer(program, tmp_path, seconds=300)

    assert "short of memory" in notes
    assert tried > 1


KEPT = 40


def test_a_consumer_that_keeps_all_batches_gets_them_on_every_front(
    trainers: Trainers, tmp_path: Path
) -> None:
    # 40 batches of 4 MiB, with budgets of 16 MiB.
    program = with_opening(WINDOWS) + textwrap.dedent(
        f"""
        pipeline = fl.arrays({{"number": np.arange({KEPT}), "large": np.zeros(({KEPT}, MIB), np.uint32)}})
        def numbers(batches):
            return [int(number) for batch in batches for number in batch["number"]]

        class Large(torch.utils.data.Dataset):
            def __len__(self):
                return {KEPT}
            def __getitem__(self, index):
                return {{"number": index, "large": torch.zeros(MIB, dtype=torch.int32)}}

        native = pipeline.batch(1).loader(memory="16MiB")
        mapped = pipeline.map(lambda sample: sample).batch(1).loader(memory="16MiB", workers=2)
        threads = pipeline.map(lambda sample: sample, threads=True).batch(1).loader(memory="16MiB", workers=2)
        supervised = DataLoader(Large(), 1, num_workers=2, memory="16MiB")
        kept = [list(loader) for loader in (native, mapped, threads, supervised)]
        mapped.close()
        threads.close()
        say([[numbers(batches) for batches in kept], peaks(native)])
        """
    )

    found, peaks = trainers.answer(program, tmp_path, seconds=300)

    assert found == [list(range(KEPT))] * 4
    # What the consumer holds counts: beyond that, the loader has no more than its budget.
    assert peaks["memory"]["peak"] <= (KEPT + 1) * 4 * MIB + peaks["memory"]["budget"]


def test_no_front_needs_space_in_dev_shm(trainers: Trainers, many_files: Path) -> None:
    # CLONE_NEWNS, MS_REC | MS_PRIVATE; "size=0" would mean no limit, so a file uses up the only page.
    program = with_opening(
        """
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
            say("not allowed")
            sys.exit(0)
        if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4096"):
            say("no mount")
            sys.exit(0)
        with contextlib.suppress(OSError):
            Path("/dev/shm/full").write_bytes(bytes(8192))
        free = os.statvfs("/dev/shm").f_bavail
        folder = Path(arguments[0])
        paths = [folder / f"{number:06}" for number in range(500)]
        loader = fl.files(paths).batch(10, index=True).loader()
        native = [index for batch in loader for index in batch["index"].tolist()]
        large = fl.arrays({"number": np.arange(50)}).map(
            lambda sample: {"number": sample["number"], "large": np.zeros(MIB, np.uint8)}
        )
        with large.batch(5).loader(workers=2) as loader:
            mapped = [number for batch in loader for number in batch["number"].tolist()]
        with fl.Executor(2) as pool:
            called = [len(result) for result in pool.map(np.zeros, [MIB] * 20)]
        say([free, native == list(range(500)), mapped == list(range(50)), called == [MIB] * 20])
        """
    )

    said = trainers.answer(program, many_files, seconds=300)

    if isinstance(said, str):
        pytest.skip(f"only root may mount: {said}")
    assert said == [0, True, True, True]


# ---- threads ----

LIMITED = """
enter(arguments[1])
group = Path(arguments[1])
def limit(count):
    used = int((group / "pids.current").read_text())
    (group / "pids.max").write_text(str(used + count))
"""


@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_a_native_pipeline_runs_with_the_threads_that_it_gets(
    trainers: Trainers, many_files: Path, processes: Cgroup, allowed: int
) -> None:
    program = with_opening(LIMITED) + textwrap.dedent(
        f"""
        paths = [Path(arguments[0]) / f"{{number:06}}" for number in range(500)]
        events = []
        loader = fl.files(paths).batch(10, index=True).loader(threads=16, readers=16, on_event=events.append)
        limit({allowed})
        indices = [[index for batch in loader for index in batch["index"].tolist()] for _ in range(2)]
        refused = [event.details for event in events if event.name == "threads_refused"]
        say([indices == [list(range(500))] * 2, refused, peaks(loader)])
        """
    )

    is_right, refused, peaks = trainers.answer(program, many_files, processes, seconds=300)

    assert is_right
    assert refused == [{"wanted": 32, "got": allowed}] * 2
    assert peaks["threads"]["peak"] == allowed
    assert peaks["threads"]["budget"] == 32


def test_a_pipeline_that_gets_no_thread_says_what_holds_them(
    trainers: Trainers, many_files: Path, processes: Cgroup
) -> None:
    program = with_opening(LIMITED) + textwrap.dedent(
        """
        loader = fl.files([Path(arguments[0]) / "000000"]).batch(1).loader()
        limit(0)
        try:
            next(iter(loader))
        except fl.errors.OutOfThreadsError as error:
            say(str(error))
        """
    )

    text = trainers.answer(program, many_files, processes, seconds=300)

    for part in ("this process has 1 thread", "the control group has", "temporarily unavailable"):
        assert part in text


def test_worker_processes_do_not_take_the_threads_of_the_next_epoch(
    trainers: Trainers, processes: Cgroup, tmp_path: Path
) -> None:
    # Workers that wait for a place take each one that becomes free.
    program = with_opening(LIMITED) + textwrap.dedent(
        """
        pipeline = fl.arrays({"number": np.arange(300)}).map(lambda sample: {"number": 2 * sample["number"]})
        loader = pipeline.batch(10).loader(workers=16, threads=4)
        limit(10)
        doubled = list(range(0, 600, 2))
        rights, until = [], time.monotonic() + 10
        while len(rights) < 5 or (time.monotonic() < until and len(rights) < 40):
            rights.append(np.concatenate([batch["number"] for batch in loader]).tolist() == doubled)
        report = peaks(loader)
        loader.close()
        say([all(rights), report])
        """
    )

    is_right, peaks = trainers.answer(program, tmp_path, processes, seconds=300)

    assert is_right
    assert within(peaks, "processes", "threads")
