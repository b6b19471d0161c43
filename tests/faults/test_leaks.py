"""Workers that leak are renewed in time and without a pause, and the batches stay the same."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from feedline import Event, Executor, FaultPolicy
from feedline._torch.supervised import WithWorkers
from feedline.errors import WorkerDiedError
from feedline.torch import DataLoader

from faults.cgroups import Cgroup
from faults.remains import children, eventually, has_ended, zygote_of
from faults.sets import Drawn, Listed, Once, Streamed, expected, is_same, iterate, pid_of, seeded
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
# Enough samples that successors also work.
COUNT = 96
# Few enough that each worker is renewed when a third of the samples is delivered.
FEW: dict[str, Any] = {**TWO, "max_samples_per_worker": 8}


class Many(Drawn):
    def __init__(self, count: int = COUNT, **arguments: Any) -> None:
        super().__init__(count, **arguments)


class ManyListed(Listed):
    def __init__(self, count: int = COUNT, **arguments: Any) -> None:
        super().__init__(count, **arguments)


class ManyStreamed(Streamed):
    def __init__(self, count: int = COUNT, **arguments: Any) -> None:
        super().__init__(count, **arguments)


class Notes:
    """A file to which all workers append lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *items: object) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, items)) + "\n")

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]


class Signed:
    """Notes for each sample which worker made it."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, index: int) -> None:
        self.notes.add(os.getpid(), index)


class Started:
    """A worker_init_fn that notes whether the predecessor of the worker is alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = Notes(folder / "starts")

    def __call__(self, worker: int) -> None:
        place = self.folder / f"worker-{worker}"
        if place.exists():
            self.notes.add("alone" if has_ended(int(place.read_text())) else "together")
        place.write_text(str(os.getpid()))


def pids(iterator: WithWorkers) -> list[int]:
    return [pid_of(iterator, worker) for worker in range(2)]


def are_others(iterator: WithWorkers, old: list[int]) -> bool:
    """Whether every worker was replaced and no old process is left."""
    is_gone = not any(Path(f"/proc/{pid}").exists() for pid in old)
    return is_gone and not set(pids(iterator)) & set(old)


def take_with_others(loader: DataLoader[Any]) -> list[Any]:
    """Takes all batches, and waits after some of them until each worker was renewed."""
    iterator = iterate(loader)
    old = pids(iterator)
    batches = [next(iterator) for _ in range(8)]
    assert eventually(lambda: are_others(iterator, old))
    # The zygote reports their end after it has reaped them.
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))
    return [*batches, *iterator]


def renewal_texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if event.name == "worker_renewed"]


# ---- max_samples_per_worker ----


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Many, {"shuffle": True}),
        (ManyListed, {}),
        (ManyStreamed, {}),
        (ManyStreamed, {"batch_size": 5, "drop_last": True}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else ",".join(value),
)
def test_batches_are_the_same_bit_for_bit_when_workers_are_renewed(
    kind: type[Any], settings: dict[str, Any]
) -> None:
    settings = {**TWO, **settings}
    events: list[Event] = []
    loader = DataLoader(
        kind(), generator=seeded(1), max_samples_per_worker=8, on_event=events.append, **settings
    )
    with warnings.catch_warnings():
        # No worker dies, so there is no warning.
        warnings.simplefilter("error")
        batches = take_with_others(loader)

    assert is_same(batches, expected(kind, **settings)[0])
    assert loader.deaths == []
    texts = renewal_texts(events)
    assert texts
    assert loader.report().renewed == tuple(texts)


def test_without_order_every_batch_comes_once_when_workers_are_renewed() -> None:
    events: list[Event] = []
    loader = DataLoader(Many(), in_order=False, on_event=events.append, **FEW)

    indices = sorted(batch["index"].tolist() for batch in take_with_others(loader))

    assert indices == [list(range(first, first + 4)) for first in range(0, COUNT, 4)]
    assert renewal_texts(events)


def test_persistent_workers_are_renewed_in_any_epoch_with_the_same_batches() -> None:
    settings: dict[str, Any] = {**TWO, "persistent_workers": True, "shuffle": True}
    right = expected(Drawn, epochs=4, **settings)
    events: list[Event] = []
    loader = DataLoader(
        Drawn(), generator=seeded(1), max_samples_per_worker=20, on_event=events.append, **settings
    )

    for epoch in range(4):
        iterator = iterate(loader)
        old = pids(iterator)
        assert is_same(list(iterator), right[epoch]), f"epoch {epoch}"
        assert eventually(functools.partial(are_others, iterator, old))
    assert renewal_texts(events)
    assert loader.deaths == []


