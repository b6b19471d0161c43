"""Death certificates name the cause of a worker's death, and call a likely cause likely."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline
import numpy as np
import pytest
from feedline import FaultPolicy
from feedline.errors import WorkerDiedError
from feedline.torch import DataLoader
from torch.utils.data import Dataset

from faults.cgroups import Cgroup
from faults.remains import eventually
from faults.sets import Drawn, Once, die, expected, is_idle, is_same, iterate, pid_of, seeded
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}


class FirstTime:
    """Performs an action at one sample, only the first time."""

    def __init__(self, marker: Path, action: Callable[[], object], index: int = 22) -> None:
        self.marker = marker
        self.action = action
        self.index = index

    def __call__(self, index: int) -> None:
        # A worker does not check its own state after every quick sample.
        time.sleep(0.0005)
        if index != self.index or self.marker.exists():
            return
        self.marker.touch()
        self.action()


def only_death(tmp_path: Path, action: Callable[[], object], **settings: Any) -> feedline.Death:
    """Runs a loader that loses nothing and returns its only death."""
    dataset = Drawn(hook=FirstTime(tmp_path / "died", action))
    loader = DataLoader(dataset, generator=seeded(1), **TWO, **settings)
    batches = list(loader)
    assert is_same(batches, expected(Drawn, **TWO)[0])
    (death,) = loader.deaths
    # Sample 22 is the third of batch 5, which is worker 1's.
    assert (death.worker, death.index, death.batch_offset, death.batch) == (1, 22, 2, 5)
    return death


def assert_mentions(death: feedline.Death, *parts: str) -> None:
    for part in (f"worker {death.worker} (pid {death.pid})", *parts):
        assert part in death.certificate
    # What a worker did while it started or had nothing to do, and calls of an Executor, cannot be replayed.
    assert death.replay.startswith("replay: loader.replay(") or (death.index is None and not death.replay)
    assert death.certificate.endswith(f"hint: {death.hint}\n{death.replay}".rstrip())


# ---- crashes ----


def read_nowhere() -> None:
    ctypes.string_at(0)


def test_the_certificate_of_a_native_crash_has_the_python_line_that_called_it(tmp_path: Path) -> None:
    death = only_death(tmp_path, read_nowhere)

    assert (death.cause, death.is_certain, death.signal) == ("crash in native code", True, "SIGSEGV")
    assert death.stack[0].startswith("string_at() at")
    assert death.code is not None
    assert death.code.startswith(f"read_nowhere() at {__file__}:")
    # The frames below the user's code are always the same and are not shown.
    assert death.stack[-1].startswith(f"__getitem__() at {Path(__file__).with_name('sets.py')}")
    assert_mentions(death, "SIGSEGV", "sample 22, offset 2 of batch 5", death.code, "Segmentation fault")


def test_an_abort_is_a_crash(tmp_path: Path) -> None:
    death = only_death(tmp_path, os.abort)

    assert (death.cause, death.is_certain, death.signal) == ("crash in native code", True, "SIGABRT")
    assert_mentions(death, "SIGABRT", "Aborted", "__call__() at")


class Mapped:
    """Reads a mapped file after it was truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> None:
        self.path.write_bytes(bytes(3 * mmap.PAGESIZE))
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            os.truncate(self.path, mmap.PAGESIZE)
            content[2 * mmap.PAGESIZE]


def test_a_mapped_file_that_is_truncated_is_a_bus_error(tmp_path: Path) -> None:
    death = only_death(tmp_path, Mapped(tmp_path / "mapped"))

    assert (death.cause, death.is_certain, death.signal) == ("bus error", True, "SIGBUS")
    assert_mentions(
        death,
        "a mapped file was truncated",
        "__call__() at",
        "check that the file of this sample is complete",
    )


def test_a_full_dev_shm_is_named_as_the_cause_of_a_bus_error(trainers: Trainers) -> None:
    # CLONE_NEWNS, MS_REC | MS_PRIVATE. A file may be made larger than the free space, but not written.
    program = """
    import ctypes, mmap, warnings
    import torch
    from feedline.torch import DataLoader
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None):
        say("not allowed")
        sys.exit(0)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=65536"):
        say("no mount")
        sys.exit(0)
    warnings.simplefilter("ignore")

    class Shared(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            path = Path("/dev/shm/large")
            if index == 5 and not path.exists():
                path.touch()
                os.truncate(path, 1 << 20)
                with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
                    for start in range(0, 1 << 20, 4096):
                        content[start] = 1
            return index

    loader = DataLoader(Shared(), num_workers=1)
    indices = [int(index) for index in loader]
    (death,) = loader.deaths
    say([indices, death.signal, death.cause, death.certificate])
    """

    said = trainers.answer(textwrap.dedent(program))

    if isinstance(said, str):
        pytest.skip(f"only root may mount: {said}")
    indices, name, cause, text = said
    assert (indices, name, cause) == (list(range(8)), "SIGBUS", "bus error")
    assert "likely because /dev/shm is full: it has 0 bytes left" in text
    assert "make /dev/shm larger" in text


