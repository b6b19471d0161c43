"""Quarantine: every bad sample is on the disk before the run continues, and left out of the next run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
import torch.utils.data
from feedline import errors
from feedline.torch import DataLoader
from torch.utils.data import Dataset, DistributedSampler

from faults.sets import seeded
from faults.trainers import Trainers

pytestmark = [
    pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.timeout(300),
]

BAD = frozenset({1, 6, 7, 13})


class Files(Dataset[int]):
    """Samples in files, some of which are missing."""

    def __init__(self, count: int = 16, bad: frozenset[int] = BAD) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise FileNotFoundError(2, "no such file", f"/dev/shm/{index}.jpg")
        return index


class Named(Files):
    """Samples whose indices are not numbers."""

    def __getitem__(self, index: Any) -> int:
        return super().__getitem__(int(index[0]))


class Names:
    """A sampler of such indices."""

    def __init__(self, names: list[Any]) -> None:
        self.names = names

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def skip(path: object) -> fl.FaultPolicy:
    return fl.FaultPolicy("skip", quarantine=str(path), patience=0, limit=None)


def lines(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    # A rank that finds a half-written line of another rank starts a new line, which leaves an empty line.
    # Readers skip empty lines.
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def numbers(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_line_has_all_details_of_a_bad_sample(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "bad.jsonl"
    loader = DataLoader(Files(), 4, num_workers=workers, faults=skip(path))
    numbers(loader)
    numbers(loader)

    # In order, and again in the second epoch.
    assert [(line["epoch"], line["index"]) for line in lines(path)] == [
        (epoch, index) for epoch in (0, 1) for index in (1, 6, 7, 13)
    ]
    first = lines(path)[0]
    assert first["kind"] == "FileNotFoundError"
    assert first["path"] == "/dev/shm/1.jpg"
    assert "no such file" in first["message"]
    assert "__getitem__" in first["traceback"]
    assert first["stage"] == "fetching"
    assert first["attempts"] == 1
    assert first.get("worker") == (0 if workers else None)
    assert first["time"] > 1.7e9
    assert loader.report().quarantined == len(lines(path)) == loader.report().skipped


def test_the_lines_and_their_order_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    seen = []
    for workers in (0, 1, 3):
        path = tmp_path / f"{workers}.jsonl"
        numbers(
            DataLoader(Files(), 3, shuffle=True, generator=seeded(4), num_workers=workers, faults=skip(path))
        )
        seen.append([(line["index"], line["kind"], line["message"], line["epoch"]) for line in lines(path)])
    assert seen[0] == seen[1] == seen[2]
    assert sorted(index for index, *_ in seen[0]) == sorted(BAD)


def test_a_line_is_written_before_the_batch_is_delivered(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    iterator = iter(DataLoader(Files(), 4, faults=skip(path)))
    next(iterator)
    assert [line["index"] for line in lines(path)] == [1]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_replaced_or_end_the_run_are_written_too(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "bad.jsonl"
    policy = fl.FaultPolicy("replace", quarantine=path, patience=0, replacement=-1)
    numbers(DataLoader(Files(), 4, num_workers=workers, faults=policy))
    assert [line["index"] for line in lines(path)] == sorted(BAD)

    other = tmp_path / "other.jsonl"
    policy = fl.FaultPolicy("skip", quarantine=other, patience=0, limit=1)
    with pytest.raises(errors.TooManyFaultsError):
        numbers(DataLoader(Files(), 4, num_workers=workers, faults=policy))
    # None after the one that exceeded the limit.
    assert [line["index"] for line in lines(other)] == [1, 6]


# ---- exclude ----


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_the_next_run_leaves_out_the_bad_samples(
    tmp_path: Path, workers: int, size: int | None, is_folder: bool
) -> None:
    path = tmp_path / ("bad/" if is_folder else "bad.jsonl")
    place = f"{path}/" if is_folder else path
    numbers(DataLoader(Files(), 4, num_workers=workers, faults=skip(place)))

    loader = DataLoader(Files(), size, num_workers=workers, exclude=path)
    batches = list(loader)

    flat = torch.cat(batches).tolist() if size else batches
    assert flat == sorted(set(range(16)) - BAD)
    assert [len(batch) for batch in batches] == [4, 4, 4] if size else len(batches) == 12
    report = loader.report()
    assert (report.excluded, report.expected, report.delivered, report.skipped) == (4, 12, 12, 0)


def test_excluding_and_shuffling_keeps_the_order_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    numbers(DataLoader(Files(), 4, faults=skip(path)))
    plain = torch.utils.data.DataLoader(Files(bad=frozenset()), 3, shuffle=True, generator=seeded(8))
    order = [index for index in torch.cat(list(plain)).tolist() if index not in BAD]
    for workers in (0, 2):
        loader = DataLoader(Files(), 3, shuffle=True, generator=seeded(8), num_workers=workers, exclude=path)
        assert list(itertools.chain(*numbers(loader))) == order


def test_with_drop_last_the_remaining_samples_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"index": 1, "kind": "X"}\n')
    for workers in (0, 2):
        loader = DataLoader(Files(8, frozenset()), 4, num_workers=workers, drop_last=True, exclude=path)
        assert numbers(loader) == [[0, 2, 3, 4]]
        report = loader.report()
        assert (report.excluded, report.delivered, report.dropped, report.expected) == (1, 4, 3, 4)


def test_samples_that_are_bad_beside_the_excluded_ones_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"index": {index}, "kind": "X"}}\n' for index in (1, 6)))
    for workers in (0, 2):
        loader = DataLoader(
            Files(), 4, num_workers=workers, exclude=path, faults=fl.FaultPolicy("skip", patience=0)
        )
        batches = numbers(loader)
        # 7 and 13 are bad; 15 and 14 fill their slots.
        assert batches == [[0, 2, 3, 4], [5, 15, 8, 9], [10, 11, 12, 14]]
        report = loader.report()
        assert (report.excluded, report.skipped, report.delivered, report.expected) == (2, 2, 12, 14)


@pytest.mark.parametrize(
    "names", [[(0, "a"), (1, "b"), (2, "c")], ["0-a", "1-b", "2-\udcff"]], ids=["tuples", "texts"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_indices_that_are_not_numbers_are_left_out_too(
    tmp_path: Path, names: list[Any], workers: int
) -> None:
    path = tmp_path / "bad.jsonl"
    dataset = Named(3, frozenset({1, 2}))
    sampler: Any = Names(names)
    assert numbers(DataLoader(dataset, 2, sampler=sampler, num_workers=workers, faults=skip(path))) == [[0]]
    loader = DataLoader(dataset, 2, sampler=sampler, num_workers=workers, exclude=path)
    assert numbers(loader) == [[0]]
    assert loader.report().excluded == 2


def test_a_missing_or_invalid_quarantine_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="nowhere"):
        DataLoader(Files(), exclude=tmp_path / "nowhere.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"index": 1, "kind": "X"}\n{"what": 2}\n')
    with pytest.raises(errors.InvalidArgumentError, match="2"):
        DataLoader(Files(), exclude=tmp_path / "bad.jsonl")


def test_a_file_that_is_also_excluded_is_read_when_the_loader_is_made(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"

    def run() -> tuple[int, int]:
        loader = DataLoader(Files(), 4, faults=skip(path), exclude=path)
        first, second = numbers(loader), numbers(loader)
        assert first == second
        return loader.report().skipped, loader.report().excluded

    path.touch()
    assert run() == (8, 0)
    assert run() == (0, 8)


def test_a_torn_line_of_a_killed_run_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"index": 1, "kind": "X"}\n{"index": 6, "ki')
    loader = DataLoader(Files(), 4, exclude=path, faults=skip(path))
    assert loader.report().excluded == 0
    numbers(loader)
    # The next record starts a new line.
    again = DataLoader(Files(), 4, exclude=path)
    assert sorted(itertools.chain(*numbers(again))) == sorted(set(range(16)) - BAD)


# ---- several ranks ----


def ranked(rank: int, workers: int, **arguments: Any) -> DataLoader[Any]:
    dataset = Files(40, frozenset({0, 2, 4, 6, 20, 22, 39}))
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True, seed=5)
    return DataLoader(dataset, 6, sampler=sampler, num_workers=workers, **arguments)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_have_equal_batches_whatever_is_bad_and_no_process_group_is_needed(drop_last: bool) -> None:
    shapes = []
    for rank in (0, 1):
        same = []
        for workers in (0, 2):
            policy = fl.FaultPolicy("skip", patience=0)
            loader = ranked(rank, workers, faults=policy, drop_last=drop_last)
            same.append(numbers(loader))
            report = loader.report()
            assert report.delivered + report.skipped == report.expected + report.repeated
            assert report.repeated > 0
            assert report.skipped == len(report.faults)
        assert same[0] == same[1]
        shapes.append([len(batch) for batch in same[0]])
    assert shapes[0] == shapes[1] == ([6, 6, 6] if drop_last else [6, 6, 6, 2])


@pytest.mark.parametrize("size", [6, None])
def test_ranks_have_equal_batches_with_different_numbers_of_excluded_samples(
    tmp_path: Path, size: int | None
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(f'{{"index": {index}, "kind": "X"}}\n' for index in (0, 2, 4, 6, 20, 22, 39)))
    shapes = []
    for rank in (0, 1):
        for workers in (0, 2):
            sampler: Any = DistributedSampler(Files(40), num_replicas=2, rank=rank, shuffle=False)
            loader = DataLoader(
                Files(40, frozenset()), size, sampler=sampler, num_workers=workers, exclude=path
            )
            batches = list(loader)
            report = loader.report()
            assert report.excluded == (6 if rank == 0 else 1)
            assert report.repeated == report.excluded
            assert report.delivered == report.expected + report.repeated == 20
            shapes.append([batch.numel() if size else 1 for batch in batches])
    assert all(shape == shapes[0] for shape in shapes)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 4])
def test_a_first_batch_that_is_bad_is_not_repeated_forever(workers: int, size: int) -> None:
    bad = frozenset(range(0, 10, 2))
    sampler: Any = DistributedSampler(Files(20), num_replicas=2, rank=0, shuffle=False)
    policy = fl.FaultPolicy("skip", patience=0)
    loader = DataLoader(Files(20, bad), size, sampler=sampler, num_workers=workers, faults=policy)
    batches = numbers(loader)
    assert [len(batch) for batch in batches] == ([1] * 10 if size == 1 else [4, 4, 2])
    assert not bad & set(itertools.chain(*batches))

    all_bad = DataLoader(
        Files(20, frozenset(range(20))), size, sampler=sampler, num_workers=workers, faults=policy
    )
    with pytest.raises(errors.TooManyFaultsError):
        numbers(all_bad)


RANKS = """
from feedline.torch import DataLoader
from torch.utils.data import DistributedSampler