def test_the_successor_is_ready_before_the_old_worker_ends(tmp_path: Path) -> None:
    started = Started(tmp_path)
    iterator = iterate(DataLoader(Many(), worker_init_fn=started, **FEW))
    old = pids(iterator)
    for _ in range(8):
        next(iterator)
    assert eventually(lambda: are_others(iterator, old))

    # Read the notes now: a worker that starts at the end of the epoch may find its predecessor gone.
    starts = started.notes.lines()
    assert starts == [["together"]] * len(starts)
    assert len(starts) >= 2


def test_no_sample_is_made_twice_because_a_worker_is_renewed(tmp_path: Path) -> None:
    made = Notes(tmp_path / "made")
    take_with_others(DataLoader(Many(hook=Signed(made)), **FEW))

    assert sorted(int(index) for _, index in made.lines()) == list(range(COUNT))


def test_the_event_names_the_batches_and_samples_that_the_old_worker_has_made(tmp_path: Path) -> None:
    made = Notes(tmp_path / "made")
    events: list[Event] = []
    loader = DataLoader(Many(hook=Signed(made)), on_event=events.append, **FEW)
    take_with_others(loader)

    renewals = [event for event in events if event.name == "worker_renewed"]
    ranges = []
    for event in renewals:
        found = re.search(r"between batch (\d+) and batch (\d+), samples (\d+) to (\d+)$", event.text)
        assert found is not None, event.text
        first_batch, last_batch, first, last = map(int, found.groups())
        assert (first // 4, last // 4) == (first_batch, last_batch)
        assert event.text.startswith(f"worker {event.details['worker']} ")
        ranges.append((first, last))
    # The first incarnation of each worker started with the worker's first batch.
    by_pid: dict[str, list[int]] = {}
    for pid, index in made.lines():
        by_pid.setdefault(pid, []).append(int(index))
    for batch in (0, 1):
        (indices,) = [indices for indices in by_pid.values() if indices[0] == 4 * batch]
        assert [last for first, last in ranges if first == 4 * batch and last >= indices[7]]


def test_renewal_and_deaths_together_lose_nothing() -> None:
    draws = random.Random(77)
    right = expected(Many, shuffle=True, **TWO)[0]
    loader = DataLoader(Many(), generator=seeded(1), shuffle=True, max_deaths=1000, **FEW)
    iterator = iterate(loader)
    batches = []
    for number, batch in enumerate(iterator):
        batches.append(batch)
        if number % 3 == 1 and number < 20:
            # Any process: worker, predecessor or successor.
            found = sorted(children(zygote_of(pid_of(iterator, draws.randrange(2)))))
            os.kill(draws.choice(found), signal.SIGKILL)

    assert is_same(batches, right)
    assert loader.deaths


class OnlyTheFirst:
    """A worker_init_fn that lets only the first two workers start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: int) -> None:
        try:
            (self.folder / str(worker)).touch(exist_ok=False)
        except FileExistsError:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_stays_while_no_successor_can_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**TWO, "worker_init_fn": OnlyTheFirst(tmp_path)}
    loader = DataLoader(Drawn(), generator=seeded(1), max_samples_per_worker=4, **settings)

    assert is_same(list(loader), expected(Drawn, **TWO)[0])


def test_a_killer_is_judged_while_workers_are_renewed() -> None:
    loader = DataLoader(Many(hook=Kills()), faults=FaultPolicy("skip", fill=False), **FEW)
    batches = take_with_others(loader)

    indices = [index for batch in batches for index in batch["index"].tolist()]
    assert indices == [index for index in range(COUNT) if index != 57]
    assert [fault.index for fault in loader.report().faults] == [57]


class Kills:
    def __call__(self, index: int) -> None:
        if index == 57:
            os.kill(os.getpid(), signal.SIGKILL)


# ---- memory ----


class Leaks:
    """Keeps some megabytes for each sample, and is slow, because memory is checked only now and then."""

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    def __call__(self, _index: int) -> None:
        self.kept.append(bytearray(b"x") * (4 << 20))
        time.sleep(0.02)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def test_a_worker_above_its_memory_limit_is_renewed_with_the_same_batches() -> None:
    with Executor(1) as pool:
        # The memory of a worker that has done nothing.
        limit = pool.submit(resident_bytes).result() + (16 << 20)
    events: list[Event] = []
    loader = DataLoader(
        Many(hook=Leaks()),
        generator=seeded(1),
        shuffle=True,
        max_worker_memory=limit,
        on_event=events.append,
        **TWO,
    )

    assert is_same(take_with_others(loader), expected(Many, shuffle=True, **TWO)[0])
    texts = renewal_texts(events)
    assert texts
    assert all("max_worker_memory is" in text for text in texts)
    assert loader.deaths == []


# ---- descriptors ----


def test_a_worker_that_leaks_descriptors_is_renewed_and_the_event_names_the_samples(
    trainers: Trainers,
) -> None:
    # It leaks beyond the allowed share of its descriptors, but not to the last one: the machine decides
    # when its successor is ready.
    program = """
    import resource, warnings
    import torch
    from feedline.torch import DataLoader
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    class Leaking(torch.utils.data.Dataset):
        kept = []
        def __len__(self):
            return 600
        def __getitem__(self, index):
            if len(self.kept) < 100:
                self.kept.append(open("/dev/null"))
            time.sleep(0.001)
            return index

    events = []
    loader = DataLoader(Leaking(), batch_size=4, num_workers=2, on_event=events.append)
    indices = [int(index) for batch in loader for index in batch]
    say([indices == list(range(600)), [event.text for event in events if event.name == "worker_renewed"],
         len(loader.deaths)])
    """

    is_right, texts, deaths = trainers.answer(textwrap.dedent(program))

    assert (is_right, deaths) == (True, 0)
    assert texts
    for text in texts:
        found = re.search(
            r"its open descriptors grew from (\d+) to (\d+), and the system allows 128, "
            r"between batch \d+ and batch \d+, samples \d+ to \d+",
            text,
        )
        assert found is not None, text
        assert int(found[1]) < int(found[2]) <= 128


# ---- out of memory ----


@pytest.fixture
def group(memory: Cgroup) -> Cgroup:
    """A control group with little memory."""
    memory.limit(512 << 20)
    return memory


@pytest.mark.alone
def test_when_memory_runs_short_the_worker_that_has_grown_most_is_renewed(
    trainers: Trainers, group: Cgroup
) -> None:
    # Only worker 1 leaks.
    program = """
    import warnings
    import torch
    from feedline.torch import DataLoader
    group = Path(arguments[0])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    warnings.simplefilter("error")

    class Leaking(torch.utils.data.Dataset):
        kept = []
        def __len__(self):
            return 200
        def __getitem__(self, index):
            if torch.utils.data.get_worker_info().id == 1:
                # Until memory is short, but not to the last byte: the machine decides when memory is checked.
                large = 16 if left() > 64 << 20 else 1 if left() > 20 << 20 else 0
                self.kept.append(bytearray(b"x") * (large << 20))
                time.sleep(0.02 if large < 16 else 0)
            return index

    def left():
        return (512 << 20) - int((group / "memory.usage_in_bytes").read_text())

    events = []
    loader = DataLoader(Leaking(), batch_size=1, num_workers=2, on_event=events.append)
    indices = [int(index) for batch in loader for index in batch]
    renewed = [[event.details["worker"], event.text] for event in events if event.name == "worker_renewed"]
    killed = [line.split()[1] for line in (group / "memory.oom_control").read_text().splitlines()
              if line.startswith("oom_kill ")]
    say([indices == list(range(200)), renewed, len(loader.deaths), killed])
    """

    is_right, renewals, deaths, killed = trainers.answer(textwrap.dedent(program), group, seconds=200)

    assert (is_right, deaths) == (True, 0)
    assert killed in ([], ["0"])
    assert renewals
    for worker, text in renewals:
        assert worker == 1
        assert "of memory was left for all processes, and it held" in text


# ---- on_death="raise" ----


def test_renewal_is_not_a_death_with_on_death_raise(tmp_path: Path) -> None:
    loader = DataLoader(Many(), generator=seeded(1), on_death="raise", max_deaths=0, **FEW)
    assert is_same(take_with_others(loader), expected(Many, **TWO)[0])

    other = DataLoader(Many(hook=Once(tmp_path / "died", "SIGKILL", 90)), on_death="raise", **FEW)
    with pytest.raises(WorkerDiedError, match="sample 90"):
        list(other)
