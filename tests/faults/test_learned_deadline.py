"""Workers that hang, with default settings: only the time after which they count as hung is shortened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import Event, Executor, FaultPolicy
from feedline.errors import DeadlineExceededError, InvalidArgumentError, WorkerStalledWarning
from feedline.torch import DataLoader

from faults.sets import Drawn, expected, is_same, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
SKIP = FaultPolicy("skip", fill=False)
# Seconds after which a worker counts as hung.
HANG = 1.5
COUNT = 48


@pytest.fixture(autouse=True)
def _hangs_are_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_HANG_SECONDS", str(HANG))


def sleep_for_ever() -> None:
    while True:
        time.sleep(1000)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_an_empty_pipe() -> None:
    os.read(os.pipe()[0], 1)


def poll() -> None:
    """Waits for something that never comes, and looks for it now and then."""
    while True:
        time.sleep(0.3)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


HANGS: list[Callable[[], None]] = [sleep_for_ever, wait_for_a_lock, read_an_empty_pipe, poll, stop]


def wait_long() -> None:
    """Uses no processor time for longer than a worker may hang."""
    time.sleep(3 * HANG)


class At:
    """Does something at one sample, the first `times` times; always if None."""

    def __init__(
        self, folder: Path, index: int, action: Callable[[], None], times: int | None = None
    ) -> None:
        self.folder = folder
        self.index = index
        self.action = action
        self.times = times

    def __call__(self, index: int) -> None:
        if index != self.index:
            return
        note = self.folder / "times"
        with note.open("ab") as file:
            file.write(b".")
        if self.times is None or note.stat().st_size <= self.times:
            self.action()


# ---- torch ----


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.__name__)
def test_a_worker_that_hangs_once_is_replaced_and_no_sample_is_lost(
    tmp_path: Path, hang: Callable[[], None]
) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, hang, times=1)), generator=seeded(1), **TWO)

    batches = list(loader)

    assert is_same(batches, expected(Drawn, **TWO)[0])
    (death,) = loader.deaths
    assert (death.index, death.cause, death.replaced) == (30, "deadline passed", True)
    assert 'deadline="auto"' in death.certificate
    if hang is not stop:
        # A stopped process runs no signal handler.
        assert any(hang.__name__ in frame for frame in death.stack)


def test_a_sample_that_always_hangs_is_skipped_by_a_policy_and_retried_once_before(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, sleep_for_ever)), faults=SKIP, **TWO)

    indices = [index for batch in loader for index in batch["index"].tolist()]

    assert indices == [index for index in range(COUNT) if index != 30]
    (fault,) = loader.report().faults
    assert (fault.index, fault.kind) == (30, "DeadlineExceededError")
    assert [death.index for death in loader.deaths] == [30, 30]


def test_without_a_policy_a_sample_that_always_hangs_ends_the_run(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, read_an_empty_pipe)), **TWO)
    with pytest.raises(DeadlineExceededError) as caught:
        list(loader)
    assert caught.value.index == 30
    assert "read_an_empty_pipe() at" in str(caught.value)


def compute() -> None:
    """Uses the processor, for several times as long as a worker may hang."""
    until = time.monotonic() + 4 * HANG
    while time.monotonic() < until:
        sum(range(10_000))


def compute_in_a_thread() -> None:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def compute_in_a_child() -> None:
    code = f"import time; until = time.monotonic() + {4 * HANG}\nwhile time.monotonic() < until: pass"
    # Below a shell, which waits too.
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{code}'; true"], check=True)


def run_many_children() -> None:
    """Uses the processor in processes that are too short to be seen."""
    until = time.monotonic() + 4 * HANG
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-S", "-c", "sum(range(300_000))"], check=True)


WORKS: list[Callable[[], None]] = [compute, compute_in_a_thread, compute_in_a_child, run_many_children]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_a_worker_that_uses_the_processor_is_not_killed(tmp_path: Path, work: Callable[[], None]) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, work)), generator=seeded(1), **TWO)
    assert is_same(list(loader), expected(Drawn, **TWO)[0])
    assert loader.deaths == []


def test_workers_that_wait_for_the_trainer_are_not_killed() -> None:
    loader = DataLoader(Drawn(), generator=seeded(1), **TWO)
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 3:
            wait_long()
    assert is_same(batches, expected(Drawn, **TWO)[0])
    assert loader.deaths == []


def test_without_a_deadline_no_worker_is_killed(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, wait_long)), generator=seeded(1), deadline=None, **TWO)
    assert is_same(list(loader), expected(Drawn, **TWO)[0])
    assert loader.deaths == []


def test_a_number_is_a_deadline_for_workers_that_compute_too(tmp_path: Path) -> None:
    loader = DataLoader(Drawn(hook=At(tmp_path, 30, compute, times=1)), deadline=HANG, faults=SKIP, **TWO)
    assert sum(len(batch["index"]) for batch in loader) == COUNT - 1
    assert [death.index for death in loader.deaths] == [30]
    assert f"deadline={HANG}" in loader.deaths[0].certificate


class HangsAtStart:
    """Hangs in the first worker that runs it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, worker: int) -> None:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            return
        read_an_empty_pipe()


