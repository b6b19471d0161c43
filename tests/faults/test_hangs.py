"""Workers that make no progress: samples that hang, hold the GIL, or wait for a lock that no thread holds."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feedline import Event, FaultPolicy
from feedline.errors import DeadlineExceededError, WorkerStalledWarning
from feedline.torch import DataLoader

from faults.remains import eventually, has_ended
from faults.sets import Drawn, Listed, Streamed, expected, is_idle, is_same, iterate, pid_of, seeded
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
SKIP = FaultPolicy("skip", fill=False)
# Long enough that a healthy sample on a busy machine is never late by chance.
DEADLINE = 2.5


def sleep_for_ever() -> None:
    while True:
        time.sleep(1000)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def backtrack() -> None:
    """Hangs in C code that holds the GIL and checks no signals."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def add_up() -> None:
    """Hangs in C code that holds the GIL."""
    sum(range(10**12))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class StoppedAtStart:
    """Stops the first worker that runs it, before its first sample."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, worker: int) -> None:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        stop()


def test_a_worker_that_is_stopped_while_it_starts_is_ended_at_the_deadline(tmp_path: Path) -> None:
    start = StoppedAtStart(tmp_path / "stopped")
    loader = DataLoader(Drawn(), generator=seeded(1), worker_init_fn=start, deadline=DEADLINE, **TWO)

    batches = list(loader)

    assert is_same(batches, expected(Drawn, **TWO)[0])
    (death,) = loader.deaths
    assert (death.stage, death.cause) == ("starting", "deadline passed")
    assert str(death).endswith("took too long and was killed while starting")


HANGS: list[Callable[[], None]] = [sleep_for_ever, wait_for_a_lock, backtrack, add_up, stop]


class Hangs:
    """Hangs at one sample, the first `times` times; always if None."""

    def __init__(self, folder: Path, index: int, hang: Callable[[], None], times: int | None = None) -> None:
        self.folder = folder
        self.index = index
        self.hang = hang
        self.times = times

    def __call__(self, index: int) -> None:
        if index != self.index:
            return
        note = self.folder / "times"
        with note.open("ab") as file:
            file.write(b".")
        if self.times is None or note.stat().st_size <= self.times:
            # Only the hang itself may be late, not other samples by chance.
            self.hang()


def without(batches: list[Any], index: int) -> list[list[int]]:
    return [[one for one in batch["index"].tolist() if one != index] for batch in batches]


def warned(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The batches of a loader, and its warnings about workers that stall."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(one.message) for one in caught if one.category is WorkerStalledWarning]


# ---- samples that never return ----


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.__name__)
def test_a_sample_that_hangs_is_skipped_and_reported_with_its_stack(
    tmp_path: Path, hang: Callable[[], None]
) -> None:
    dataset = Drawn(hook=Hangs(tmp_path, 10, hang))
    # Each worker delivers a batch first: otherwise the fork could be the cause.
    loader = DataLoader(dataset, deadline=DEADLINE, faults=SKIP, **TWO)

    batches = list(loader)

    assert [batch["index"].tolist() for batch in batches] == without(expected(Drawn, **TWO)[0], 10)
    (death,) = loader.deaths
    assert (death.worker, death.index, death.batch_offset, death.batch) == (0, 10, 2, 2)
    assert (death.cause, death.is_certain) == ("deadline passed", True)
    (fault,) = loader.report().faults
    assert (fault.index, fault.kind) == (10, "DeadlineExceededError")
    if hang is stop:
        # A stopped process runs no signal handler.
        assert "it was stopped by a signal (SIGSTOP)" in death.why
    else:
        assert death.stack[0].startswith(hang.__name__) or hang.__name__ in death.stack[1]
        assert f"{hang.__name__}() at {__file__}" in (death.code or "")
        assert hang.__name__ in (fault.traceback or "")


def test_without_a_policy_a_hang_ends_the_run_with_the_sample_and_its_stack(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=Hangs(tmp_path, 10, sleep_for_ever)), deadline=DEADLINE, **TWO)
    batches: list[Any] = []
    with pytest.raises(DeadlineExceededError) as caught:
        batches.extend(iter(iterate(loader).__next__, None))

    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    error = caught.value
    assert (error.index, error.worker, len(error.deaths)) == (10, 0, 1)  # type: ignore[attr-defined]
    for part in ("sample 10, offset 2 of batch 2", "sleep_for_ever() at", f"deadline={DEADLINE}", "hint: "):
        assert part in str(error)
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("hang", [sleep_for_ever, stop], ids=lambda hang: hang.__name__)
def test_a_sample_that_hangs_once_is_retried_and_nothing_is_lost(
    tmp_path: Path, hang: Callable[[], None]
) -> None:
    dataset = Drawn(hook=Hangs(tmp_path, 22, hang, times=1))
    policy = FaultPolicy("skip", retry=1)
    loader = DataLoader(dataset, generator=seeded(2), shuffle=True, deadline=DEADLINE, faults=policy, **TWO)

    batches = list(loader)

    assert is_same(batches, expected(Drawn, seed=2, shuffle=True, **TWO)[0])
    assert len(loader.deaths) == 1
    report = loader.report()
    assert (report.delivered, report.skipped) == (48, 0)


def test_a_sample_that_hangs_is_retried_as_often_as_the_policy_says(tmp_path: Path) -> None:
    dataset = Drawn(hook=Hangs(tmp_path, 10, sleep_for_ever))
    policy = FaultPolicy("skip", retry=2, fill=False)
    loader = DataLoader(dataset, deadline=DEADLINE, faults=policy, **TWO)

    batches = list(loader)

    assert sum(len(batch["index"]) for batch in batches) == 47
    assert (tmp_path / "times").stat().st_size == 3
    (fault,) = loader.report().faults
    assert (fault.index, fault.attempts) == (10, 3)


def test_hangs_do_not_count_towards_max_deaths(tmp_path: Path) -> None:
    dataset = Drawn(hook=Hangs(tmp_path, 10, sleep_for_ever))
    loader = DataLoader(dataset, deadline=DEADLINE, faults=SKIP, max_deaths=0, **TWO)

    assert sum(len(batch["index"]) for batch in loader) == 47


class HangsCollating:
    def __call__(self, samples: list[Any]) -> Any:
        if any(sample["index"] == 10 for sample in samples):
            sleep_for_ever()
        return [sample["index"] for sample in samples]


def test_a_collation_that_hangs_ends_the_run_and_blames_no_sample() -> None:
    loader = DataLoader(Drawn(), collate_fn=HangsCollating(), deadline=DEADLINE, **TWO)
    batches: list[Any] = []
    with pytest.raises(DeadlineExceededError, match=r"collated.*batch 2"):
        batches.extend(iter(iterate(loader).__next__, None))

    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_hang_is_found_when_all_samples_of_a_batch_are_made_at_once(tmp_path: Path) -> None:
    dataset = Listed(hook=Hangs(tmp_path, 10, sleep_for_ever))
    loader = DataLoader(dataset, deadline=DEADLINE, faults=SKIP, **TWO)

    batches = list(loader)

    assert [batch["index"].tolist() for batch in batches] == without(expected(Drawn, **TWO)[0], 10)
    assert [fault.index for fault in loader.report().faults] == [10]


def test_an_iterable_data_set_that_hangs_once_is_iterated_again_and_nothing_is_lost(tmp_path: Path) -> None:
    dataset = Streamed(hook=Hangs(tmp_path, 22, sleep_for_ever, times=1))
    policy = FaultPolicy(retry=1)
    loader = DataLoader(dataset, generator=seeded(2), deadline=DEADLINE, faults=policy, **TWO)

    assert is_same(list(loader), expected(Streamed, seed=2, **TWO)[0])


class Slow:
    """Each sample takes a large part of the deadline; a batch takes more than the deadline."""

    def __call__(self, _index: int) -> None:
        time.sleep(DEADLINE / 3)


def test_a_batch_may_take_longer_than_the_deadline_of_its_samples() -> None:
    loader = DataLoader(Drawn(8, hook=Slow()), deadline=DEADLINE, faults=SKIP, **TWO)

    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.deaths == []


def test_a_worker_stopped_while_idle_is_replaced_and_no_sample_is_blamed() -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), deadline=DEADLINE, **TWO)
    iterator = iterate(loader)
    assert eventually(lambda: is_idle(iterator, 0))
    pid = pid_of(iterator, 0)
    os.kill(pid, signal.SIGSTOP)

    batches = list(iterator)

    assert is_same(batches, expected(Drawn, **TWO)[0])
    assert has_ended(pid)


# ---- workers that stall ----


class Gate:
    """Waits at one sample until the stall was reported."""

    def __init__(self, gate: Path, index: int) -> None:
        self.gate = gate
        self.index = index

    def __call__(self, index: int) -> None:
        while index == self.index and not self.gate.exists():
            time.sleep(0.01)


def test_a_worker_that_stalls_is_reported_once_with_its_stack_and_continues(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    events: list[Event] = []

    def record(event: Event) -> None:
        events.append(event)
        if event.name == "worker_stalled":
            # Long enough that a second report would come.
            threading.Timer(2.5, gate.touch).start()

    dataset = Drawn(hook=Gate(gate, 10))
    loader = DataLoader(dataset, generator=seeded(1), stall=1.0, on_event=record, **TWO)

    batches, reported = warned(lambda: list(loader))

    assert is_same(batches, expected(Drawn, **TWO)[0])
    (text,) = reported
    for part in ("worker 0", "sample 10, offset 2 of batch 2", "no progress", "__call__() at", __file__):
        assert part in text
    assert [event.text for event in events if event.name == "worker_stalled"] == [text]
    assert loader.deaths == []


def test_a_worker_that_stalls_and_then_passes_the_deadline_is_reported_and_killed(tmp_path: Path) -> None:
    dataset = Drawn(hook=Hangs(tmp_path, 10, sleep_for_ever))
    loader = DataLoader(dataset, stall=1.0, deadline=2 * DEADLINE, faults=SKIP, **TWO)

    batches, reported = warned(lambda: list(loader))

    assert sum(len(batch["index"]) for batch in batches) == 47
    assert len(reported) == 1
    assert [death.cause for death in loader.deaths] == ["deadline passed"]


def test_if_warnings_are_errors_next_raises_a_stall_and_no_sample_is_lost(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    loader = DataLoader(Drawn(hook=Gate(gate, 10)), generator=seeded(1), stall=1.0, **TWO)
    iterator = iterate(loader)
    batches: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(WorkerStalledWarning, match="sample 10"):
            batches.extend(iter(iterator.__next__, None))
    gate.touch()
    batches.extend(iterator)

    assert is_same(batches, expected(Drawn, **TWO)[0])


def test_a_worker_that_stalls_while_it_starts_is_reported(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def record(event: Event) -> None:
        if event.name == "worker_stalled":
            gate.touch()

    loader = DataLoader(Drawn(), worker_init_fn=Gate(gate, 1), stall=1.0, on_event=record, **TWO)

    batches, reported = warned(lambda: list(loader))

    assert len(batches) == 12
    assert len(reported) == 1
    assert "worker 1" in reported[0]
    assert "while starting" in reported[0]


# ---- locks that were held when the workers were forked ----

MODULE = """
import threading
import torch

