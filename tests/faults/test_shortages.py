"""Functions and data sets that run in the trainer and meet a shortage of the machine: memory, threads or
descriptors. Every sample comes after a step back, and none is judged as bad."""

from __future__ import annotations

import collections
import contextlib
import errno
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch.utils.data
from feedline import Event, FaultPolicy
from feedline.torch import DataLoader

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.ResourceShortageWarning"),
    pytest.mark.timeout(300),
]

COUNT = 12
MIB = 1 << 20

SHORTAGES: dict[str, Callable[[], BaseException]] = {
    "EMFILE": lambda: OSError(errno.EMFILE, "Too many open files"),
    "ENFILE": lambda: OSError(errno.ENFILE, "Too many open files in system"),
    "ENOMEM": lambda: OSError(errno.ENOMEM, "Cannot allocate memory"),
    "MemoryError": MemoryError,
    "torch": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    "threads": lambda: RuntimeError("can't start new thread"),
}


class Short:
    """Changes its sample and then raises, the first times that it is called for samples 3 and 7."""

    def __init__(self, make: Callable[[], BaseException], times: int) -> None:
        self.make = make
        self.times = times
        self.calls: collections.Counter[int] = collections.Counter()
        self.lock = threading.Lock()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        number = int(np.ravel(sample["number"])[0])
        with self.lock:
            self.calls[number] += 1
            calls = self.calls[number]
        sample["values"] += 1
        if number in (3, 7) and calls <= self.times:
            raise self.make()
        return sample


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, function: Short) -> None:
        self.function = function

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.function({"number": index, "values": np.full(4, index)})


def pipeline(function: Short, faults: FaultPolicy | None, events: list[Event], *, batched: bool) -> Any:
    values = np.repeat(np.arange(COUNT), 4).reshape(COUNT, 4)
    source = fl.arrays({"number": np.arange(COUNT), "values": values})
    if batched:
        made = source.batch(1).map_batch(function, threads=True)
    else:
        made = source.map(function, threads=True).batch(1)
    return made.loader(workers=2, faults=faults, on_event=events.append)


def loader_of(front: str, function: Short, faults: FaultPolicy | None, events: list[Event]) -> Any:
    if front == "torch":
        return DataLoader(Items(function), 1, faults=faults, on_event=events.append)
    return pipeline(function, faults, events, batched=front == "map_batch")


@pytest.mark.parametrize("front", ["torch", "map", "map_batch"])
@pytest.mark.parametrize("faults", [None, FaultPolicy("skip")], ids=["plain", "policy"])
@pytest.mark.parametrize("kind", SHORTAGES)
def test_a_shortage_is_one_event_and_its_sample_is_made_again_from_the_original(
    front: str, faults: FaultPolicy | None, kind: str
) -> None:
    events: list[Event] = []
    function = Short(SHORTAGES[kind], times=2)
    loader = loader_of(front, function, faults, events)

    rows = [(int(batch["number"][0]), batch["values"][0].tolist()) for batch in loader]

    assert rows == [(number, [number + 1] * 4) for number in range(COUNT)]
    assert function.calls[3] == function.calls[7] == 3
    assert sum(function.calls.values()) == COUNT + 4
    report = loader.report()
    assert (report.skipped, len(report.faults)) == (0, 0)
    (met,) = [event for event in events if event.name == "shortage_met"]
    assert met.details["resource"] in met.text
    # The next epoch reports it again.
    function.calls.clear()
    assert len(list(loader)) == COUNT
    assert len([event for event in events if event.name == "shortage_met"]) == 2
    if front != "torch":
        loader.close()