# ---- signals and exits ----


def test_a_sigkill_is_likely_from_outside(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), **TWO)
    iterator = iterate(loader)
    assert eventually(lambda: is_idle(iterator, 1))
    os.kill(pid_of(iterator, 1), signal.SIGKILL)

    assert is_same(list(iterator), expected(Drawn, **TWO)[0])
    (death,) = loader.deaths
    assert (death.cause, death.is_certain, death.signal) == ("killed from outside", False, "SIGKILL")
    assert (death.stack, death.code) == ((), None)
    assert death.peak_bytes > 1 << 20
    assert_mentions(death, "SIGKILL", "while it had nothing to do", "look for the sender of SIGKILL")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_other_signals_are_likely_from_outside(tmp_path: Path, name: str) -> None:
    death = only_death(tmp_path, Kill(name))

    assert (death.cause, death.is_certain, death.signal) == ("killed from outside", False, name)
    assert_mentions(death, name, "Feedline does not send")


class Kill:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> None:
        die(self.name)


class Exit:
    def __call__(self) -> None:
        os._exit(3)


def test_a_worker_that_exits_is_reported_with_its_exit_code(tmp_path: Path) -> None:
    death = only_death(tmp_path, Exit())

    assert (death.cause, death.is_certain) == ("exited", True)
    assert (death.signal, death.exit_code) == (None, 3)
    assert_mentions(death, "exited with code 3", "sample 22", "os._exit(3)")


# ---- descriptors that code in a worker closes ----


def close_all() -> None:
    os.closerange(3, 1000)


def close_all_and_open_others() -> None:
    """Opens other files under the numbers of the worker's socket and crash log."""
    os.closerange(3, 1000)
    for _ in range(10):
        # They stay open until the process ends.
        os.memfd_create("other")
        for end in socket.socketpair():
            end.detach()


def close_all_and_raise() -> None:
    os.closerange(3, 1000)
    raise OSError("the file was closed")


@pytest.mark.parametrize("action", [close_all, close_all_and_open_others, close_all_and_raise])
def test_a_sample_that_closes_the_descriptors_of_its_worker_is_named(
    tmp_path: Path, action: Callable[[], object]
) -> None:
    death = only_death(tmp_path, action)

    assert (death.cause, death.is_certain) == ("descriptors closed", True)
    assert_mentions(
        death, "closed its descriptors", "at sample 22", "connection to the trainer", "os.closerange()"
    )


