"""Which samples an epoch has: what is excluded, what fills the places of bad ones, what ranks repeat."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from feedline._account import in_json
from feedline._torch.indices import Indices, keys, plainly, without
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.lists(st.integers(0, 5), max_size=12)


def numbered(sizes: list[int]) -> list[list[int]]:
    """Batches of these sizes, of the numbers from 0."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


def indices(batches: list[list[int]], **changes: Any) -> Indices:
    settings: dict[str, Any] = {"is_batched": True, "drop_last": False, "ranks": 1, "has_end": True}
    return Indices(plainly(batches), **{**settings, **changes})


class Counts:
    """Adds up what it is told."""

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


# ---- what is excluded ----


@given(SIZES, st.sets(st.integers(0, 40)), st.booleans())
def test_what_is_not_excluded_comes_once_in_order_and_is_told_if_dropped(
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
    # Sizes stay; only the last batch may be short.
    assert [len(batch) for batch, _ in batches][:-1] == sizes[: len(batches)][:-1]


@given(SIZES, st.sets(st.integers(0, 40)), st.booleans())
def test_with_ranks_the_sizes_of_all_batches_stay_as_long_as_one_sample_is_left(
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
def test_an_index_of_any_kind_is_found_again_as_the_file_has_it(index: Any) -> None:
    import json

    written = json.loads(json.dumps(in_json(index)))
    batches, counts = leave_out([[index, 99]], {written})
    assert counts.left_out == 1
    assert [batch for batch, _ in batches] == [[99]]


def test_a_number_that_is_not_whole_is_no_other_index() -> None:
    assert in_json(2.5) != 2
    assert in_json(np.float32(2.5)) != 2


def test_keys_that_a_file_has_as_lists_are_tuples_here() -> None:
    _, counts = leave_out([[(1, 2), (3, (4, 5))]], set())
    assert counts.left_out == 0
    excluded = keys([[1, 2], [3, [4, 5]]])
    assert {in_json((1, 2)), in_json((3, (4, 5)))} == excluded


# ---- what fills a place ----


def test_places_are_filled_from_the_end_and_the_order_of_others_stays() -> None:
    source = indices([[0, 1, 2], [3, 4, 5], [6, 7]])
    assert next(source) == [0, 1, 2]
    assert [source.spare() for _ in range(3)] == [(7, False), (6, False), (5, False)]
    assert list(source) == [[3, 4]]
    assert source.spare() is None


def test_where_no_batch_may_be_short_the_rest_of_the_last_one_is_kept_for_other_places() -> None:
    source = indices([[0, 1], [2, 3], [4, 5]], drop_last=True)
    next(source)
    assert source.spare() == (5, False)
    assert source.spares == [4]
    assert list(source) == [[2, 3]]
    assert source.spare() == (4, False)
    assert source.spare() is None


def test_without_a_known_end_places_are_filled_from_what_comes_next_and_the_rest_comes_last() -> None:
    source = indices([[0, 1], [2, 3, 4], [5]], has_end=False)
    assert next(source) == [0, 1]
    assert source.spare() == (2, False)
    assert list(source) == [[5], [3, 4]]
    assert source.spare() is None


def test_an_endless_sampler_is_not_read_to_its_end() -> None:
    source = Indices(
        plainly([index] for index in itertools.count()),
        is_batched=True,
        drop_last=False,
        ranks=1,
        has_end=False,
    )
    assert next(source) == [0]
    assert source.spare() == (1, False)
    assert source.ends_within(1)
    assert next(source) == [2]


@given(SIZES, st.lists(st.booleans(), max_size=60), st.booleans())
def test_every_index_is_given_once_whoever_asks(sizes: list[int], asks: list[bool], drop_last: bool) -> None:
    source = indices(numbered(sizes), drop_last=drop_last)
    came: list[int] = []
    for wants_batch in asks:
        if wants_batch:
            came += next(source, [])
        else:
            found = source.spare()
            came += [] if found is None else [found[0]]
    for batch in source:
        came += batch
    assert sorted(came + source.spares) == list(range(sum(sizes)))
    assert drop_last or not source.spares


@given(SIZES, st.integers(0, 8), st.lists(st.integers(0, 3), max_size=10))
def test_what_fills_a_place_does_not_depend_on_how_far_ahead_was_read(
    sizes: list[int], ahead: int, asks: list[int]
) -> None:
    """Batches that were taken off before a place was to be filled are the first ones: the end stays."""
    one, other = indices(numbered(sizes)), indices(numbered(sizes))
    other.ends_within(ahead)
    for ask in asks:
        assert next(one, None) == next(other, None)
        other.ends_within(ahead)
        for _ in range(ask):
            assert one.spare() == other.spare()
    assert list(one) == list(other)


def test_one_by_one_they_are_no_lists() -> None:
    source = indices([[0], [1], [2]], is_batched=False)
    assert next(source) == 0
    assert source.spare() == (2, False)
    assert list(source) == [1]


# ---- what ranks repeat ----


def test_with_ranks_the_samples_of_the_first_batch_are_repeated_in_turn() -> None:
    source = indices([[0, 1], [2, 3], [4]], ranks=2)
    assert next(source) == [0, 1]
    assert [source.spare() for _ in range(3)] == [(0, True), (1, True), (0, True)]
    assert list(source) == [[2, 3], [4]]
    assert source.spare() == (1, True)


def test_a_bad_sample_is_not_repeated_and_if_all_are_bad_the_next_ones_are() -> None:
    source = indices([[0, 1], [2, 3], [4, 5]], ranks=2)
    assert next(source) == [0, 1]
    source.is_bad(0)
    assert [source.spare(), source.spare()] == [(1, True), (1, True)]
    source.is_bad(1)
    assert source.spare() == (2, True)
    for index in (2, 3, 4, 5):
        source.is_bad(index)
    assert source.spare() is None
    # To look for them has taken none away.
    assert list(source) == [[2, 3], [4, 5]]


def test_what_was_repeated_in_place_of_excluded_samples_is_told_with_its_batch() -> None:
    counts = Counts()
    batches = without(
        [[0, 1], [2, 3]],
        keys([1, 3]),
        left_out=counts.leave,
        dropped=counts.drop,
        ranks=2,
        drop_last=False,
    )
    source = Indices(batches, is_batched=True, drop_last=False, ranks=2, has_end=True)
    assert (next(source), source.repeats) == ([0, 2], 0)
    assert (next(source), source.repeats) == ([0, 2], 2)
    assert next(source, None) is None
