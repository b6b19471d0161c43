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


class Counts:
    """Counts excluded and dropped samples."""

    def __init__(self) -> None:
        self.left_out = 0
        self.dropped = 0

    def leave(self, samples: int) -> None:
        self.left_out += samples

    def drop(self, samples: int) -> None:
        self.dropped += samples


def leave_out(
    batches: list[list[Any]], excluded: set[Any], *, ranks: int = 1, drop_last: bool = False
) -> tuple[list[tuple[list[Any], int]], Counts]:
    counts = Counts()
    left = without(
        batches,
        keys(excluded),
        left_out=counts.leave,
        dropped=counts.drop,
        ranks=ranks,
        drop_last=drop_last,
    )
    return list(left), counts


# ---- exclusion ----


@given(SIZES, st.sets(st.integers(0, 40)), st.booleans())
def test_samples_that_are_not_excluded_come_once_in_order_and_dropped_ones_are_reported(
    sizes: list[int], excluded: set[int], drop_last: bool
) -> None:
    given_ = numbered(sizes)
    right = [index for index in itertools.chain(*given_) if index not in excluded]

    batches, counts = leave_out(given_, excluded, drop_last=drop_last)

    came = list(itertools.chain(*(batch for batch, _ in batches)))
    assert came == right[: len(came)]
    assert len(came) + counts.dropped == len(right)
    assert counts.dropped == 0 or drop_last
    assert counts.left_out == sum(sizes) - len(right)
    # Batches keep their sizes; only the last one may be short.
    assert [len(batch) for batch, _ in batches][:-1] == sizes[: len(batches)][:-1]


@given(SIZES, st.sets(st.integers(0, 40)), st.booleans())
def test_with_ranks_all_batches_keep_their_sizes_while_one_sample_is_left(
    sizes: list[int], excluded: set[int], drop_last: bool
) -> None:
    given_ = numbered(sizes)
    right = [index for index in itertools.chain(*given_) if index not in excluded]

    batches, counts = leave_out(given_, excluded, ranks=2, drop_last=drop_last)

    if right:
        assert [len(batch) for batch, _ in batches if batch] == [size for size in sizes if size]
        assert counts.dropped == 0
    own = [index for batch, repeats in batches for index in batch[: len(batch) - repeats]]
    assert own == right
    assert all(index in right for batch, _ in batches for index in batch)


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
    batches, counts = leave_out([[index, 99]], {written})
    assert counts.left_out == 1
    assert [batch for batch, _ in batches] == [[99]]


def test_a_fraction_does_not_match_an_integer_index() -> None:
    assert json_index(2.5) != 2
    assert json_index(np.float32(2.5)) != 2


def test_keys_that_are_lists_in_the_file_are_tuples() -> None:
    _, counts = leave_out([[(1, 2), (3, (4, 5))]], set())
    assert counts.left_out == 0
    excluded = keys([[1, 2], [3, [4, 5]]])
    assert {json_index((1, 2)), json_index((3, (4, 5)))} == excluded


def test_samples_repeated_for_excluded_ones_are_reported_with_their_batch() -> None:
    batches, _ = leave_out([[0, 1], [2, 3]], {1, 3}, ranks=2)
    assert batches == [([0, 2], 0), ([0, 2], 2)]


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