LOCK = threading.Lock()

class Locked(torch.utils.data.Dataset):
    def __init__(self, kept=None):
        self.kept = kept
    def __len__(self):
        return 24
    def __getitem__(self, index):
        with LOCK:
            return index, torch.rand(3)
"""

# A thread of the trainer holds the lock while the loader forks.
FORKED = """
import warnings
sys.path.insert(0, arguments[0])
import locked, torch
from feedline.torch import DataLoader

names, warned = [], []
def warn(message, category, *_):
    if category is fl.errors.WorkerStalledWarning:
        warned.append(str(message))
warnings.showwarning = warn
warnings.simplefilter("always")

# A thread holds the lock until it may end.
is_held, may_end = threading.Event(), threading.Event()
def hold():
    with locked.LOCK:
        is_held.set()
        may_end.wait()
holder = threading.Thread(target=hold)
holder.start()
is_held.wait()

def begin(dataset):
    loader = DataLoader(dataset, batch_size=4, num_workers=2, deadline=2.0, stall=None,
                        generator=torch.Generator().manual_seed(1),
                        on_event=lambda event: names.append(event.name))
    return iter(loader)

def let_go():
    may_end.set()
    holder.join()

def is_right(batches):
    right = torch.utils.data.DataLoader(locked.Locked(), batch_size=4, num_workers=2,
                                        generator=torch.Generator().manual_seed(1))
    return plain(batches) == plain(right)

