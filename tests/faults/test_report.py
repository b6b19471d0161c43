"""How faults are reported: reports at any time, events, logs; nothing is printed."""

from __future__ import annotations

import gc
import json
import logging
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
from feedline import errors
from feedline.testing import assert_accounted
from feedline.torch import DataLoader
from torch.utils.data import Dataset

from faults.sets import Once, die
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]

SKIP = fl.FaultPolicy("skip")
BAD = frozenset({1, 6})
COUNTS = ("epochs", "completed", "expected", "delivered", "skipped", "pending", "batches")


class Numbers(Dataset[int]):
    """Each sample is its index; some are bad."""

    def __init__(self, count: int = 12, bad: frozenset[int] = BAD) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"{index} is bad")
        return index


def counts(loader: DataLoader[Any]) -> tuple[int, ...]:
    report = loader.report()
    # The sum holds at any time.
    assert report.delivered - report.repeated + report.skipped + report.pending == report.expected
    assert json.loads(report.to_json())["delivered"] == report.delivered
    assert str(report) == report.text
    return tuple(getattr(report, name) for name in COUNTS)


# ---- at any time ----


@pytest.mark.parametrize("workers", [0, 2])
def test_a_report_is_available_before_during_and_after_epochs(workers: int) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP)
    assert counts(loader) == (0, 0, 0, 0, 0, 0, 0)
    for epoch in range(2):
        iterator = iter(loader)
        assert counts(loader)[:2] == (epoch + 1, epoch)
        for batch in range(3):
            next(iterator)
            epochs, completed, expected, delivered, *_ = counts(loader)
            # 10 in batches of 4: the last one is short.
            assert (epochs, completed, delivered) == (epoch + 1, epoch, epoch * 10 + min(4 * batch + 4, 10))
            assert expected <= epoch * 12 + 12
        assert next(iterator, None) is None
        assert counts(loader) == (
            epoch + 1,
            epoch + 1,
            12 * epoch + 12,
            10 * epoch + 10,
            2 * epoch + 2,
            0,
            3 * epoch + 3,
        )
    (first, second) = sorted(loader.report().faults, key=lambda fault: fault.index)
    assert (first.index, first.times, second.index, second.times) == (1, 2, 6, 2)
    assert (first.kind, first.reason, first.stage, first.attempts) == (
        "ValueError",
        "1 is bad",
        "fetching",
        1,
    )
    assert first.traceback is not None
    assert "__getitem__" in first.traceback


@pytest.mark.parametrize("workers", [0, 2])
def test_the_text_names_what_was_skipped_and_why(workers: int) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP)
    list(loader)
    for part in ("10", "2 skipped", "sample 1", "1 is bad", "sample 6", "6 is bad"):
        assert part in loader.report().text, loader.report().text


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stays", [False, True])
def test_an_abandoned_epoch_is_not_complete_and_the_next_one_is(workers: int, stays: bool) -> None:
    loader = DataLoader(
        Numbers(), 2, num_workers=workers, persistent_workers=stays and workers > 0, faults=SKIP
    )
    for _ in loader:
        break
    gc.collect()
    assert counts(loader)[:2] == (1, 0)
    assert counts(loader)[3] == 2
    assert sum(len(batch) for batch in loader) == 10
    after = counts(loader)
    assert after[:2] == (2, 1)
    assert after[3] == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_exception_the_epoch_is_not_complete_and_the_next_one_is(workers: int) -> None:
    policy = fl.FaultPolicy("skip", limit=1)
    dataset = Numbers()
    loader = DataLoader(dataset, 4, num_workers=workers, faults=policy)
    with pytest.raises(errors.TooManyFaultsError):
        list(loader)
    assert counts(loader)[:2] == (1, 0)
    assert loader.report().skipped == 1

    dataset.bad = frozenset({1})
    assert sum(len(batch) for batch in loader) == 11
    assert counts(loader)[:2] == (2, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_policy_there_is_a_report_too(workers: int) -> None:
    loader = DataLoader(Numbers(bad=frozenset()), 5, num_workers=workers)
    list(loader)
    assert counts(loader) == (1, 1, 12, 12, 0, 0, 3)
    broken = DataLoader(Numbers(), 4, num_workers=workers)
    with pytest.raises(ValueError, match="1 is bad"):
        list(broken)
    assert counts(broken)[:2] == (1, 0)


def test_a_death_is_in_the_report_beside_the_faults(tmp_path: Path) -> None:
    class Dies(Numbers):
        def __getitem__(self, index: int) -> int:
            once(index)
            return super().__getitem__(index)

    once = Once(tmp_path / "died", "SIGKILL", 7)
    loader = DataLoader(Dies(), 4, num_workers=2, faults=SKIP)
    report = assert_accounted(loader)
    assert sum(report.workers_lost.values()) == 1
    assert report.skipped == 2
    assert "SIGKILL" in report.deaths[0]


def test_a_sample_that_kills_is_a_fault_among_others() -> None:
    class Kills(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 9:
                die("SIGSEGV")
            return super().__getitem__(index)

    loader = DataLoader(Kills(), 4, num_workers=2, faults=SKIP)
    report = assert_accounted(loader)
    assert {fault.index: fault.kind for fault in report.faults} == {
        1: "ValueError",
        6: "ValueError",
        9: "WorkerDiedError",
    }
    # Two deaths, and one in a trial, each time that its batch is made.
    assert sum(report.workers_lost.values()) >= 3


# ---- events ----


@pytest.mark.parametrize("workers", [0, 2])
def test_the_callback_gets_each_fault_in_order(workers: int) -> None:
    reported: list[fl.Event] = []
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP, on_event=reported.append)
    list(loader)
    names = [event.name for event in reported]
    assert names == ["epoch_started", "sample_skipped", "sample_skipped", "epoch_ended"]
    skipped = reported[1:3]
    assert [event.details["index"] for event in skipped] == [1, 6]
    assert all(event.level == "warning" for event in skipped)
    assert all(str(event.details["index"]) in str(event) for event in skipped)
    assert reported[-1].level == "warning"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_event_of_a_fatal_fault_comes_before_the_exception(workers: int) -> None:
    reported: list[fl.Event] = []
    policy = fl.FaultPolicy("skip", limit=1)
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=policy, on_event=reported.append)
    with pytest.raises(errors.TooManyFaultsError):
        list(loader)
    stopped = [event for event in reported if event.name == "run_stopped"]
    assert [event.details["index"] for event in stopped] == [6]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_callback_that_raises_is_logged_and_changes_nothing(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: fl.Event) -> None:
        raise LookupError(f"no ear for {event.name}")

    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP, on_event=fail)
    assert [len(batch) for batch in loader] == [4, 4, 2]
    assert "no ear for sample_skipped" in caplog.text


