"""The zygote is stopped, hangs or is replaced; and results that are never sent."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import Event, FaultPolicy
from feedline.errors import DeadlineExceededError, WorkerStalledWarning
from feedline.torch import DataLoader

from faults.remains import children, eventually, has_ended, zygote_of
from faults.sets import Drawn, expected, is_same, iterate, pid_of, seeded
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
# With these settings the zygote has 5 seconds to answer, and one more.
WATCHED: dict[str, Any] = {"deadline": 60, "stall": 2}


class EventLog:
    """Collects events, and warnings about stalls."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: list[str] = []

    def __call__(self, event: Event) -> None:
        self.names.append(event.name)
        self.texts.append(event.text)


def stop_zygote_and_kill(worker: int | None) -> int:
    """Afterwards no process reports how the worker ended or forks another one."""
    assert worker is not None
    zygote = zygote_of(worker)
    os.kill(zygote, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    return zygote


def kill_zygote(worker: int) -> None:
    """Its workers continue until it is gone."""
    zygote = zygote_of(worker)
    os.kill(zygote, signal.SIGKILL)
    assert eventually(lambda: has_ended(zygote))
    assert eventually(lambda: has_ended(worker))


def warned(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(one.message) for one in caught if one.category is WorkerStalledWarning]


def test_a_stopped_zygote_is_killed_and_its_batches_are_recomputed() -> None:
    reported = EventLog()

    def run() -> list[Any]:
        loader = DataLoader(Drawn(), generator=seeded(1), on_event=reported, **TWO, **WATCHED)
        iterator = iterate(loader)
        batches = [next(iterator)]
        zygote = stop_zygote_and_kill(pid_of(iterator, 0))
        batches += iterator
        assert eventually(lambda: has_ended(zygote))
        return batches

    batches, texts = warned(run)

    assert is_same(batches, expected(Drawn, **TWO)[0])
    assert reported.names.count("zygote_killed") == 1
    (text,) = [text for text in texts if "does not answer" in text]
    assert "was killed and is replaced" in text
    assert "SIGSTOP" in text


def identity(sample: Any) -> Any:
    return sample


def test_a_stopped_zygote_of_mapped_functions_is_killed_and_replaced() -> None:
    reported = EventLog()
    pipeline = fl.arrays({"number": np.arange(60)}).map(identity).batch(3)
    loader = pipeline.loader(workers=2, on_event=reported, **WATCHED)

    def run() -> list[int]:
        iterator = iter(loader)
        numbers: list[int] = next(iterator)["number"].tolist()
        (zygote,) = children(os.getpid()) - before
        worker = min(children(zygote))
        stop_zygote_and_kill(worker)
        for batch in iterator:
            numbers += batch["number"].tolist()
        return numbers

    before = children(os.getpid())
    numbers, texts = warned(run)

    assert numbers == list(range(60))
    assert any("does not answer" in text for text in texts)


def test_a_stopped_zygote_of_an_executor_is_killed_and_replaced() -> None:
    reported = EventLog()

    def run() -> list[int]:
        with fl.Executor(workers=2, on_event=reported, **WATCHED) as pool:
            worker = pool.submit(os.getpid).result()
            stop_zygote_and_kill(worker)
            return list(pool.map(abs, range(-40, 0)))

    results, texts = warned(run)

    assert results == list(range(40, 0, -1))
    assert any("does not answer" in text for text in texts)


def test_a_zygote_that_continues_before_its_deadline_is_not_killed() -> None:
    reported = EventLog()
    loader = DataLoader(Drawn(), generator=seeded(1), on_event=reported, **TWO, **WATCHED)
    iterator = iterate(loader)
    batches = [next(iterator)]
    zygote = stop_zygote_and_kill(pid_of(iterator, 0))
    os.kill(zygote, signal.SIGCONT)

    batches += iterator

    assert is_same(batches, expected(Drawn, **TWO)[0])
    assert "zygote_killed" not in reported.names


HANGING_HANDLER = """
import warnings
from feedline.torch import DataLoader
from feedline.errors import FeedlineError
warnings.simplefilter("ignore")
trainer, folder, where, times = os.getpid(), Path(arguments[0]), arguments[1], int(arguments[2])

def hang(is_meant):
    if not is_meant:
        return
    with (folder / "hangs").open("ab") as file:
        file.write(b".")
    while (folder / "hangs").stat().st_size <= times:
        time.sleep(0.1)

if where == "zygote forks":
    os.register_at_fork(before=lambda: hang(os.getpid() != trainer))
else:
    os.register_at_fork(after_in_child=lambda: hang(os.getppid() == trainer))
names = []
loader = DataLoader(list(range(40)), batch_size=4, num_workers=2, deadline=60, stall=2,
                    on_event=lambda event: names.append(event.name))
try:
    numbers = [int(number) for batch in loader for number in batch]
except FeedlineError as error:
    say([type(error).__name__, str(error).splitlines()[0]])
else:
    say([numbers == list(range(40)), names.count("zygote_killed")])
"""


@pytest.mark.parametrize("where", ["zygote forks", "zygote starts"])
def test_a_run_survives_a_handler_that_hangs_once_in_the_zygote(
    where: str, tmp_path: Path, trainers: Trainers
) -> None:
    trainer = trainers.start(HANGING_HANDLER, tmp_path, where, 1)
    assert trainer.first_answer() == [True, 1], trainer.errors
    assert trainer.wait() == 0


@pytest.mark.parametrize("where", ["zygote forks", "zygote starts"])
def test_a_handler_that_always_hangs_in_the_zygote_ends_the_run(
    where: str, tmp_path: Path, trainers: Trainers
) -> None:
    trainer = trainers.start(HANGING_HANDLER, tmp_path, where, 1000)
    name, text = trainer.first_answer()
    assert name == "WorkerNotStartedError", trainer.errors
    assert "the process that forks the workers hangs" in text
    assert trainer.wait() == 0


STOPPED = """
from feedline.torch import DataLoader

class Slow:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 2:
            time.sleep(1000)
        return index

def train():
    iterator = iter(DataLoader(Slow(), num_workers=2))
    next(iterator)
    workers = [worker.pid for worker in iterator._workers]
    zygote = int(Path(f"/proc/{workers[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(zygote, signal.SIGSTOP)
    say([zygote, *workers])
    next(iterator), next(iterator)

if arguments[0] == "thread":
    threading.Thread(target=train).start()
else:
    train()
"""


@pytest.mark.parametrize("thread", ["main thread", "thread"])
def test_a_stopped_zygote_does_not_outlive_the_trainer(thread: str, trainers: Trainers) -> None:
    trainer = trainers.start(STOPPED, thread)
    processes = trainer.first_answer()
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    assert eventually(lambda: all(has_ended(process) for process in processes))


class Unsendable:
    """Blocks when it is pickled: always, or once."""

    def __init__(self, marker: Path | None) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        if self.marker is None or not self.marker.exists():
            if self.marker is not None:
                self.marker.touch()
            threading.Event().wait()
        return (int, (7,))


class WithUnsendable:
    def __init__(self, index: int, marker: Path | None) -> None:
        self.index = index
        self.marker = marker

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return Unsendable(self.marker) if index == self.index else index


def first(samples: list[Any]) -> Any:
    return samples


def test_a_result_that_hangs_while_it_is_pickled_is_recomputed(tmp_path: Path) -> None:
    dataset: Any = WithUnsendable(10, tmp_path / "hung")
    once_more = FaultPolicy("raise", retry=1)
    loader = DataLoader(dataset, collate_fn=first, deadline=2.5, faults=once_more, **TWO)

    numbers = [number for batch in loader for number in batch]

    assert numbers == [*range(10), 7, *range(11, 24)]
    (death,) = loader.deaths
    assert death.stage == "answering"
    assert death.cause == "deadline passed"


def test_a_result_that_always_hangs_while_it_is_pickled_is_an_error_that_names_its_batch() -> None:
    dataset: Any = WithUnsendable(10, None)
    with pytest.raises(DeadlineExceededError, match="batch 2"):
        list(DataLoader(dataset, collate_fn=first, deadline=2.5, **TWO))


def unsendable(number: int) -> Any:
    return Unsendable(None) if number == 3 else number


def test_a_call_whose_result_hangs_while_it_is_pickled_is_a_fault() -> None:
    with fl.Executor(workers=2, deadline=2.5) as pool:
        futures = [pool.submit(unsendable, number) for number in range(6)]
        with pytest.raises(DeadlineExceededError):
            futures[3].result()
        assert [future.result() for future in futures if future is not futures[3]] == [0, 1, 2, 4, 5]


class Curriculum:
    """Samples depend on its level."""

    def __init__(self) -> None:
        self.level = 1

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return self.level


@pytest.mark.parametrize("changes", [True, False])
def test_a_data_set_that_changed_before_its_zygote_was_replaced_is_reported(changes: bool) -> None:
    reported = EventLog()
    dataset: Any = Curriculum()

    def run() -> set[int]:
        iterator = iterate(DataLoader(dataset, on_event=reported, **TWO))
        seen = set(next(iterator).tolist())
        if changes:
            dataset.level = 2
        kill_zygote(pid_of(iterator, 0))
        for batch in iterator:
            seen |= set(batch.tolist())
        return seen

    seen, texts = warned(run)

    assert reported.names.count("zygote_replaced") == 1
    about = [text for text in texts if "dataset.level was 1 and is 2" in text]
    assert len(about) == changes
    assert seen == ({1, 2} if changes else {1})


def test_a_zygote_that_is_a_fresh_interpreter_keeps_its_state() -> None:
    dataset: Any = Curriculum()
    iterator = iterate(DataLoader(dataset, multiprocessing_context="spawn", **TWO))
    seen = set(next(iterator).tolist())
    dataset.level = 2
    kill_zygote(pid_of(iterator, 0))

    for batch in iterator:
        seen |= set(batch.tolist())

    assert seen == {1}


def test_skipping_does_not_hide_a_batch_that_cannot_be_sent() -> None:
    dataset: Any = WithUnsendable(10, None)
    policy = FaultPolicy("skip")
    loader = DataLoader(dataset, collate_fn=first, deadline=2.5, faults=policy, **TWO)
    with pytest.raises(DeadlineExceededError, match="batch 2"):
        list(loader)
