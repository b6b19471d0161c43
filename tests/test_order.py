"""The order of samples: what each call means, and that every run can be resumed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline.errors import InvalidArgumentError, InvalidSourceError


def numbers(start: int, count: int) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(start, start + count)})


def order(pipeline: fl.Pipeline, epochs: int = 1, **settings: Any) -> list[int]:
    """The samples of some epochs, as values."""
    with pipeline.batch(7).loader(**settings) as loader:
        return [int(x) for _ in range(epochs) for batch in loader for x in batch["x"]]


# ---- the calls ----


def test_take_skip_and_repeat_work_as_on_lists() -> None:
    whole = list(range(40))
    assert order(numbers(0, 40).skip(5).take(20)) == whole[5:][:20]
    assert order(numbers(0, 40).take(20).skip(5)) == whole[:20][5:]
    assert order(numbers(0, 40).take(3).repeat(4)) == whole[:3] * 4
    assert order(numbers(0, 40).repeat(2).skip(35).take(10)) == (whole * 2)[35:][:10]


def test_shuffle_and_take_apply_in_the_order_of_the_calls() -> None:
    taken = order(numbers(0, 100).take(10).shuffle(3))
    assert sorted(taken) == list(range(10))
    assert taken != list(range(10))
    drawn = order(numbers(0, 100).shuffle(3).take(10))
    assert drawn == order(numbers(0, 100).shuffle(3))[:10]
    assert sorted(drawn) != list(range(10))


def test_a_shuffle_after_a_shard_stays_within_the_rank() -> None:
    for epoch in range(2):
        within = [order(numbers(0, 40).shard(rank, 4).shuffle(5), epoch + 1)[-10:] for rank in range(4)]
        assert [{x % 4 for x in part} for part in within] == [{0}, {1}, {2}, {3}]
    over = order(numbers(0, 40).shuffle(5).shard(0, 4))
    assert {x % 4 for x in over} != {0}


def test_repeated_passes_are_shuffled_again() -> None:
    passes = [order(numbers(0, 30).shuffle(2).repeat(3))[at : at + 30] for at in (0, 30, 60)]
    assert all(sorted(found) == list(range(30)) for found in passes)
    assert passes[0] != passes[1] != passes[2]


def test_a_buffer_shuffles_each_run_within_itself() -> None:
    found = order(numbers(0, 50).shuffle(1, buffer=8))
    runs = [found[at : at + 8] for at in range(0, 50, 8)]
    assert [sorted(run) for run in runs] == [list(range(at, min(at + 8, 50))) for at in range(0, 50, 8)]
    assert found != sorted(found)


def test_concatenated_sources_keep_their_own_order() -> None:
    three = numbers(0, 10).concat(numbers(100, 5), numbers(200, 3))
    assert order(three) == [*range(10), *range(100, 105), *range(200, 203)]
    assert sorted(order(three.shuffle(1))) == sorted(order(three))
    cut = numbers(0, 10).take(2).concat(numbers(100, 5).skip(3), numbers(200, 3))
    assert order(cut) == [0, 1, 103, 104, 200, 201, 202]
    assert len(three) == 18


def test_whole_sources_are_interleaved_and_dealt_out_as_shards() -> None:
    shards = numbers(0, 4).concat(numbers(10, 2), numbers(20, 3))
    assert order(shards.interleave(2)) == [0, 10, 1, 11, 2, 3, 20, 21, 22]
    assert order(shards.interleave(3, block=2)) == [0, 1, 10, 11, 20, 21, 2, 3, 22]
    assert order(shards.shard(0, 2, "uneven", by="shard")) == [0, 1, 2, 3, 20, 21, 22]
    assert order(shards.shard(1, 2, by="shard")) == [10, 11, 10, 11, 10, 11, 10]
    assert order(shards.shard(0, 2, "drop", by="shard").interleave(2)) == [0, 20]
    first, second = (order(shards.interleave(1, seed=4), epochs)[-9:] for epochs in (1, 2))
    assert sorted(first) == sorted(second) == sorted(order(shards))


def test_tensorflow_interleaves_in_the_same_order() -> None:
    tf = pytest.importorskip("tensorflow")
    lengths = [5, 1, 0, 8, 3, 3, 7]
    for cycle, block in itertools.product([1, 2, 4, 16], [1, 3]):
        starts = tf.data.Dataset.from_tensor_slices(([100 * at for at in range(7)], lengths))
        theirs = starts.interleave(
            lambda start, length: tf.data.Dataset.range(
                tf.cast(start, tf.int64), tf.cast(start + length, tf.int64)
            ),
            cycle_length=cycle,
            block_length=block,
            num_parallel_calls=cycle,
            deterministic=True,
        )
        first, *others = [numbers(100 * at, length) for at, length in enumerate(lengths)]
        assert order(first.concat(*others).interleave(cycle, block)) == list(theirs.as_numpy_iterator())


# ---- mixtures ----


def test_a_mixture_has_its_proportions_in_every_period() -> None:
    mixture = fl.mix({numbers(0, 70): 7, numbers(100, 20): 2, numbers(200, 10): 1})
    found = order(mixture)
    for at in range(0, 100, 10):
        assert Counter(x // 100 for x in found[at : at + 10]) == {0: 7, 1: 2, 2: 1}
    assert sorted(found) == [*range(70), *range(100, 120), *range(200, 210)]


@pytest.mark.parametrize("seed", [None, 3])
def test_parts_of_a_mixture_keep_their_own_order_and_start_again(seed: int | None) -> None:
    small, large = numbers(0, 5).shuffle(1), numbers(100, 60).shuffle(2)
    found = order(fl.mix([(small, 0.5), (large, 0.5)], seed=seed, samples=48), epochs=3)
    assert [x for x in found if x < 100] == order(small, epochs=15)[:72]
    assert [x for x in found if x >= 100] == order(large, epochs=2)[:72]


def test_ranks_share_a_mixture() -> None:
    mixture = fl.mix({numbers(0, 30): 3, numbers(100, 10): 1}, seed=5)
    ranks = [order(mixture.shard(rank, 4, "uneven")) for rank in range(4)]
    assert sorted(x for rank in ranks for x in rank) == [*range(30), *range(100, 110)]


def test_mixtures_can_be_mixed_and_resumed() -> None:
    inner = fl.mix({numbers(0, 4): 1, numbers(100, 4): 1})
    outer = fl.mix([(inner, 2), (numbers(200, 4), 1)]).take(6)
    assert Counter(x // 100 for x in order(outer)) == {0: 2, 1: 2, 2: 2}


# ---- resuming ----

ORDERS: dict[str, Callable[[], fl.Pipeline]] = {
    "taken": lambda: numbers(0, 60).shuffle(1).skip(7).take(33),
    "repeated": lambda: numbers(0, 13).shuffle(1).repeat(3),
    "in runs": lambda: numbers(0, 45).shuffle(2, buffer=10),
    "concatenated": lambda: numbers(0, 20).shuffle(1).concat(numbers(100, 11)).shuffle(4, buffer=6),
    "interleaved": lambda: numbers(0, 9).concat(numbers(100, 17), numbers(200, 3)).interleave(2, 2, seed=3),
    "mixed": lambda: fl.mix({numbers(0, 40).shuffle(1): 0.7, numbers(100, 8).shuffle(2): 0.3}, seed=1),
    "a rank of whole shards": lambda: (
        numbers(0, 9).concat(numbers(100, 30)).shard(0, 2, by="shard").shuffle(3)
    ),
    "a rank of a mixture": lambda: (
        fl.mix({numbers(0, 40): 3, numbers(100, 8): 1}, seed=2).shard(1, 3).shuffle(1)
    ),
}


def assert_resumes_after_every_batch(pipeline: fl.Pipeline, epochs: int) -> None:
    with pipeline.loader() as loader:
        states = [loader.state_dict()]
        expected = []
        for _ in range(epochs):
            for batch in loader:
                expected.append([int(index) for index in batch["index"]])
                states.append(loader.state_dict())
    for taken, state in enumerate(states):
        with pipeline.loader() as resumed:
            resumed.load_state_dict(state)
            found: list[list[int]] = []
            while len(found) < len(expected) - taken:
                found += [[int(index) for index in batch["index"]] for batch in resumed]
        assert found[: len(expected) - taken] == expected[taken:], f"after batch {taken}"


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_can_be_resumed_after_every_batch(name: str) -> None:
    assert_resumes_after_every_batch(ORDERS[name]().batch(4, index=True), epochs=2)


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_the_same_for_any_number_of_threads(name: str) -> None:
    first = order(ORDERS[name](), 3, threads=1)
    assert first == order(ORDERS[name](), 3, threads=5, prefetch=0)


def test_a_state_of_another_order_is_refused() -> None:
    loader = numbers(0, 20).take(10).batch(3).loader()
    state = loader.state_dict()
    for other in [numbers(0, 20).take(11), numbers(0, 20).skip(10), numbers(0, 20).repeat(1)]:
        with pytest.raises(fl.errors.StateMismatchError):
            other.batch(3).loader().load_state_dict(state)


def test_excluded_samples_are_as_if_they_did_not_exist(tmp_path: Path) -> None:
    quarantine = tmp_path / "bad.jsonl"
    quarantine.write_text(
        '{"index": 1, "kind": "CorruptImageError"}\n{"index": 10, "kind": "CorruptImageError"}\n'
    )
    shards = numbers(0, 4).concat(numbers(10, 2), numbers(20, 5))
    assert order(shards.interleave(2), exclude=quarantine) == [0, 10, 2, 11, 3, 20, 21, 22, 23]


# ---- refusals ----


def mistakes() -> Iterator[tuple[str, Callable[[], object], str]]:
    ten = numbers(0, 10)
    yield "too much skipped", lambda: ten.skip(10), "10 samples"
    yield "nothing taken", lambda: ten.take(0), "got 0"
    yield "no time repeated", lambda: ten.repeat(0), "got 0"
    yield "half a sample", lambda: ten.take(1.5), "1.5"  # type: ignore[arg-type]
    yield "an empty buffer", lambda: ten.shuffle(1, buffer=0), "got 0"
    yield "an empty cycle", lambda: ten.interleave(0), "got 0"
    yield "interleaved too late", lambda: ten.take(5).interleave(), "take"
    yield "shards dealt out too late", lambda: ten.shuffle().shard(0, 2, by="shard"), "shuffle"
    yield "an unknown unit", lambda: ten.shard(0, 2, by="file"), "file"  # type: ignore[arg-type]
    yield "two shards", lambda: ten.shard(0, 2).shard(0, 2), "already"
    yield "fewer shards than ranks", lambda: ten.shard(0, 2, by="shard"), "1 shards"
    yield "an endless epoch", lambda: ten.repeat(2**61), "too many to count"
    yield "take after batch", lambda: ten.batch(2).take(5), "take cannot follow batch"
    yield "a mixture of nothing", lambda: fl.mix({}), "{}"
    yield "a weight of nothing", lambda: fl.mix({ten: 0}), "got 0"
    yield "a weight that is text", lambda: fl.mix({ten: "much"}), "much"  # type: ignore[dict-item]
    yield "a mixture of numbers", lambda: fl.mix({5: 1.0}), "5"  # type: ignore[dict-item]
    yield "a mixture of batches", lambda: fl.mix({ten.batch(2): 1.0}), "batch"
    yield "a weight too small", lambda: fl.mix([(ten, 1), (ten, 1e-6)]), "0.000001"
    yield "one part of a rank", lambda: fl.mix([(ten.shard(0, 2), 1), (ten, 1)]), "rank 0 of 2"
    yield "behind batches", lambda: ten.batch(2).concat(ten), "batch"


@pytest.mark.parametrize(
    ("call", "text"), [case[1:] for case in mistakes()], ids=[case[0] for case in mistakes()]
)
def test_an_invalid_call_is_refused_where_it_is_written(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert text in str(raised.value)


def test_sources_with_other_fields_are_refused_with_the_difference() -> None:
    with pytest.raises(InvalidSourceError, match=r'"x" int64.*"y" int64'):
        numbers(0, 5).concat(fl.arrays({"y": np.arange(5)}))
    with pytest.raises(InvalidSourceError, match=r"int64\[\].*int64\[2\]"):
        fl.mix([(numbers(0, 5), 1), (fl.arrays({"x": np.zeros((5, 2), int)}), 1)])


def test_a_pipeline_shows_how_it_was_made() -> None:
    mixture = fl.mix({numbers(0, 4).take(2): 0.5}, seed=1).shuffle(2)
    assert repr(mixture) == "mix({arrays(x: int64[4]).take(samples=2): 0.5}).shuffle(seed=2)"
    assert repr(numbers(0, 1).concat(numbers(0, 2))) == "arrays(x: int64[1]).concat(arrays(x: int64[2]))"
