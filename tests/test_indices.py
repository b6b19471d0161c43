"""The samples of an epoch: exclusion, repetition for ranks, and lookup by index."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from feedline._account import json_index
from feedline._torch.indices import Planned, keys, without
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.lists(st.integers(0, 5), max_size=12)


def numbered(sizes: list[int]) -> list[list[int]]:
    """Batches of these sizes with the numbers from 0 on."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


def leave_out(
    batches: list[list[Any]], excluded: set[Any], *, ranks: int = 1
) -> tuple[list[tuple[list[Any], int, bool]], int]:
    """The batches that are left, and how many samples were left out."""
    counts: list[int] = []
    left = list(without(batches, keys(excluded), left_out=counts.append, ranks=ranks))
    return left, sum(counts)


# ---- exclusion ----


@given(SIZES, st.sets(st.integers(0, 40)))
def test_samples_that_are_not_excluded_come_once_in_order_and_only_the_last_batch_is_short(
    sizes: list[int], excluded: set[int]
) -> None:
    given_ = numbered(sizes)
    right = [index for index in itertools.chain(*given_) if index not in excluded]

    batches, left_out = leave_out(given_, excluded)

    assert [index for batch, _, _ in batches for index in batch] == right
    assert left_out == sum(sizes) - len(right)
    full = [size for size in sizes if size]
    filled = [(batch, is_short) for batch, _, is_short in batches if batch]
    for number, (batch, is_short) in enumerate(filled):
        assert is_short == (len(batch) < full[number])
        assert not is_short or number == len(filled) - 1


@given(SIZES, st.sets(st.integers(0, 40)))
def test_with_ranks_all_batches_keep_their_sizes_while_one_sample_is_left(
    sizes: list[int], excluded: set[int]
) -> None:
    given_ = numbered(sizes)
    right = [index for index in itertools.chain(*given_) if index not in excluded]

    batches, _ = leave_out(given_, excluded, ranks=2)

    if right:
        assert [len(batch) for batch, _, _ in batches if batch] == [size for size in sizes if size]
        assert not any(is_short for _, _, is_short in batches)
    own = [index for batch, repeats, _ in batches for index in batch[: len(batch) - repeats]]
    assert own == right
    assert all(index in right for batch, _, _ in batches for index in batch)


@pytest.mark.parametrize(
    "index",
    [
        5,
        np.int64(5),
        torch.tensor(5),
        "a/b.jpg",
        "bytes \udcff",
        (1, 2),
        (1, "two"),
        [1, 2],
        2.5,
        None,
        frozenset({1}),
    ],
    ids=repr,
)
def test_an_index_of_any_type_is_recognised_in_a_quarantine_file(index: Any) -> None:
    import json

    written = json.loads(json.dumps(json_index(index)))
    batches, left_out = leave_out([[index, 99]], {written})
    assert left_out == 1
    assert [batch for batch, _, _ in batches] == [[99]]


def test_a_fraction_does_not_match_an_integer_index() -> None:
    assert json_index(2.5) != 2
    assert json_index(np.float32(2.5)) != 2


def test_keys_that_are_lists_in_the_file_are_tuples() -> None:
    _, left_out = leave_out([[(1, 2), (3, (4, 5))]], set())
    assert left_out == 0
    excluded = keys([[1, 2], [3, [4, 5]]])
    assert {json_index((1, 2)), json_index((3, (4, 5)))} == excluded


def test_samples_repeated_for_excluded_ones_are_reported_with_their_batch() -> None:
    batches, _ = leave_out([[0, 1], [2, 3]], {1, 3}, ranks=2)
    assert batches == [([0, 2], 0, False), ([0, 2], 2, False)]


# ---- planned batches ----


@given(st.lists(st.integers(1, 5), max_size=200), st.booleans(), st.data())
def test_a_sample_is_found_by_its_sequence_and_a_batch_by_its_number_until_they_are_settled(
    sizes: list[int], remembers: bool, data: st.DataObject
) -> None:
    batches = numbered(sizes)
    planned = Planned(remembers=remembers)
    settled = 0
    for number, batch in enumerate(batches):
        planned.add(batch, len(batch))
        settled = data.draw(st.integers(settled, number)) if number % 7 == 0 else settled
        if settled:
            planned.forget(settled - 1)
        first = batches[0 if remembers else settled][0]
        assert [planned.index(sequence) for sequence in range(first, batch[-1] + 1)] == [
            *range(first, batch[-1] + 1)
        ]
        assert [planned.batch(at) for at in range(settled, number + 1)] == batches[settled : number + 1]


def test_an_endless_plan_is_not_kept() -> None:
    planned = Planned(remembers=False)
    for number in range(10_000):
        planned.add([number], 1)
        planned.forget(number)
    assert len(planned._batches) < 200
