"""Runs on systems with few descriptors, little shared memory, little memory or few processes."""

from __future__ import annotations

import textwrap

import pytest

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = pytest.mark.timeout(300)

# Batches of 8 KB: too large for a frame, so they are in shared memory.
SETS = """
import contextlib, ctypes, gc, resource, warnings
import torch
from feedline.torch import DataLoader

class Whole(torch.utils.data.Dataset):
    def __init__(self, count, numbers):
        self.count, self.numbers = count, numbers
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((self.numbers,), float(index)), torch.full((self.numbers,), index)

def is_right(batches, count):
    batches = list(batches)
    return len(batches) == count and all(
        bool((one == number).all() and (other == number).all())
        for number, (one, other) in enumerate(batches)
    )
"""


def with_sets(program: str, opening: str = "") -> str:
    return SETS + opening + textwrap.dedent(program)


def test_all_batches_can_be_kept_with_few_descriptors(trainers: Trainers) -> None:
    program = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    before = descriptors()
    loader = DataLoader(Whole(5000, 1000), num_workers=2)
    batches = list(loader)
    say([is_right(batches, 5000), descriptors() - before])
    """

    assert trainers.answer(with_sets(program), seconds=200) == [True, 0]


def test_the_number_of_descriptors_does_not_grow_with_the_batches(trainers: Trainers) -> None:
    program = """
    running = iter(DataLoader(Whole(400, 1000), num_workers=2))
    kept, counts = [], set()
    for batch in running:
        kept.append(batch)
        if 10 < len(kept) < 390:
            counts.add(descriptors())
    say([is_right(kept, 400), len(counts), max(counts)])
    """

    right, different, most = trainers.answer(with_sets(program))

    assert (right, different) == (True, 1)
    assert most < 64


def test_batches_need_no_space_in_dev_shm(trainers: Trainers) -> None:
    # CLONE_NEWNS, MS_REC | MS_PRIVATE; "size=0" would mean no limit, so a file uses up the only page.
    program = """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
        say("not allowed")
        sys.exit(0)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4096"):
        say("no mount")
        sys.exit(0)
    with contextlib.suppress(OSError):
        Path("/dev/shm/full").write_bytes(bytes(8192))
    size = os.statvfs("/dev/shm")
    say([size.f_bavail, is_right(DataLoader(Whole(100, 100_000), num_workers=2), 100)])
    """

    said = trainers.answer(with_sets(program))

    if isinstance(said, str):
        pytest.skip(f"only root may mount: {said}")
    assert said == [0, True]


def test_arenas_stay_within_the_budget_when_every_batch_is_kept(trainers: Trainers) -> None:
    program = """
    def arena_bytes():
        files = {}
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "feedline-arena" in line:
                status = os.stat("/proc/self/map_files/" + line.split()[0])
                files[status.st_ino] = status.st_blocks * 512
        return sum(files.values())
    kept, most = [], 0
    # 100 batches of 3 MB.
    for batch in DataLoader(Whole(100, 250_000), num_workers=2, memory="64MiB"):
        kept.append(batch)
        most = max(most, arena_bytes())
    say([is_right(kept, 100), most])
    """

    right, most = trainers.answer(with_sets(program), seconds=200)

    assert right
    # The flags of the slots come on top.
    assert 1 << 20 < most <= (64 << 20) + 2 * 8192


def test_a_batch_larger_than_the_budget_is_delivered(trainers: Trainers) -> None:
    program = """
    say(is_right(DataLoader(Whole(12, 1_000_000), num_workers=2, memory="1MiB"), 12))
    """

    assert trainers.answer(with_sets(program)) is True


# ---- processes ----


# The trainer, a thread that raises the limit, the watching thread and the zygote: no room for a worker.
REFUSED = """
group = Path(arguments[0])
(group / "cgroup.procs").write_text(str(os.getpid()))
may_grow = threading.Event()
grown = []
def grow():
    may_grow.wait()
    limit = time.monotonic() + 1
    while time.monotonic() < limit:
        time.sleep(0.05)
    grown.append(time.monotonic())
    (group / "pids.max").write_text("max")
thread = threading.Thread(target=grow)
thread.start()
(group / "pids.max").write_text("4")
running = iter(DataLoader(Whole(20, 1000), num_workers=2))
"""


def test_the_run_continues_when_forks_are_refused_for_a_moment(trainers: Trainers, processes: Cgroup) -> None:
    program = """
    may_grow.set()
    first = next(running)
    came = time.monotonic()
    say([is_right([first, *running], 20), came > grown[0]])
    """

    right, waited = trainers.answer(with_sets(program, REFUSED), processes, seconds=200)

    assert (right, waited) == (True, True)


def test_the_run_ends_when_forks_are_refused_for_long(trainers: Trainers, processes: Cgroup) -> None:
    program = """
    try:
        next(running)
    except fl.errors.WorkerNotStartedError as error:
        may_grow.set()
        thread.join()
        say(str(error))
    """

    text = trainers.answer(with_sets(program, REFUSED), processes, seconds=200)

    assert "Resource temporarily unavailable" in text
    assert "hint" in text