@pytest.mark.parametrize("front", ["torch", "map", "map_batch"])
@pytest.mark.parametrize("faults", [None, FaultPolicy("skip")], ids=["plain", "policy"])
def test_a_shortage_that_stays_is_raised_with_what_holds_the_descriptors(
    front: str, faults: FaultPolicy | None, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    loader = loader_of(front, Short(SHORTAGES["EMFILE"], times=1000), faults, [])

    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(held.open("a"))
        if front != "torch":
            stack.enter_context(loader)
        with pytest.raises(OSError, match="Too many open files") as caught:
            list(loader)

    text = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    for part in ("short of descriptors", "this sample is not the cause", f"{held} (20)"):
        assert part in text
    assert loader.report().skipped == 0


def test_a_policy_that_names_a_shortage_decides() -> None:
    faults = FaultPolicy(by_type={MemoryError: "skip"}, fill=False)
    loader = pipeline(Short(MemoryError, times=1000), faults, [], batched=False)
    with loader:
        numbers = [int(number) for batch in loader for number in batch["number"]]
    assert numbers == [number for number in range(COUNT) if number not in (3, 7)]


def test_closing_does_not_wait_for_a_sample_that_waits_to_run_alone() -> None:
    # One thread wants to run alone, and another is in a function that does not end.
    began, go_on = threading.Event(), threading.Event()

    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["number"]) == 1:
            began.set()
            go_on.wait()
        if int(sample["number"]) == 2:
            began.wait()
            raise MemoryError
        return sample

    loader = fl.arrays({"number": np.arange(4)}).map(function, threads=True).batch(1).loader(workers=2)
    running = iter(loader)
    next(running)
    began.wait()
    loader.close()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("feedline-map"):
            thread.join(60)
            assert not thread.is_alive()


# ---- real limits ----

OPENING = """
import resource, warnings
import numpy as np
warnings.simplefilter("ignore")
MIB = 1 << 20
events = []

def address_space():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize:"))

def run(function, count):
    loader = fl.arrays({"number": np.arange(count)}).map(function, threads=True).batch(2).loader(
        workers=4, threads=1, readers=1, faults=FAULTS, on_event=events.append)
    found = [int(number) for batch in loader for number in batch["number"]]
    met = [event.details["resource"] for event in events if event.name == "shortage_met"]
    say([found, met, loader.report().skipped])
    loader.close()
"""


def program(text: str, faults: str) -> str:
    return OPENING + f"FAULTS = {faults}\n" + textwrap.dedent(text)


@pytest.mark.parametrize("faults", ["None", "fl.FaultPolicy('skip')"], ids=["plain", "policy"])
def test_threads_take_turns_if_only_one_has_enough_descriptors(trainers: Trainers, faults: str) -> None:
    text = """
    resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

    def function(sample):
        opened = []
        try:
            for _ in range(50):
                opened.append(open("/dev/null"))
            # The others need theirs at the same time.
            time.sleep(0.02)
        finally:
            for file in opened:
                file.close()
        return sample

    run(function, 16)
    """

    found, met, skipped = trainers.answer(program(text, faults), seconds=200)

    assert found == list(range(16))
    assert met == ["descriptors"]
    assert skipped == 0


@pytest.mark.parametrize("faults", ["None", "fl.FaultPolicy('skip')"], ids=["plain", "policy"])
def test_threads_take_turns_if_only_one_fits_into_the_address_space(trainers: Trainers, faults: str) -> None:
    text = """
    import threading
    all_run, began = threading.Barrier(4), set()

    def function(sample):
        number = int(sample["number"])
        if number in (0, 2, 4, 6) and number not in began:
            began.add(number)
            # Not before the threads and their stacks are there.
            if all_run.wait() == 0:
                resource.setrlimit(resource.RLIMIT_AS, (address_space() + 300 * MIB, resource.RLIM_INFINITY))
            all_run.wait()
        kept = bytearray(200 * MIB)
        time.sleep(0.02)
        return {"number": number + kept[-1]}

    run(function, 16)
    """

    found, met, skipped = trainers.answer(program(text, faults), seconds=200)

    assert found == list(range(16))
    assert met == ["memory"]
    assert skipped == 0


@pytest.mark.parametrize("allowed", [1, 3])
def test_functions_run_in_the_threads_that_the_system_allows(
    trainers: Trainers, processes: Cgroup, allowed: int
) -> None:
    text = f"""
    group = Path(arguments[0])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    loader = fl.arrays({{"number": np.arange(100)}}).map(lambda sample: sample, threads=True).batch(5).loader(
        workers=8, threads=1, readers=1, on_event=events.append)
    running = iter(loader)
    used = int((group / "pids.current").read_text())
    (group / "pids.max").write_text(str(used + {allowed}))
    found = [int(number) for batch in running for number in batch["number"]]
    refused = [(event.details["wanted"], event.details["got"]) for event in events
               if event.name == "threads_refused"]
    say([found, refused])
    loader.close()
    """

    found, refused = trainers.answer(program(text, "None"), processes, seconds=200)

    assert found == list(range(100))
    assert refused == [[8, allowed]]
