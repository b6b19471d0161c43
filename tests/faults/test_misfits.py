"""Samples that torch cannot collate are found by comparison, named, and judged by the policy."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline._torch.collatable import CollateCheck
from feedline._torch.random_state import GeneratorStates
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset, default_collate

pytestmark = pytest.mark.timeout(300)

SKIP = fl.FaultPolicy("skip")
Sample = dict[str, Any]


def good(index: int) -> Sample:
    return {"image": torch.full((3, 4), float(index)), "id": index}


class Pictures(Dataset[Any]):
    """Good samples, and odd ones at some indices."""

    def __init__(self, odd: dict[int, Any], count: int = 12) -> None:
        self.odd = odd
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        odd = self.odd.get(index, good)
        return odd(index) if callable(odd) else odd


class Together(Pictures):
    """The same with `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    """The same as an iterable data set."""

    def __init__(self, odd: dict[int, Any], count: int = 12) -> None:
        self.pictures = Pictures(odd, count)

    def __iter__(self) -> Iterator[Any]:
        return (self.pictures[index] for index in range(self.pictures.count))


def wide(index: int) -> Sample:
    return {**good(index), "image": torch.zeros(3, 5)}


ODD: dict[int, Any] = {5: wide, 6: None, 9: {"image": None, "id": 9}}


def ids(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def reasons(loader: DataLoader[Any]) -> dict[Any, str]:
    return {fault.index: fault.reason for fault in loader.report().faults}


def blamed(samples: list[Any], collate: Callable[[Any], Any] = default_collate) -> dict[int, str]:
    return {found.offset: found.text for found in CollateCheck(collate, GeneratorStates()).misfits(samples)}


# ---- which sample is blamed ----


def test_the_sample_that_differs_from_most_others_is_found_and_described() -> None:
    tensor = torch.zeros(3, 4)
    table: list[tuple[Any, Any, str]] = [
        (tensor, torch.zeros(3, 5), "gives a tensor of shape (3, 5), the other 3 give (3, 4)"),
        (tensor, None, "gives None, the other 3 give a tensor of shape (3, 4)"),
        (tensor, 7, "gives an int, the other 3 give a tensor of shape (3, 4)"),
        (np.zeros(3), np.zeros(4), "gives an array of shape (4,), the other 3 give (3,)"),
        (1.5, "high", "gives a str, the other 3 give a float"),
        ((tensor, 1), (tensor, None), "gives None at [1], the other 3 give an int"),
        ((tensor, 1), (tensor, 1, 2), "gives a tuple of 3, the other 3 give a tuple of 2"),
        (
            {"a": [tensor]},
            {"a": [torch.zeros(2)]},
            'tensor of shape (2,) at ["a"][0], the other 3 give (3, 4)',
        ),
        ({"a": 1, "b": 2}, {"a": 1}, "gives a dict without the key 'b', the other 3 give one with it"),
        (np.zeros(2), np.array(["x", "y"]), "gives an array of <U1, the other 3 give float64"),
    ]
    for usual, odd, text in table:
        # Whether torch refuses it may depend on which sample comes first.
        batches = [[odd if place == offset else usual for place in range(4)] for offset in range(4)]
        refused = [offset for offset, samples in enumerate(batches) if fails(samples)]
        assert refused
        for offset in refused:
            found = blamed(batches[offset])
            assert list(found) == [offset]
            assert text in found[offset]


def fails(samples: list[Any]) -> bool:
    try:
        default_collate(samples)
    except Exception:
        return True
    return False


def test_none_is_always_the_sample_that_does_not_fit() -> None:
    assert list(blamed([None, good(1), None, None])) == [0, 2, 3]
    assert blamed([None, None]) == {0: "gives None", 1: "gives None"}
    assert blamed([{"a": None}, {"a": None}]) == dict.fromkeys((0, 1), 'gives None at ["a"]')


def test_a_difference_that_is_not_the_cause_is_not_blamed() -> None:
    extra = {**good(1), "more": 1}
    assert list(blamed([good(0), extra, wide(2), good(3), good(4)])) == [2]

    def padded(samples: list[Any]) -> Any:
        if any(sample["label"] is None for sample in samples):
            raise ValueError("no label")
        return [sample["x"] for sample in samples]

    samples = [{"x": torch.zeros(1 + index % 5), "label": 1} for index in range(9)]
    samples[4]["label"] = None
    assert list(blamed(samples, padded)) == [4]

    def by_value(samples: list[Any]) -> Any:
        return [1 // int(sample.sum()) for sample in samples]

    lengths = [torch.ones(length) for length in (2, 3, 2, 4, 2)]
    lengths[3][:] = 0
    assert list(blamed(lengths, by_value)) == [3]


def test_if_no_difference_explains_the_error_no_sample_is_blamed() -> None:
    def broken(samples: list[Any]) -> Any:
        raise KeyError("labels")

    assert blamed([torch.zeros(length) for length in (2, 3, 3, 4)], broken) == {}
    assert blamed([object(), object(), object()]) == {}
    assert blamed([good(0), good(1)], broken) == {}


def test_of_two_equal_groups_the_one_that_collates_then_the_earlier_batches_decide() -> None:
    assert list(blamed([object(), torch.zeros(2)])) == [0]
    both = blamed([torch.zeros(2), torch.zeros(3)])
    assert both == {
        0: "gives a tensor of shape (2,), the other gives (3,)",
        1: "gives a tensor of shape (3,), the other gives (2,)",
    }
    fitting = CollateCheck(default_collate, GeneratorStates())
    fitting.remember([torch.zeros(3)])
    assert [found.offset for found in fitting.misfits([torch.zeros(2), torch.zeros(3)])] == [0]
    assert "unlike earlier samples" in fitting.misfits([object()])[0].text


def test_the_search_does_not_advance_the_users_random_generators() -> None:
    def drawing(samples: list[Any]) -> Any:
        random.random()
        torch.rand(1)
        return default_collate(samples)

    before = random.getstate(), torch.get_rng_state()
    assert list(blamed([good(0), None, wide(2), good(3), good(4)], drawing)) == [1, 2]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


# ---- default: the error is raised ----


def test_the_exception_is_torchs_own_with_the_sample_in_a_note() -> None:
    for policy in (None, fl.FaultPolicy()):
        for dataset in (Pictures({5: wide}), Together({5: wide})):
            loader = DataLoader(dataset, 4, faults=policy)
            with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
                list(loader)
            notes = caught.value.__notes__
            assert notes[0] == (
                'feedline: sample 5 gives a tensor of shape (3, 5) at ["image"], the other 3 give (3, 4)'
            )
            replay = "replay: loader.replay(batch=1, epoch=0)"
            assert notes[-1] == f"feedline: at sample 5, offset 1 of batch 1\n{replay}"
    with pytest.raises(TypeError) as caught_type:
        list(DataLoader(Stream({6: None}), 4))
    assert "the sample at offset 2 gives None" in caught_type.value.__notes__[0]


@pytest.mark.parametrize("policy", [None, fl.FaultPolicy()], ids=["none", "raise"])
def test_from_a_worker_the_exception_names_the_sample_and_the_loader_continues(policy: Any) -> None:
    iterator = iter(DataLoader(Pictures({5: wide}), 4, num_workers=1, faults=policy))
    next(iterator)
    with pytest.raises(RuntimeError, match="Caught RuntimeError in DataLoader worker process 0") as caught:
        next(iterator)
    text = str(caught.value)
    assert 'sample 5 gives a tensor of shape (3, 5) at ["image"], the other 3 give (3, 4)' in text
    place, replay = text.splitlines()[-2:]
    assert place == "feedline: at sample 5, offset 1 of batch 1, worker 0"
    assert replay == "replay: loader.replay(batch=1, epoch=0)"
    known: Any = caught.value
    assert (known.index, known.batch_offset, known.batch, known.worker) == (5, 1, 1, 0)
    if policy is None:
        assert next(iterator)["id"].tolist() == [8, 9, 10, 11]


# ---- the policy judges the sample ----


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_do_not_fit_are_skipped_and_named(workers: int, tmp_path: Path) -> None:
    for dataset in (Pictures(ODD), Together(ODD)):
        file = tmp_path / f"{type(dataset).__name__}.jsonl"
        loader = DataLoader(dataset, 4, num_workers=workers, faults=fl.FaultPolicy("skip", quarantine=file))
        assert ids(loader) == [[0, 1, 2, 3], [4, 11, 10, 7], [8]]
        assert reasons(loader) == {
            5: 'it gives a tensor of shape (3, 5) at ["image"], 2 of the other 3 give (3, 4)',
            6: "it gives None, the other 3 give a dict with the keys 'image', 'id'",
            9: 'it gives None at ["image"], the other gives a tensor of shape (3, 4)',
        }
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert {line["index"] for line in lines if "index" in line} == {5, 6, 9}
        assert {fault.stage for fault in loader.report().faults} == {"collate"}
        assert loader.report().skipped == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_an_iterable_data_set_that_do_not_fit_are_skipped(workers: int) -> None:
    loader = DataLoader(Stream(ODD), 4, num_workers=workers, faults=SKIP)
    assert ids(loader) == [[0, 1, 2, 3], [4, 7, 8, 10], [11]]
    assert loader.report().skipped == 3
    loader = DataLoader(
        Stream(ODD), 4, num_workers=workers, drop_last=True, faults=fl.FaultPolicy("skip", fill=False)
    )
    assert ids(loader) == [[0, 1, 2, 3], [4, 7], [8, 10, 11]]


@pytest.mark.parametrize("workers", [0, 1])
def test_without_fill_batches_with_misfits_are_smaller_and_empty_ones_are_left_out(workers: int) -> None:
    odd = {**ODD, **dict.fromkeys(range(8, 12), None)}
    for make in (Pictures, Stream):
        loader = DataLoader(make(odd), 4, num_workers=workers, faults=fl.FaultPolicy("skip", fill=False))
        assert ids(loader) == [[0, 1, 2, 3], [4, 7]]
        assert loader.report().skipped == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_does_not_fit_is_replaced_by_another_sample_or_by_the_replacement(workers: int) -> None:
    loader = DataLoader(Pictures(ODD), 4, num_workers=workers, faults=fl.FaultPolicy("replace"))
    came = ids(loader)
    assert [len(batch) for batch in came] == [4, 4, 4]
    assert not {5, 6, 9} & set(itertools.chain(*came))
    given = {"image": torch.ones(3, 4), "id": -1}
    policy = fl.FaultPolicy("replace", replacement=given)
    for make in (Pictures, Stream):
        loader = DataLoader(make(ODD), 4, num_workers=workers, faults=policy)
        assert ids(loader) == [[0, 1, 2, 3], [4, -1, -1, 7], [8, -1, 10, 11]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_replacement_that_does_not_fit_is_an_error(workers: int) -> None:
    policy = fl.FaultPolicy("replace", replacement={"image": torch.ones(2, 2), "id": -1})
    loader = DataLoader(Pictures({5: None}), 4, num_workers=workers, faults=policy)
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "gives a tensor of shape (2, 2)" in said
    assert "the replacement that FaultPolicy was given" in said


class Once(Pictures):
    """Returns None for one sample, the first time."""

    def __getitem__(self, index: int) -> Any:
        is_first = index == 5 and index not in self.asked
        sample = super().__getitem__(index)
        return None if is_first else sample


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_may_fit_after_a_retry(workers: int) -> None:
    policy = fl.FaultPolicy("raise", by_type={TypeError: {"retry": 2}}, backoff=0.001)
    loader = DataLoader(Once({}), 4, num_workers=workers, faults=policy)
    assert ids(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    report = loader.report()
    assert (report.retried, report.skipped) == (1, 0)
    policy = fl.FaultPolicy("skip", by_type={Exception: {"action": "skip", "retry": 1}}, backoff=0.001)
    loader = DataLoader(Pictures(ODD), 4, num_workers=workers, faults=policy)
    assert ids(loader) == [[0, 1, 2, 3], [4, 11, 10, 7], [8]]
    assert {fault.attempts for fault in loader.report().faults} == {2}


@pytest.mark.parametrize("workers", [0, 1])
def test_more_misfits_than_the_limit_end_the_run(workers: int) -> None:
    policy = fl.FaultPolicy("skip", limit=2)
    with pytest.raises(fl.errors.TooManyFaultsError) as caught:
        list(DataLoader(Pictures(ODD), 4, num_workers=workers, faults=policy))
    assert "it gives None" in str(caught.value) or "gives None" in str(caught.value.__cause__)


def test_a_sample_that_fills_a_slot_and_does_not_fit_is_judged_too() -> None:
    for workers in (0, 1):
        loader = DataLoader(Pictures({1: None, 11: wide, 10: None}), 4, num_workers=workers, faults=SKIP)
        assert sorted(itertools.chain(*ids(loader))) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
        assert set(reasons(loader)) == {1, 10, 11}


# ---- a user's collate function ----


def without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


def picky(samples: list[Any]) -> Any:
    if any(sample is None for sample in samples):
        raise ValueError("cannot collate None")
    return default_collate(samples)


def broken(samples: list[Any]) -> Any:
    raise KeyError("labels")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_function_that_handles_none_still_gets_it(workers: int) -> None:
    loader = DataLoader(Pictures({5: None}), 4, num_workers=workers, collate_fn=without_none, faults=SKIP)
    assert ids(loader) == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11]]
    assert loader.report().faults == ()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_collate_function_for_one_sample_is_a_fault_of_that_sample(workers: int) -> None:
    loader = DataLoader(Pictures({5: None}), 4, num_workers=workers, collate_fn=picky, faults=SKIP)
    assert ids(loader) == [[0, 1, 2, 3], [4, 11, 6, 7], [8, 9, 10]]
    (fault,) = loader.report().faults
    assert (fault.index, fault.kind) == (5, "ValueError")
    loader = DataLoader(Pictures({}), 4, num_workers=workers, collate_fn=broken, faults=SKIP)
    with pytest.raises(KeyError, match="labels"):
        list(loader)
    assert loader.report().faults == ()