def plain(batches):
    return [[index.tolist(), noise.tolist()] for index, noise in batches]
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder with a module that has a lock."""
    (tmp_path / "locked.py").write_text(MODULE)
    return tmp_path


def test_workers_forked_with_a_held_lock_are_restarted_from_a_fresh_interpreter(
    trainers: Trainers, module: Path
) -> None:
    program = FORKED + textwrap.dedent(
        """
        batches = list(begin(locked.Locked()))
        let_go()
        say([is_right(batches), names, warned])
        """
    )

    is_right, names, reported = trainers.answer(program, module, seconds=200)

    assert is_right
    assert names.count("zygote_restarted") == 1
    (text,) = reported
    for part in ("waiting for a lock", "locked.py", "fresh interpreter", 'multiprocessing_context="spawn"'):
        assert part in text


def test_workers_are_forked_again_if_the_data_set_cannot_be_pickled_and_the_lock_is_free(
    trainers: Trainers, module: Path
) -> None:
    program = FORKED + textwrap.dedent(
        """
        iterator = begin(locked.Locked(kept=threading.Lock()))
        let_go()
        say([is_right(iterator), names, warned])
        """
    )

    is_right, names, reported = trainers.answer(program, module)

    assert is_right
    assert names.count("zygote_restarted") == 1
    (text,) = reported
    for part in ("waiting for a lock", "forked again", "pickle"):
        assert part in text


def test_a_lock_that_stays_held_is_a_hang_if_the_data_set_cannot_be_pickled(
    trainers: Trainers, module: Path
) -> None:
    program = FORKED + textwrap.dedent(
        """
        try:
            list(begin(locked.Locked(kept=threading.Lock())))
        except fl.errors.DeadlineExceededError as error:
            let_go()
            say(str(error))
        """
    )

    text = trainers.answer(program, module)

    for part in ("sample ", "waiting for a lock", "__getitem__() at", "locked.py", "hint: "):
        assert part in text