def test_all_quick_samples_that_may_have_closed_the_descriptors_are_named(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "closed"

    class Quick(Dataset[int]):
        def __len__(self) -> int:
            return 8000

        def __getitem__(self, index: int) -> int:
            if index == 6001 and not marker.exists():
                marker.touch()
                os.closerange(3, 1000)
            return index

    loader = DataLoader(Quick(), batch_size=4000, num_workers=1)
    assert [int(batch.sum()) for batch in loader] == [7998000, 23998000]
    (death,) = loader.deaths
    assert death.cause == "descriptors closed"
    # Either sample is right; no other one is ever blamed.
    assert death.index == 6001 or isinstance(death.index, list)


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_call_that_closes_the_descriptors_of_its_worker_is_named(tmp_path: Path, chunksize: int) -> None:
    close = FirstTime(tmp_path / "closed", close_all)

    def call(number: int) -> int:
        close(number)
        return number

    with feedline.map(call, range(40), workers=2, chunksize=chunksize) as results:
        assert list(results) == list(range(40))
        (death,) = results.deaths
    assert death.cause == "descriptors closed"
    assert_mentions(death, "call(22)", "connection to the trainer")


def test_a_function_of_map_that_closes_the_descriptors_of_its_worker_is_named(tmp_path: Path) -> None:
    close = FirstTime(tmp_path / "closed", close_all)

    def call(sample: dict[str, Any]) -> dict[str, Any]:
        close(int(sample["x"]))
        return sample

    pipeline = feedline.arrays({"x": np.arange(40)}).map(call).batch(4)
    with pipeline.loader(workers=2) as loader:
        assert [number for batch in loader for number in batch["x"]] == list(range(40))
        report = loader.report()
    assert report.workers_lost == {"descriptors closed": 1}
    (line,) = report.deaths
    assert "closed its descriptors at sample 22" in line


@pytest.mark.parametrize("settings", [{"collate_fn": 4}, {"worker_init_fn": 1}], ids=str)
def test_descriptors_closed_outside_of_samples_are_reported_with_the_stage(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    ((name, at),) = settings.items()

    def hook(given: Any) -> Any:
        first = given[0]["index"] if isinstance(given, list) else given
        FirstTime(tmp_path / "closed", close_all, at)(first)
        return given

    arguments: dict[str, Any] = {**TWO, name: hook}
    loader = DataLoader(Drawn(20), **arguments)
    assert sum(len(batch) for batch in loader) == 20
    (death,) = loader.deaths
    assert death.cause == "descriptors closed"
    assert death.index is None or name == "collate_fn"
    assert_mentions(death, {"collate_fn": "collated", "worker_init_fn": "while starting"}[name])


def test_a_stack_is_not_written_to_a_file_that_took_the_number_of_the_crash_log(tmp_path: Path) -> None:
    """Only the descriptor of the crash log is closed: the worker continues without it."""

    class Closes(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 2:
                for descriptor in list(Path("/proc/self/fd").iterdir()):
                    with contextlib.suppress(OSError):
                        if "feedline-crash-log" in str(descriptor.readlink()):
                            other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
                            os.dup2(other, int(descriptor.name))
            if index == 6:
                die("SIGSEGV")
            return index

    loader = DataLoader(Closes(), batch_size=2, num_workers=1, faults=FaultPolicy("skip"))
    numbers = {number for batch in loader for number in batch.tolist()}
    # Another sample has replaced the bad one.
    assert numbers == {0, 1, 2, 3, 4, 5, 7}
    assert (tmp_path / "other").read_bytes() == b""


# ---- limits ----


class LimitProcessor:
    """A worker_init_fn that allows the worker little more processor time than it has used."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, worker: int) -> None:
        import resource

        if worker == 1 and not self.marker.exists():
            self.marker.touch()
            resource.setrlimit(resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))


def compute_for_ever() -> None:
    while True:
        pass


def test_an_exceeded_limit_of_processor_time_is_named(tmp_path: Path) -> None:
    limit = LimitProcessor(tmp_path / "limited")
    death = only_death(tmp_path, compute_for_ever, worker_init_fn=limit)

    assert (death.cause, death.signal) == ("limit of the system", "SIGXCPU")
    # Only the worker has this limit, not the trainer.
    assert death.is_certain is False
    assert_mentions(
        death, "SIGXCPU", "likely limit of the system", "processor time", "max_samples_per_worker="
    )


def test_a_limit_of_address_space_is_named_when_native_code_dies_of_it(trainers: Trainers) -> None:
    program = """
    import ctypes, resource, warnings
    import torch
    from feedline.torch import DataLoader
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (32 << 30, resource.RLIM_INFINITY))

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index == 5:
                libc = ctypes.CDLL(None)
                libc.malloc.restype = ctypes.c_void_p
                libc.malloc.argtypes = [ctypes.c_size_t]
                # Like code that does not check whether an allocation succeeded.
                ctypes.memset(libc.malloc(64 << 30), 1, 4096)
            return index

    loader = DataLoader(Large(), num_workers=1, faults=fl.FaultPolicy("skip"))
    indices = [int(index) for index in loader]
    say([indices, loader.deaths[-1].cause, loader.deaths[-1].certificate])
    """

    indices, cause, text = trainers.answer(textwrap.dedent(program))

    assert sorted(indices) == [0, 1, 2, 3, 4, 6, 7]
    assert cause == "crash in native code"
    assert "the address space is limited to 32.0 GiB" in text


def test_a_memory_error_from_a_limit_of_address_space_is_raised_unless_by_type_names_it(
    trainers: Trainers,
) -> None:
    program = """
    import resource, warnings
    import torch
    from feedline.torch import DataLoader
    resource.setrlimit(resource.RLIMIT_AS, (32 << 30, resource.RLIM_INFINITY))

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return len(bytearray(64 << 30)) if index == 5 else index

    warnings.simplefilter("ignore")
    try:
        list(DataLoader(Large(), num_workers=1, faults=fl.FaultPolicy("skip")))
    except MemoryError as error:
        raised = str(error)
    policy = fl.FaultPolicy(by_type={MemoryError: "skip"})
    loader = DataLoader(Large(), num_workers=1, faults=policy)
    indices = [int(index) for index in loader]
    faults = [[fault.index, fault.kind] for fault in loader.report().faults]
    say([raised, indices, faults, len(loader.deaths)])
    """

    raised, indices, faults, deaths = trainers.answer(textwrap.dedent(program))

    assert "short of memory" in raised
    assert "sample 5" in raised
    assert (sorted(indices), faults, deaths) == ([0, 1, 2, 3, 4, 6, 7], [[5, "MemoryError"]], 0)


# ---- out of memory ----

LIMIT = 600 << 20


@pytest.fixture
def group(memory: Cgroup) -> Cgroup:
    """A control group with little memory."""
    memory.limit(LIMIT)
    return memory


HUNGRY = """
import contextlib, warnings
import torch
from feedline.torch import DataLoader
(Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))
warnings.simplefilter("ignore")

class Hungry(torch.utils.data.Dataset):
    def __init__(self, marker=None):
        self.marker = marker
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 22 and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            # Write to each piece, so that its pages exist.
            kept = []
            while True:
                kept.append(bytearray(os.urandom(1)) * (8 << 20))
        return index
"""


@pytest.mark.alone
def test_a_worker_killed_out_of_memory_is_reported_and_the_epoch_continues(
    trainers: Trainers, group: Cgroup, tmp_path: Path
) -> None:
    program = HUNGRY + textwrap.dedent(
        """
        loader = DataLoader(Hungry(arguments[1]), batch_size=4, num_workers=2)
        running = iter(loader)
        # One batch from each worker.
        batches = [next(running), next(running)]
        scores = [int(Path(f"/proc/{worker.pid}/oom_score_adj").read_text()) for worker in running._workers]
        indices = [int(index) for batch in [*batches, *running] for index in batch]
        (death,) = loader.deaths
        own = int(Path("/proc/self/oom_score_adj").read_text())
        say([indices, scores, own, death.cause, death.index, death.peak_bytes, death.certificate,
             loader.report().workers_lost])
        """
    )
    own_score = int(Path("/proc/self/oom_score_adj").read_text())

    indices, scores, own, cause, index, peak, text, lost = trainers.answer(
        program, group, tmp_path / "marker", seconds=50
    )

    assert indices == list(range(40))
    # The kernel must choose a worker among the processes of the cgroup.
    assert (scores, own) == ([1000, 1000], own_score)
    assert (cause, index) == ("out of memory", 22)
    # Memory shared with the trainer comes on top of the memory charged to the cgroup.
    assert peak > LIMIT // 2
    for part in (
        "SIGKILL",
        "sample 22",
        "likely out of memory",
        "the kernel killed 1 process of this memory cgroup",
        "600.0 MiB allowed",
        "lower num_workers=2",
    ):
        assert part in text
    assert lost == {"out of memory": 1}


@pytest.mark.alone
def test_a_sample_that_always_needs_too_much_memory_is_skipped_as_a_fault(
    trainers: Trainers, group: Cgroup
) -> None:
    program = HUNGRY + textwrap.dedent(
        """
        loader = DataLoader(Hungry(), batch_size=4, num_workers=2, faults=fl.FaultPolicy("skip", fill=False))
        indices = [int(index) for batch in loader for index in batch]
        (fault,) = loader.report().faults
        say([indices, fault.index, fault.kind, fault.reason])
        """
    )

    indices, index, kind, reason = trainers.answer(program, group, seconds=200)

    assert indices == [index for index in range(40) if index != 22]
    assert (index, kind) == (22, "WorkerDiedError")
    assert "out of memory" in reason


# ---- the certificate itself ----


def test_a_certificate_is_plain_data_for_logs() -> None:
    death = feedline.Death(worker=1, pid=7, signal="SIGKILL", stage="fetching", index=("a", 3), why=("so",))

    fields = death.to_dict()

    assert fields["index"] == "('a', 3)"
    assert (fields["why"], fields["text"]) == (["so"], str(death))
    assert "tasks" not in fields


def test_the_error_that_ends_a_run_is_the_certificate(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=Once(tmp_path / "died", "SIGBUS", 22)), on_death="raise", **TWO)
    with pytest.raises(WorkerDiedError) as caught:
        list(loader)

    (death,) = loader.deaths
    first, *others = death.certificate.splitlines()
    assert str(caught.value).splitlines()[0] == first
    for line in others:
        assert line in str(caught.value)


def test_the_report_counts_deaths_by_their_cause(tmp_path: Path) -> None:
    class Both:
        def __call__(self, index: int) -> None:
            FirstTime(tmp_path / "one", Exit(), 5)(index)
            FirstTime(tmp_path / "other", read_nowhere, 30)(index)

    loader = DataLoader(Drawn(hook=Both()), faults=FaultPolicy("skip"), **TWO)
    list(loader)

    report = loader.report()
    assert report.workers_lost == {"exited": 1, "crash in native code": 1}
    assert len(report.deaths) == 2