class Every:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        if index % 3 == 0:
            raise ValueError("x" * 5000)
        return index

def run(rank):
    sampler = DistributedSampler(Every(), num_replicas=2, rank=rank, shuffle=False)
    policy = fl.FaultPolicy("skip", quarantine=arguments[0])
    loader = DataLoader(Every(), 5, sampler=sampler, num_workers=2, faults=policy)
    count = sum(len(batch) for batch in loader)
    # One rank has the even samples, the other the odd ones.
    bad = 34 - rank
    assert [count, loader.report().skipped, loader.report().quarantined] == [100, bad, bad], loader.report()

other = os.fork()
if other == 0:
    # The child must not run the code below, which would answer a second time.
    status = 1
    try:
        run(1)
        status = 0
    finally:
        os._exit(status)
run(0)
assert os.waitpid(other, 0)[1] == 0
say("both are done")
"""


class Every(Files):
    """Has the name and length of the data set of the two ranks."""


@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_two_ranks_write_at_once_and_no_line_is_torn_or_lost(
    tmp_path: Path, trainers: Trainers, is_folder: bool
) -> None:
    place = f"{tmp_path}/bad/" if is_folder else f"{tmp_path}/bad.jsonl"
    assert trainers.answer(RANKS, place) == "both are done"

    written = lines(Path(place))
    assert sorted(line["index"] for line in written) == list(range(0, 200, 3))
    assert all(line["rank"] == line["index"] % 2 for line in written)
    assert all(line["message"] == written[0]["message"] for line in written)
    assert len(list(Path(place).parent.rglob("*.jsonl"))) == (2 if is_folder else 1)
    loader = DataLoader(Every(200, frozenset()), 10, exclude=place)
    assert set(itertools.chain(*numbers(loader))) == {index for index in range(200) if index % 3}


class Stream(torch.utils.data.IterableDataset[int]):
    """A stream whose sixth sample raises."""

    def __iter__(self) -> Iterator[int]:
        for number in range(10):
            if number == 5:
                raise ValueError("the sixth")
            yield number


@pytest.mark.parametrize("workers", [0, 1])
def test_a_raised_fault_of_an_iterable_data_set_is_recorded_too(tmp_path: Path, workers: int) -> None:
    place = tmp_path / "bad.jsonl"
    events: list[fl.Event] = []
    policy = fl.FaultPolicy("raise", quarantine=str(place))
    loader = DataLoader(Stream(), 2, num_workers=workers, faults=policy, on_event=events.append)
    with pytest.raises(ValueError, match="the sixth"):
        list(loader)

    (line,) = lines(place)
    assert (line["index"], line["kind"], line["message"]) == (None, "ValueError", "the sixth")
    assert [event.name for event in events].count("run_stopped") == 1
    assert loader.report().quarantined == 1
