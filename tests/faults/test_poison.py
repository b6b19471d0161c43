"""Samples that kill their worker are identified and judged like other faults; no other sample is lost."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from feedline import FaultPolicy
from feedline.errors import TooManyFaultsError, WorkerDiedError
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset, default_collate

from faults.sets import WAYS, Drawn, Listed, die, expected, is_same, iterate, pid_of, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]

TWO: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
SKIP = FaultPolicy("skip", fill=False)


class Kills:
    """Kills the worker at each of these samples, every time."""

    def __init__(self, *indices: int, way: str = "SIGKILL") -> None:
        self.indices = frozenset(indices)
        self.way = way

    def __call__(self, index: int) -> None:
        if index in self.indices:
            die(self.way)


class KillsAtFirst:
    """Kills the first `times` workers at each of these samples."""

    def __init__(self, folder: Path, times: int, *indices: int) -> None:
        self.folder = folder
        self.times = times
        self.indices = frozenset(indices)

    def count(self, index: int) -> bool:
        """Whether this is one of the first times."""
        if index not in self.indices:
            return False
        note = self.folder / f"{index}"
        with note.open("ab") as file:
            file.write(b".")
        return note.stat().st_size <= self.times

    def __call__(self, index: int) -> None:
        if self.count(index):
            die("SIGKILL")


class KillsThenRaises(KillsAtFirst):
    """Kills at first, and then raises."""

    def __call__(self, index: int) -> None:
        super().__call__(index)
        if index in self.indices:
            raise LookupError(f"no sample {index}")


class Numbers(Dataset[int]):
    """Each sample is its index."""

    def __init__(self, count: int, hook: Any) -> None:
        self.count = count
        self.hook = hook

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.hook(index)
        return index


class Together(Numbers):
    """The same with `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Iterated(IterableDataset[int]):
    """The same as an iterable data set of one worker."""

    def __init__(self, count: int, hook: Any) -> None:
        self.count = count
        self.hook = hook

    def __iter__(self) -> Any:
        for index in range(self.count):
            self.hook(index)
            yield index


def lists(batches: Iterable[Any]) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def bad_of(loader: DataLoader[Any]) -> list[int]:
    return [fault.index for fault in loader.report().faults]


def in_fours(indices: Iterable[int]) -> list[list[int]]:
    ordered = list(indices)
    return [ordered[first : first + 4] for first in range(0, len(ordered), 4)]


# ---- delivered samples ----


def test_an_epoch_of_ten_thousand_with_five_killers_delivers_all_others_and_names_the_five() -> None:
    killers = [0, 1234, 5000, 5001, 9999]
    settings: dict[str, Any] = {"batch_size": 50, "num_workers": 3, "shuffle": True}
    with_faults = Numbers(10_000, Kills(*killers, way="SIGSEGV"))
    loader = DataLoader(with_faults, generator=seeded(7), faults=SKIP, **settings)
    plain = torch.utils.data.DataLoader(Numbers(10_000, Kills()), batch_size=50, shuffle=True)
    plain.generator = plain.sampler.generator = seeded(7)  # type: ignore[attr-defined]

    batches = lists(loader)

    right = [[index for index in batch if index not in killers] for batch in lists(plain)]
    assert batches == right
    report = loader.report()
    assert (report.expected, report.delivered, report.skipped, report.pending) == (10_000, 9_995, 5, 0)
    assert sorted(bad_of(loader)) == killers
    for fault in report.faults:
        assert (fault.kind, fault.attempts) == ("WorkerDiedError", 3)
        for part in ("SIGSEGV", f"sample {fault.index}, "):
            assert part in fault.reason
        assert "die() at" in (fault.traceback or "")
    # Two deaths and one in a trial for each, and no others.
    assert sorted(death.index for death in loader.deaths) == sorted(killers * 3)  # type: ignore[type-var]


@pytest.mark.parametrize("way", WAYS)
def test_however_a_sample_kills_the_others_of_its_batch_are_delivered(way: str) -> None:
    loader = DataLoader(Numbers(24, Kills(9, way=way)), faults=SKIP, **TWO)

    batches = lists(loader)

    assert batches == [[index for index in batch if index != 9] for batch in in_fours(range(24))]
    (fault,) = loader.report().faults
    assert (fault.index, fault.kind, fault.stage) == (9, "WorkerDiedError", "fetching")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_slots_of_killers_are_filled_from_the_end_for_any_number_of_workers(workers: int) -> None:
    dataset = Numbers(48, Kills(3, 17, 18))
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, faults=FaultPolicy("skip"))

    batches = lists(loader)

    assert [len(batch) for batch in batches] == [4] * 11 + [1]
    assert sorted(flat(batches)) == [index for index in range(48) if index not in (3, 17, 18)]
    # All samples that are not moved keep their place.
    assert [batch for batch in batches[:11] if not {45, 46, 47} & set(batch)] == [
        batch for batch in in_fours(range(44)) if not {3, 17, 18} & set(batch)
    ]
    assert batches[4][0] == 16
    assert batches[4][3] == 19
    assert batches[0][:3] == [0, 1, 2]


@pytest.mark.parametrize("policy", [SKIP, FaultPolicy("skip")], ids=["left out", "filled"])
def test_two_runs_with_killers_are_the_same_bit_for_bit(policy: FaultPolicy) -> None:
    runs = []
    for _ in range(2):
        dataset = Drawn(hook=Kills(5, 22, 23, 40))
        loader = DataLoader(dataset, generator=seeded(3), shuffle=True, faults=policy, **TWO)
        runs.append(list(loader))
        assert sorted(bad_of(loader)) == [5, 22, 23, 40]

    assert is_same(*runs)
    assert sum(len(batch["index"]) for batch in runs[0]) == 44


def test_batches_before_the_first_killer_are_those_of_a_run_without_faults() -> None:
    right = expected(Drawn, seed=4, shuffle=True, **TWO)[0]
    killer = int(right[7]["index"][1])
    loader = DataLoader(
        Drawn(hook=Kills(killer)), generator=seeded(4), shuffle=True, faults=FaultPolicy("skip"), **TWO
    )

    batches = list(loader)

    assert is_same(batches[:7], right[:7])
    # The other worker is not affected.
    assert is_same(batches[8], right[8])
    assert is_same(batches[10], right[10])


def test_the_replacement_takes_the_slot_of_a_killer() -> None:
    loader = DataLoader(Numbers(12, Kills(6)), faults=FaultPolicy("replace", replacement=-1), **TWO)

    assert lists(loader) == [[0, 1, 2, 3], [4, 5, -1, 7], [8, 9, 10, 11]]
    report = loader.report()
    assert (report.delivered, report.replaced) == (12, 1)


def test_another_sample_takes_the_slot_of_a_killer() -> None:
    loader = DataLoader(Numbers(12, Kills(6)), faults=FaultPolicy("replace"), **TWO)

    batches = lists(loader)

    assert [batches[0], batches[2]] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert [*batches[1][:2], batches[1][3]] == [4, 5, 7]
    assert batches[1][2] in set(range(12)) - {6}


def test_a_batch_of_nothing_but_killers_is_left_out() -> None:
    loader = DataLoader(Numbers(16, Kills(4, 5, 6, 7)), faults=SKIP, **TWO)

    assert lists(loader) == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert bad_of(loader) == [4, 5, 6, 7]


def test_killers_are_judged_without_batches_too() -> None:
    loader = DataLoader(Numbers(10, Kills(0, 4, 9)), batch_size=None, num_workers=2, faults=SKIP)

    assert lists(loader) == [1, 2, 3, 5, 6, 7, 8]
    assert bad_of(loader) == [0, 4, 9]


def test_the_killer_is_found_when_all_samples_of_a_batch_are_made_at_once() -> None:
    loader = DataLoader(Together(16, Kills(6, 13)), faults=SKIP, **TWO)

    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 7], [8, 9, 10, 11], [12, 14, 15]]
    assert bad_of(loader) == [6, 13]


def test_without_order_all_but_the_killers_come_once() -> None:
    loader = DataLoader(Numbers(48, Kills(7, 30)), in_order=False, faults=SKIP, **TWO)

    assert sorted(flat(lists(loader))) == [index for index in range(48) if index not in (7, 30)]
    assert sorted(bad_of(loader)) == [7, 30]


def test_killers_are_judged_in_every_epoch_of_persistent_workers() -> None:
    right = [[index for index in batch if index != 9] for batch in in_fours(range(24))]
    loader = DataLoader(Numbers(24, Kills(9)), persistent_workers=True, faults=SKIP, **TWO)

    assert [lists(loader) for _ in range(3)] == [right] * 3
    report = loader.report()
    assert (report.delivered, report.skipped, report.completed) == (69, 3, 3)


def test_killers_and_samples_that_raise_are_judged_by_the_same_policy() -> None:
    class Both(Kills):
        def __call__(self, index: int) -> None:
            super().__call__(index)
            if index in (1, 9, 10):
                raise LookupError(f"no sample {index}")

    loader = DataLoader(Numbers(16, Both(2, 8)), faults=SKIP, **TWO)

    assert lists(loader) == [[0, 3], [4, 5, 6, 7], [11], [12, 13, 14, 15]]
    kinds = {fault.index: fault.kind for fault in loader.report().faults}
    assert kinds == {
        1: "LookupError",
        2: "WorkerDiedError",
        8: "WorkerDiedError",
        9: "LookupError",
        10: "LookupError",
    }


# ---- samples that do not always kill ----


@pytest.mark.parametrize("times", [1, 2])
def test_samples_that_kill_only_at_first_are_delivered(tmp_path: Path, times: int) -> None:
    hook = KillsAtFirst(tmp_path, times, 3, 4, 21, 46)
    settings: dict[str, Any] = {"shuffle": True, **TWO}
    loader = DataLoader(Drawn(hook=hook), generator=seeded(5), faults=SKIP, max_deaths=100, **settings)

    batches = list(loader)

    assert is_same(batches, expected(Drawn, seed=5, **settings)[0])
    assert len(loader.deaths) == 4 * times
    assert loader.report().faults == ()


def test_all_samples_of_a_batch_may_kill_at_first(tmp_path: Path) -> None:
    hook = KillsAtFirst(tmp_path, 2, 8, 9, 10, 11)
    loader = DataLoader(Drawn(hook=hook), generator=seeded(5), max_deaths=100, **TWO)

    assert is_same(list(loader), expected(Drawn, seed=5, **TWO)[0])
    assert len(loader.deaths) == 8


def test_a_sample_that_kills_only_at_first_is_delivered_with_getitems(tmp_path: Path) -> None:
    hook = KillsAtFirst(tmp_path, 2, 9)
    loader = DataLoader(Listed(hook=hook), generator=seeded(5), faults=SKIP, **TWO)

    assert is_same(list(loader), expected(Listed, seed=5, **TWO)[0])


def test_a_sample_that_raises_in_its_trial_is_reported_with_that_exception(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(16, KillsThenRaises(tmp_path, 2, 6)), **TWO)
    with pytest.raises(LookupError, match="no sample 6"):
        list(loader)

    other = DataLoader(Numbers(16, KillsThenRaises(tmp_path, 2, 5)), faults=SKIP, **TWO)
    assert lists(other)[1] == [4, 6, 7]
    (fault,) = other.report().faults
    assert (fault.index, fault.kind) == (5, "LookupError")


def test_kills_from_outside_blame_no_sample() -> None:
    draws = random.Random(611)
    loader = DataLoader(Numbers(400, Kills()), faults=SKIP, max_deaths=1000, **TWO)
    iterator = iterate(loader)
    batches = []
    for number, batch in enumerate(iterator):
        batches.append(batch)
        if number % 10 == 0 and number < 90:
            os.kill(pid_of(iterator, draws.randrange(2)), signal.SIGKILL)

    assert lists(batches) == in_fours(range(400))
    assert loader.report().faults == ()
    assert loader.deaths


# ---- faults that end the run ----


def test_without_a_policy_the_killer_is_raised_with_its_certificate() -> None:
    loader = DataLoader(Numbers(24, Kills(9, way="SIGABRT")), **TWO)
    batches: list[Any] = []
    with pytest.raises(WorkerDiedError) as caught:
        batches.extend(iter(iterate(loader).__next__, None))

    assert lists(batches) == in_fours(range(8))
    error = caught.value
    assert (error.index, error.worker, len(error.deaths)) == (9, 0, 3)  # type: ignore[attr-defined]
    for part in ("worker 0", "SIGABRT", "sample 9, offset 1 of batch 2", "die() at", "hint: ", "FL401"):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.index, again.deaths) == (str(error), 9, error.deaths)
    assert isinstance(copy.copy(error), WorkerDiedError)


def test_a_policy_may_raise_for_killers_alone() -> None:
    policy = FaultPolicy("skip", fill=False, by_type={"WorkerDiedError": "raise"})
    loader = DataLoader(Numbers(24, Kills(9)), faults=policy, **TWO)
    with pytest.raises(WorkerDiedError, match="sample 9"):
        list(loader)


def test_more_killers_than_the_limit_end_the_run() -> None:
    loader = DataLoader(Numbers(48, Kills(2, 13, 30)), faults=FaultPolicy("skip", fill=False, limit=2), **TWO)
    batches: list[Any] = []
    with pytest.raises(TooManyFaultsError) as caught:
        batches.extend(iter(iterate(loader).__next__, None))

    assert lists(batches) == [
        [index for index in batch if index not in (2, 13)] for batch in in_fours(range(28))
    ]
    assert "sample 30" in str(caught.value.__cause__)


class KillsCollating:
    """Dies at the batch with one sample, every time."""

    def __call__(self, samples: list[int]) -> Any:
        if 9 in samples:
            die("SIGKILL")
        return default_collate(samples)


@pytest.mark.parametrize("policy", [None, SKIP], ids=["no policy", "skip"])
def test_a_collation_that_always_kills_ends_the_run_and_blames_no_sample(policy: Any) -> None:
    loader = DataLoader(Numbers(24, Kills()), collate_fn=KillsCollating(), faults=policy, **TWO)
    batches: list[Any] = []
    with pytest.raises(WorkerDiedError, match=r"collated.*batch 2"):
        batches.extend(iter(iterate(loader).__next__, None))

    assert lists(batches) == in_fours(range(8))
    assert loader.report().faults == ()


def test_an_iterable_data_set_that_always_kills_ends_the_run() -> None:
    loader = DataLoader(Iterated(24, Kills(9)), batch_size=4, num_workers=1, faults=SKIP)
    batches: list[Any] = []
    with pytest.raises(WorkerDiedError, match="batch 2"):
        batches.extend(iter(iterate(loader).__next__, None))

    assert lists(batches) == in_fours(range(8))


# ---- the next run ----


def test_killers_in_quarantine_are_left_out_of_the_next_run_which_sees_no_death(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    policy = FaultPolicy("skip", quarantine=bad)
    first = DataLoader(Numbers(24, Kills(9, 20)), faults=policy, **TWO)
    delivered = flat(lists(first))

    lines = [json.loads(line) for line in bad.read_text().splitlines()]
    assert sorted(line["index"] for line in lines if "index" in line) == [9, 20]
    second = DataLoader(Numbers(24, Kills(9, 20)), exclude=bad, **TWO)
    assert sorted(flat(lists(second))) == sorted(delivered)
    assert second.deaths == []


def test_a_killer_in_the_second_epoch_has_the_deaths_of_that_epoch_alone(tmp_path: Path) -> None:
    policy = FaultPolicy("skip", quarantine=tmp_path / "bad.jsonl")
    loader = DataLoader(Drawn(hook=Kills(9)), faults=policy, **TWO)
    for _ in range(2):
        list(loader)

    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(line["index"], line["epoch"], line["attempts"]) for line in lines] == [(9, 0, 3), (9, 1, 3)]
    assert len(loader.deaths) == 6
