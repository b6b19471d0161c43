"""Samples that raise, under each policy: the same batches for any workers, and no silently short epoch."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import feedline as fl
import pytest
import torch
import torch.utils.data
from feedline import errors
from feedline.torch import DataLoader
from filled import filled, filled_batches
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler

from faults.remains import eventually
from faults.sets import Drawn, Hook, Listed, is_same, iterate, nothing, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]

SKIP = fl.FaultPolicy("skip", limit=None)
LEAVE = fl.FaultPolicy("skip", fill=False, limit=None)
WORKERS = (0, 1, 3)


class Numbers(Dataset[int]):
    """Each sample is its index; some are bad."""

    def __init__(self, count: int, bad: frozenset[int] | set[int] = frozenset()) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"{index} is bad")
        return index


class NumbersTogether(Numbers):
    """The same with `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Raises:
    """Raises at some samples."""

    def __init__(self, *bad: int, then: Hook = nothing) -> None:
        self.bad = frozenset(bad)
        self.then = then

    def __call__(self, index: int) -> None:
        if index in self.bad:
            raise ValueError(f"{index} is bad")
        self.then(index)


def delivered(loader: DataLoader[Any]) -> list[Any]:
    """The indices of all batches; the report must add up to them."""
    before = loader.report()
    batches: list[Any] = []
    try:
        batches.extend(batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader)
    except errors.TooManyFaultsError:
        # Of an epoch without a good sample.
        assert batches == []
    after = loader.report()
    count = sum(len(batch) if isinstance(batch, list) else 1 for batch in batches)
    assert after.delivered - before.delivered == count
    assert after.completed == before.completed + 1
    assert after.pending == 0
    assert after.delivered + after.skipped == after.expected + after.repeated
    return batches


# ---- filling slots ----


@pytest.mark.parametrize("seed", range(16))
def test_a_slot_is_filled_from_the_end_of_the_epoch_for_any_number_of_workers(seed: int) -> None:
    print(f"seed {seed}")
    draws = random.Random(seed)
    count = draws.randrange(1, 50)
    bad = set(draws.sample(range(count), draws.choice([0, 1, count // 8, count // 3, count])))
    settings: dict[str, Any] = {
        "batch_size": draws.choice([1, 2, 3, 4, 8]),
        "shuffle": draws.random() < 0.5,
        "drop_last": draws.random() < 0.5,
    }
    kind = draws.choice([Numbers, NumbersTogether])
    plain = torch.utils.data.DataLoader(Numbers(count), generator=seeded(seed), **settings)
    planned = [batch.tolist() for batch in plain]
    right, skipped = filled(planned, bad, drop_last=settings["drop_last"])

    for workers in WORKERS:
        loader = DataLoader(
            kind(count, bad), generator=seeded(seed), num_workers=workers, faults=SKIP, **settings
        )
        assert delivered(loader) == right, (
            f"{workers} workers, {count} samples, {sorted(bad)} bad, {settings}"
        )
        report = loader.report()
        assert {fault.index for fault in report.faults} == set(skipped), f"{workers} workers"
        assert report.skipped == len(skipped), f"{workers} workers"


@pytest.mark.parametrize("seed", range(5))
def test_without_filling_batches_are_smaller_and_empty_ones_are_left_out(seed: int) -> None:
    print(f"seed {seed}")
    draws = random.Random(seed)
    count = draws.randrange(1, 50)
    bad = set(draws.sample(range(count), draws.choice([1, count // 2, count])))
    size = draws.choice([1, 2, 5])
    order = range(0, count, size)
    batches = [[index for index in range(at, min(at + size, count)) if index not in bad] for at in order]
    right = [batch for batch in batches if batch]

    for workers in WORKERS:
        loader = DataLoader(Numbers(count, bad), size, num_workers=workers, faults=LEAVE)
        assert delivered(loader) == right, f"{workers} workers, {count} samples, {sorted(bad)} bad"
        assert loader.report().skipped == len(bad)


@pytest.mark.parametrize("workers", WORKERS)
def test_without_batches_bad_samples_are_replaced_by_the_last_or_left_out(workers: int) -> None:
    def take(policy: fl.FaultPolicy) -> list[Any]:
        return delivered(DataLoader(Numbers(8, {1, 7}), batch_size=None, num_workers=workers, faults=policy))

    # 7 fills the slot of 1 and is bad, so 6 fills it.
    assert take(SKIP) == [0, 6, 2, 3, 4, 5]
    assert take(LEAVE) == [0, 2, 3, 4, 5, 6]
    assert take(fl.FaultPolicy("replace", replacement=-1)) == [0, -1, 2, 3, 4, 5, 6, -1]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_how_far_workers_are_ahead_makes_no_difference(prefetch: int) -> None:
    bad = {1, 2, 9, 21, 22, 23}
    right = filled_batches(range(24), bad, 3)
    loader = DataLoader(Numbers(24, bad), 3, num_workers=2, prefetch_factor=prefetch, faults=SKIP)
    assert delivered(loader) == right


@pytest.mark.parametrize("workers", WORKERS)
def test_every_epoch_is_filled_by_itself_with_persistent_workers_or_without(workers: int) -> None:
    bad = {3, 4, 17}

    def batched() -> BatchSampler:
        shuffled = RandomSampler(range(18), generator=seeded(2))
        return BatchSampler(shuffled, 4, drop_last=False)

    sampler = batched()
    orders = [list(sampler) for _ in range(3)]
    loader = DataLoader(
        Numbers(18, bad),
        batch_sampler=batched(),
        num_workers=workers,
        persistent_workers=workers > 0,
        faults=SKIP,
    )
    for order in orders:
        assert delivered(loader) == filled(order, bad)[0]


class Endless(Sampler[int]):
    """A sampler without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    __len__ = None


@pytest.mark.parametrize("workers", WORKERS)
def test_with_a_sampler_without_a_length_batches_are_smaller(workers: int) -> None:
    bad = {1, 6, 20}
    loader = DataLoader(Numbers(30, bad), 4, sampler=Endless(30), num_workers=workers, faults=SKIP)
    batches = [range(at, min(at + 4, 30)) for at in range(0, 30, 4)]
    assert delivered(loader) == [[index for index in batch if index not in bad] for batch in batches]


@pytest.mark.parametrize("workers", WORKERS)
def test_with_a_sampler_without_a_length_only_earlier_samples_replace_others(workers: int) -> None:
    bad = {1, 6, 20}
    replace = fl.FaultPolicy("replace")
    loader = DataLoader(Numbers(30, bad), 4, sampler=Endless(30), num_workers=workers, faults=replace)
    batches = delivered(loader)
    assert [len(batch) for batch in batches] == [4] * 7 + [2]
    flat = list(itertools.chain(*batches))
    assert [index for index in range(30) if flat[index] != index] == sorted(bad)
    assert all(flat[index] < (index // 4 + 1) * 4 for index in bad)


@pytest.mark.parametrize("action", ["skip", "replace"])
def test_out_of_order_nothing_is_lost_and_slots_are_not_filled(action: Literal["skip", "replace"]) -> None:
    bad = {1, 6, 20}
    policy = fl.FaultPolicy(action, limit=None)
    loader = DataLoader(Numbers(30, bad), 4, num_workers=3, in_order=False, faults=policy)
    batches = delivered(loader)
    good = [index for index in itertools.chain(*batches) if index not in bad]
    assert set(good) == set(range(30)) - bad
    assert len(good) == (27 if action == "skip" else 30)
    assert sorted(fault.index for fault in loader.report().faults) == sorted(bad)


# ---- replacements ----


@pytest.mark.parametrize("kind", [Numbers, NumbersTogether])
def test_replacements_are_the_same_for_any_number_of_workers(
    kind: type[Numbers],
) -> None:
    bad = {0, 5, 6, 13, 22}
    taken = []
    for workers in WORKERS:
        # The seed of workers is drawn from the generator: the same with and without workers.
        loader = DataLoader(
            kind(24, bad), 4, num_workers=workers, generator=seeded(6), faults=fl.FaultPolicy("replace")
        )
        taken.append(delivered(loader))
        assert loader.report().skipped == 0
        assert {fault.index for fault in loader.report().faults} == bad
    assert taken[0] == taken[1] == taken[2]
    flat = list(itertools.chain(*taken[0]))
    assert [index for index in range(24) if flat[index] != index] == sorted(bad)
    assert not bad & set(flat)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_given_replacement_takes_the_slot(workers: int) -> None:
    policy = fl.FaultPolicy("replace", replacement=-1)
    loader = DataLoader(Numbers(8, {1, 6}), 4, num_workers=workers, faults=policy)
    assert delivered(loader) == [[0, -1, 2, 3], [4, 5, -1, 7]]
    assert loader.report().replaced == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_when_no_other_sample_is_good_the_run_ends_with_an_error(workers: int) -> None:
    faults = fl.FaultPolicy("replace", limit=None)
    loader = DataLoader(Numbers(8, set(range(4, 8))), 4, num_workers=workers, faults=faults)
    all_bad = DataLoader(Numbers(8, set(range(8))), 4, num_workers=workers, faults=faults)
    assert all(index < 4 for index in itertools.chain(*delivered(loader)))
    with pytest.raises(errors.NoReplacementError, match="place of sample 0 were bad"):
        list(all_bad)


# ---- retries, and rules for classes of errors ----


class FailsAtFirst:
    """Raises at some samples a given number of times. Files count, because there may be several workers."""

    def __init__(self, folder: Path, times: dict[int, int], error: Callable[[], Exception]) -> None:
        self.folder = folder
        self.times = times
        self.error = error

    def __call__(self, index: int) -> None:
        if index not in self.times:
            return
        retries = len(list(self.folder.glob(f"{index}-*")))
        (self.folder / f"{index}-{retries}").touch()
        if retries < self.times[index]:
            raise self.error()


def eio() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transient_error_is_retried_and_is_no_fault(tmp_path: Path, workers: int) -> None:
    policy = fl.FaultPolicy("skip", retry=2, backoff=0.001)
    dataset = Drawn(12, FailsAtFirst(tmp_path, {2: 1, 7: 2, 9: 3}, eio))
    loader = DataLoader(dataset, 4, num_workers=workers, faults=policy)
    indices = [batch["index"].tolist() for batch in loader]

    # 9 has failed three times, once more than is allowed; the last sample fills its slot.
    assert indices == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 11, 10]]
    report = loader.report()
    assert (report.skipped, report.retried) == (1, 2)
    assert [(fault.index, fault.attempts) for fault in report.faults] == [(9, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_permanent_error_is_not_retried(tmp_path: Path, workers: int) -> None:
    policy = fl.FaultPolicy("skip", retry=5, backoff=0.001)
    loader = DataLoader(
        Drawn(4, FailsAtFirst(tmp_path, {2: 9}, ValueError)), faults=policy, num_workers=workers
    )
    assert len(list(loader)) == 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_of_errors_has_its_own_rule(workers: int) -> None:
    class Mixed(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 1:
                raise LookupError("left out")
            if index == 2:
                raise ValueError("replaced")
            return super().__getitem__(index)

    policy = fl.FaultPolicy(by_type={LookupError: "skip", ValueError: "replace"}, replacement=-2)
    assert delivered(DataLoader(Mixed(5), 2, num_workers=workers, faults=policy)) == [[0, 4], [-2, 3]]

    raising = fl.FaultPolicy("skip", by_type={LookupError: "raise"})
    with pytest.raises(LookupError, match="left out") as caught:
        list(DataLoader(Mixed(5), 2, num_workers=workers, faults=raising))
    assert "sample 1" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


# ---- limits ----


@pytest.mark.parametrize("workers", [0, 2])
def test_one_fault_more_than_the_limit_ends_the_run_with_a_table(workers: int) -> None:
    bad = {1, 5, 6, 11}
    assert delivered(
        DataLoader(Numbers(16, bad), 4, num_workers=workers, faults=fl.FaultPolicy("skip", limit=4))
    )
    loader = DataLoader(Numbers(16, bad), 4, num_workers=workers, faults=fl.FaultPolicy("skip", limit=3))
    batches: list[Any] = []
    with pytest.raises(errors.TooManyFaultsError) as caught:
        batches.extend(batch.tolist() for batch in loader)
    # All complete batches come first.
    assert [len(batch) for batch in batches] == [4, 4]
    assert caught.value.index == 11
    for part in ("limit of 3", "ValueError", "sample 11", "11 is bad"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert loader.report().skipped == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_of_the_last_samples_ends_the_run_at_the_same_sample_for_any_number_of_workers(
    workers: int,
) -> None:
    # One in ten until 60, then every second one.
    bad = set(range(0, 60, 10)) | set(range(60, 100, 2))
    policy = fl.FaultPolicy("skip", limit=0.25, window=20, fill=False)
    loader = DataLoader(Numbers(100, bad), 5, num_workers=workers, faults=policy)
    batches: list[Any] = []
    with pytest.raises(errors.TooManyFaultsError) as caught:
        batches.extend(batch.tolist() for batch in loader)
    # The sixth of 20 samples is more than a quarter.
    assert (len(batches), caught.value.index) == (13, 68)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_limit_counts_each_epoch_by_itself(workers: int) -> None:
    policy = fl.FaultPolicy("skip", limit=2)
    loader = DataLoader(Numbers(8, {1, 6}), 4, num_workers=workers, faults=policy)
    for _ in range(3):
        assert len(delivered(loader)) == 2


@pytest.mark.parametrize("workers", [2])
def test_after_the_limit_was_exceeded_the_next_epoch_starts_fresh(workers: int) -> None:
    policy = fl.FaultPolicy("skip", limit=0)
    loader = DataLoader(Numbers(8, {6}), 2, num_workers=workers, faults=policy, persistent_workers=True)
    for _ in range(2):
        batches: list[Any] = []
        with pytest.raises(errors.TooManyFaultsError):
            batches.extend(iter(loader))
        assert len(batches) == 3


# ---- random numbers, and deaths ----


def drawn(kind: type[Drawn], hook: Hook, **arguments: Any) -> list[Any]:
    """Three epochs, to compare also what follows a fault."""
    settings = {"batch_size": 4, "num_workers": 2, "shuffle": True, "faults": SKIP, **arguments}
    loader: DataLoader[Any] = DataLoader(kind(26, hook), generator=seeded(3), **settings)
    return [list(loader) for _ in range(3)]


@pytest.mark.parametrize("kind", [Drawn, Listed])
@pytest.mark.parametrize("policy", [SKIP, LEAVE, fl.FaultPolicy("replace")], ids=lambda policy: policy.text)
def test_the_same_faults_give_the_same_batches_to_the_last_bit(
    kind: type[Drawn], policy: fl.FaultPolicy
) -> None:
    stay = {"faults": policy, "persistent_workers": True}
    first = drawn(kind, Raises(5, 9, 21, 22), **stay)
    assert is_same(drawn(kind, Raises(5, 9, 21, 22), **stay), first)
    assert is_same(drawn(kind, Raises(5, 9, 21, 22), **stay, prefetch_factor=2), first)


class KillsOnce:
    """Kills the worker at a sample when the sample is made for the n-th time."""

    def __init__(self, folder: Path, index: int, time: int) -> None:
        self.folder = folder
        self.index = index
        self.time = time

    def __call__(self, index: int) -> None:
        if index != self.index:
            return
        times = len(list(self.folder.iterdir())) + 1
        (self.folder / str(times)).touch()
        if times == self.time:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", [Drawn, Listed])
@pytest.mark.parametrize("index", [6, 7, 24, 25])
@pytest.mark.parametrize("time", [1, 2])
def test_a_worker_that_is_killed_in_a_batch_with_bad_samples_changes_nothing(
    tmp_path: Path, kind: type[Drawn], index: int, time: int
) -> None:
    # 5 and 9 are bad: 25 and 24 fill their slots, in the batches of 6 and of 10.
    settings = {"shuffle": False, "persistent_workers": True}
    right = drawn(kind, Raises(5, 9), **settings)
    hook = Raises(5, 9, then=KillsOnce(tmp_path, index, time))
    assert is_same(drawn(kind, hook, **settings), right)
    assert len(list(tmp_path.iterdir())) > time


class Waits:
    """Waits at one sample until a file exists, and makes the file at another sample."""

    def __init__(self, folder: Path, *, at: int, for_: str, marks: int = -1) -> None:
        self.folder = folder
        self.at = at
        self.for_ = for_
        self.marks = marks

    def __call__(self, index: int) -> None:
        if index == self.marks:
            (self.folder / str(index)).touch()
        if index == self.at:
            assert eventually((self.folder / self.for_).exists)


def test_random_numbers_of_a_batch_that_gave_a_sample_away_do_not_depend_on_timing(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "persistent_workers": True, "faults": SKIP}
    # Batch 1 has a fault and takes a sample of batch 4, the last. Whether batch 4 was ordered by then...
    early = Waits(tmp_path, at=0, for_="12", marks=12)
    late = Waits(tmp_path, at=4, for_="taken")
    taken = []
    for hook in (early, late):
        loader: DataLoader[Any] = DataLoader(Drawn(20, Raises(5, then=hook)), generator=seeded(1), **settings)
        iterator = iterate(loader)
        batches = [next(iterator)]
        (tmp_path / "taken").touch()
        taken.append([*batches, *iterator, *loader])
    assert is_same(*taken)


# ---- iterable data sets ----


class Stream:
    """An iterator that continues after it has raised."""

    def __init__(self, numbers: list[int], bad: frozenset[int]) -> None:
        self.numbers = iter(numbers)
        self.bad = bad

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> int:
        number = next(self.numbers)
        if number in self.bad:
            raise ValueError(f"{number} is bad")
        return number


class Streaming(IterableDataset[int]):
    """The numbers up to a count; each worker has every n-th one."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count = count
        self.bad = frozenset(bad)

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return Stream(list(range(first, self.count, step)), self.bad)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_of_an_iterator_that_continues_are_left_out(workers: int) -> None:
    bad = {0, 1, 2, 7, 19}
    for size in (1, 3, None):
        loader = DataLoader(Streaming(20, bad), size, num_workers=workers, faults=SKIP)
        batches = delivered(loader)
        flat = batches if size is None else list(itertools.chain(*batches))
        assert sorted(flat) == sorted(set(range(20)) - bad)
        assert loader.report().skipped == len(bad)


def test_samples_of_an_iterator_move_up_or_leave_slots_empty() -> None:
    for workers in (0, 1):
        loader = DataLoader(Streaming(8, {1, 4, 5}), 2, num_workers=workers, faults=SKIP)
        assert delivered(loader) == [[0, 2], [3, 6], [7]]
        loader = DataLoader(Streaming(8, {1, 4, 5}), 2, num_workers=workers, faults=LEAVE)
        assert delivered(loader) == [[0], [2, 3], [6, 7]]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_given_replacement_takes_the_slot_of_a_sample_of_an_iterator(workers: int) -> None:
    policy = fl.FaultPolicy("replace", replacement=-1)
    loader = DataLoader(Streaming(6, {1, 4}), 3, num_workers=workers, faults=policy)
    assert delivered(loader) == [[0, -1, 2], [3, -1, 5]]
    assert loader.report().replaced == 2


def test_settings_that_an_iterable_data_set_cannot_have_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="another index"):
        DataLoader(Streaming(6, set()), faults=fl.FaultPolicy("replace"))
    with pytest.raises(errors.InvalidArgumentError, match="another index"):
        DataLoader(Streaming(6, set()), faults=fl.FaultPolicy(by_type={OSError: "replace"}))
    (tmp_path / "bad.jsonl").write_text("")
    with pytest.raises(errors.InvalidArgumentError, match="exclude"):
        DataLoader(Streaming(6, set()), exclude=tmp_path / "bad.jsonl")


class Generates(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 0
        yield 1
        raise ValueError("in the midst")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_raises_is_an_error_because_its_other_samples_are_lost(workers: int) -> None:
    loader = DataLoader(Generates(), num_workers=workers, faults=SKIP)
    batches: list[Any] = []
    with pytest.raises(ValueError, match="in the midst") as caught:
        batches.extend(loader)
    assert len(batches) == 2
    assert "a generator ends when it raises" in str(caught.value) + "".join(
        getattr(caught.value, "__notes__", [])
    )


class AlwaysFails(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(self.fail, None)

    def fail(self) -> int:
        raise ConnectionError("connection refused")


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_always_fails_does_not_hang(workers: int, size: int | None) -> None:
    for limit in (5, 0.5):
        policy = fl.FaultPolicy("skip", limit=limit, window=100)
        with pytest.raises(errors.TooManyFaultsError):
            list(DataLoader(AlwaysFails(), size, num_workers=workers, faults=policy))
    with pytest.raises(ConnectionError, match="connection refused"):
        list(DataLoader(AlwaysFails(), size, num_workers=workers, faults=SKIP))


class Shaky(Stream):
    """An iterator that fails at some samples and gives the same sample when asked again."""

    def __init__(self, numbers: list[int], folder: Path) -> None:
        self.waiting = numbers
        self.failed: set[int] = set()
        self.folder = folder

    def __next__(self) -> int:
        if not self.waiting:
            raise StopIteration
        number = self.waiting[0]
        if number % 3 == 0 and number not in self.failed:
            self.failed.add(number)
            raise eio()
        if number == 7 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.waiting.pop(0)


class ShakyStream(IterableDataset[int]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        return Shaky(list(range(10)), self.folder)


def test_a_replacement_worker_continues_an_iterator_with_retries(tmp_path: Path) -> None:
    policy = fl.FaultPolicy("skip", retry=1, backoff=0.001)
    loader = DataLoader(ShakyStream(tmp_path), 2, num_workers=1, faults=policy)
    assert delivered(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert len(loader.deaths) == 1
    assert loader.report().skipped == 0


# ---- other exceptions ----


class NeedsError(Exception):
    """Cannot be constructed from a single text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"needs {one} and {two}")


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def local() -> Exception:
    class Local(Exception):  # noqa: N818
        pass

    return Local("of a local class")


class RaisesWhat(Numbers):
    def __init__(self, make: Callable[[], BaseException]) -> None:
        super().__init__(6)
        self.make = make

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise self.make()
        return index


STRANGE: list[Callable[[], BaseException]] = [
    lambda: StopIteration(3),
    lambda: StopAsyncIteration(),
    lambda: NeedsError(1, 2),
    lambda: UnpicklableError("secret"),
    lambda: SilentError(),
    local,
    lambda: ValueError("a name of bytes: \udcff"),
    lambda: FileNotFoundError(errno.ENOENT, "gone", "/nowhere/\udcff.jpg"),
    lambda: RuntimeError("\x00 and\nmore lines"),
    lambda: ExceptionGroup("two", [ValueError(1), OSError(2)]),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", STRANGE, ids=lambda make: type(make()).__name__)
def test_a_sample_with_any_exception_is_skipped_and_named(
    tmp_path: Path, make: Callable[[], BaseException], workers: int
) -> None:
    policy = fl.FaultPolicy("skip", patience=0, quarantine=tmp_path / "bad.jsonl")
    loader = DataLoader(RaisesWhat(make), 2, num_workers=workers, faults=policy)
    assert delivered(loader) == [[0, 1], [2, 5], [4]]
    (fault,) = loader.report().faults
    assert (fault.index, fault.kind) == (3, type(make()).__name__)
    assert loader.report().to_json()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", STRANGE, ids=lambda make: type(make()).__name__)
def test_any_exception_is_raised_when_the_limit_is_exceeded(
    make: Callable[[], BaseException], workers: int
) -> None:
    policy = fl.FaultPolicy("skip", patience=0, limit=0)
    loader = DataLoader(RaisesWhat(make), 2, num_workers=workers, faults=policy)
    with pytest.raises(errors.TooManyFaultsError) as caught:
        list(loader)
    assert pickle.loads(pickle.dumps(caught.value)).index == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_system_exit_is_an_error_that_names_the_sample(workers: int) -> None:
    loader = DataLoader(RaisesWhat(lambda: SystemExit(3)), 2, num_workers=workers, faults=SKIP)
    with pytest.raises(RuntimeError, match="SystemExit") as caught:
        list(loader)
    assert "sample 3" in str(caught.value)


def broken(samples: list[int]) -> Any:
    if 4 in samples:
        raise ValueError("cannot be collated")
    return torch.tensor(samples)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bad", [set(), {5}], ids=["good", "bad"])
def test_an_error_in_collating_is_raised_whatever_the_policy(workers: int, bad: set[int]) -> None:
    for policy in (SKIP, LEAVE, fl.FaultPolicy("replace")):
        loader = DataLoader(
            Numbers(12, bad), 4, num_workers=workers, collate_fn=broken, faults=policy, generator=seeded(1)
        )
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="cannot be collated") as caught:
            next(iterator)
        assert "batch 1" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        # As with torch, the iterator continues after the error; but the epoch does not count as complete.
        assert len(list(iterator)) == 1
        assert loader.report().completed == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_when_every_sample_is_bad_the_epoch_is_empty_and_the_report_names_all(workers: int) -> None:
    for policy in (SKIP, LEAVE):
        loader = DataLoader(Numbers(9, set(range(9))), 2, num_workers=workers, faults=policy)
        assert delivered(loader) == []
        assert loader.report().skipped == 9


def test_without_order_every_good_sample_comes_once() -> None:
    bad = {1, 2, 11, 17}
    loader = DataLoader(Numbers(30, bad), 4, num_workers=3, in_order=False, faults=SKIP)
    assert sorted(itertools.chain(*delivered(loader))) == sorted(set(range(30)) - bad)


@pytest.mark.parametrize("workers", [0, 2])
def test_with_nested_loops_the_report_counts_the_newest_epoch(workers: int) -> None:
    loader = DataLoader(Numbers(12, {1, 5, 9}), 2, num_workers=workers, faults=SKIP)
    outer = iter(loader)
    next(outer)
    right = filled_batches(range(12), {1, 5, 9}, 2)
    inner = iter(loader)
    assert next(inner).tolist() == right[0]
    # Faults of the earlier epoch are judged while the newest one is counted.
    assert [batch.tolist() for batch in outer] == right[1:]
    assert [batch.tolist() for batch in inner] == right[1:]
    assert loader.report().completed == 1


def test_a_pickled_loader_with_a_policy_has_its_own_report() -> None:
    loader = DataLoader(Numbers(8, {1}), 4, faults=SKIP)
    list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.report().delivered == 0
    assert delivered(copied) == delivered(loader)