def test_a_worker_that_hangs_while_it_starts_is_replaced(tmp_path: Path) -> None:
    start = HangsAtStart(tmp_path / "hung")
    loader = DataLoader(Drawn(), generator=seeded(1), worker_init_fn=start, **TWO)
    assert is_same(list(loader), expected(Drawn, **TWO)[0])
    assert [(death.stage, death.cause) for death in loader.deaths] == [("starting", "deadline passed")]


def test_without_workers_the_default_is_accepted_and_means_nothing() -> None:
    assert sum(len(batch["index"]) for batch in DataLoader(Drawn(), batch_size=4)) == COUNT


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "inf"])
def test_the_variable_must_be_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FEEDLINE_HANG_SECONDS", value)
    for make in (lambda: DataLoader(Drawn(), num_workers=1), lambda: Executor(1)):
        with pytest.raises(InvalidArgumentError, match="FEEDLINE_HANG_SECONDS must be a number") as caught:
            make()
        assert value in str(caught.value)


# ---- functions in a pipeline ----


def mapped(hook: Callable[[int], None]) -> fl.Pipeline:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        hook(int(sample["x"]))
        return sample

    return fl.arrays({"x": np.arange(COUNT)}).map(function).batch(4)


# A worker that waits for a lock at its first sample may have inherited it: that is another case.
@pytest.mark.parametrize("hang", [sleep_for_ever, read_an_empty_pipe, stop], ids=lambda hang: hang.__name__)
def test_a_function_that_hangs_once_is_called_again(tmp_path: Path, hang: Callable[[], None]) -> None:
    with mapped(At(tmp_path, 30, hang, times=1)).loader(workers=2) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == list(range(COUNT))
        (death,) = loader.deaths
    assert (death.index, death.cause) == (30, "deadline passed")


def test_a_function_that_always_hangs_is_a_fault_of_its_sample(tmp_path: Path) -> None:
    with mapped(At(tmp_path, 30, sleep_for_ever)).loader(workers=2, faults=SKIP) as loader:
        assert {x for batch in loader for x in batch["x"].tolist()} == set(range(COUNT)) - {30}
        (fault,) = loader.report().faults
    assert (fault.index, fault.kind) == (30, "DeadlineExceededError")


@pytest.mark.parametrize("deadline", ["auto", None])
def test_a_function_that_computes_or_has_no_deadline_is_not_ended(
    tmp_path: Path, deadline: str | None
) -> None:
    work = compute if deadline == "auto" else wait_long
    with mapped(At(tmp_path, 30, work)).loader(workers=2, deadline=deadline) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == list(range(COUNT))
        assert loader.deaths == []


def test_a_pipeline_without_processes_takes_the_default_and_none() -> None:
    pipeline = fl.arrays({"x": np.arange(COUNT)}).batch(4)
    in_threads = fl.arrays({"x": np.arange(COUNT)}).map(lambda sample: sample, threads=True).batch(4)
    for given in (pipeline, in_threads):
        for deadline in ("auto", None):
            with given.loader(deadline=deadline) as loader:
                assert sum(len(batch["x"]) for batch in loader) == COUNT


# ---- calls ----


def test_a_call_that_waits_long_is_reported_once_and_made_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def record(event: Event) -> None:
        if event.name == "worker_stalled":
            gate.write_text("done")

    def wait() -> str:
        with (tmp_path / "times").open("ab") as file:
            file.write(b".")
        text = gate.read_text()
        # A second report would come now.
        wait_long()
        return text

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Executor(1, on_event=record) as pool:
            assert pool.submit(wait).result() == "done"
            assert pool.deaths == []
    assert (tmp_path / "times").read_bytes() == b"."
    stalls = [warning for warning in caught if issubclass(warning.category, WorkerStalledWarning)]
    assert len(stalls) == 1
    assert "wait()" in str(stalls[0].message)


def test_a_call_that_computes_is_not_reported() -> None:
    events: list[Event] = []
    with Executor(1, on_event=events.append) as pool:
        pool.submit(compute).result()
    assert [event.name for event in events if event.name == "worker_stalled"] == []