def test_a_callback_may_ask_for_the_report() -> None:
    seen: list[int] = []
    loader = DataLoader(
        Numbers(), 4, num_workers=2, faults=SKIP, on_event=lambda _event: seen.append(loader.report().skipped)
    )
    list(loader)
    assert seen[-1] == 2


def test_an_invalid_policy_or_callback_is_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="skip"):
        DataLoader(Numbers(), faults="skip")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError, match="on_event"):
        DataLoader(Numbers(), on_event=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_are_logged_under_feedline(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "feedline")
    list(DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP))
    records = [record for record in caplog.records if record.name == "feedline"]
    assert [record.levelname for record in records] == ["INFO", "WARNING", "WARNING", "WARNING"]
    assert "sample 1 " in records[1].getMessage()
    assert "sample 6 " in records[2].getMessage()


QUIET = """
from feedline.torch import DataLoader

class Numbers:
    def __len__(self):
        return 12
    def __getitem__(self, index):
        if index in (1, 6):
            raise ValueError("bad")
        return index

for workers in (0, 2):
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=fl.FaultPolicy("skip"))
    assert sum(len(batch) for batch in loader) == 10
    for batch in loader:
        break
    try:
        list(DataLoader(Numbers(), 4, num_workers=workers, faults=fl.FaultPolicy("skip", limit=0)))
    except fl.errors.TooManyFaultsError:
        continue
    raise AssertionError
"""


def test_nothing_is_printed_but_warnings(trainers: Trainers) -> None:
    assert trainers.run("import warnings\nwarnings.simplefilter('ignore')\n" + QUIET) == (0, "", "")


# ---- the loader checks itself ----


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_does_not_add_up_is_an_error(workers: int) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=workers, faults=SKIP)
    iterator = iter(loader)
    next(iterator)
    # As if one more sample had been ordered and lost.
    loader._loader_state.account.ledger.expect(1)
    with pytest.raises(errors.InternalError):
        list(iterator)


@pytest.mark.parametrize("fill", [None, False])
def test_chaos_is_accounted_for(fill: bool | None) -> None:
    for seed in range(2):
        print(f"seed {seed}")
        policy = fl.FaultPolicy("skip", retry=1, backoff=0.001, fill=fill)
        loader = fl.testing.chaos(
            DataLoader(Numbers(60), 4, num_workers=2, faults=policy, max_deaths=100),
            seed=seed,
            raise_=0.1,
            eio=0.1,
            kill=0.05,
        )
        report = assert_accounted(loader)
        assert report.skipped >= len(BAD)
        faults = {fault.index for fault in report.faults}
        assert faults >= BAD
        assert report.delivered == 60 - len(faults)
