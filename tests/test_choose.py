"""Filters and buckets: which samples are kept, which come together, and that every run can be resumed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline.errors import InvalidArgumentError
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo

Checked = list[list[int]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


def numbers(count: int) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(count), "half": np.arange(count, dtype=np.float32) / 2})


def texts(folder: Path, lengths: Sequence[int | None]) -> fl.Pipeline:
    """Lines with the given numbers of tokens; `None` makes a corrupt line."""
    lines = [
        '{"tokens": [1, ' if length is None else json.dumps({"tokens": [at] * length, "word": "ab"[at % 2]})
        for at, length in enumerate(lengths)
    ]
    path = folder / "texts.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return fl.jsonl(path, index=None).parse({"tokens": fl.int64(shape=[None]), "word": fl.text()})


def batches(loader: fl.Loader) -> Checked:
    return [[int(index) for index in batch["index"]] for batch in loader]


def accounted(loader: fl.Loader) -> fl.Report:
    report = loader.report()
    assert report.delivered - report.repeated + report.skipped == report.expected
    assert report.pending == 0
    return report


def flat(lists: Checked) -> list[int]:
    return [index for part in lists for index in part]


def assert_resumes_after_every_batch(make: Callable[[], fl.Loader], epochs: int) -> Checked:
    with make() as loader:
        states = [loader.state_dict()]
        expected: Checked = []
        for _ in range(epochs):
            for batch in loader:
                expected.append([int(index) for index in batch["index"]])
                states.append(loader.state_dict())
    for taken, state in enumerate(states):
        with make() as resumed:
            resumed.load_state_dict(state)
            found: Checked = []
            for _ in range(epochs + 1):
                found += batches(resumed)
            accounted(resumed)
        assert found[: len(expected) - taken] == expected[taken:], f"after batch {taken}"
    return expected


# ---- filter ----


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (fl.col("x") < 7, lambda x: x < 7),
        (fl.col("x") <= 7, lambda x: x <= 7),
        (fl.col("x") == 7, lambda x: x == 7),
        (fl.col("x") != 7, lambda x: x != 7),
        (fl.col("x") >= 90, lambda x: x >= 90),
        (fl.col("x") > 90, lambda x: x > 90),
        (fl.col("half") == 2.5, lambda x: x == 5),
        (fl.col("half") < np.float32(2.5), lambda x: x < 5),
        (fl.col("x").isin([3, 5, 8, 200]), lambda x: x in (3, 5, 8)),
        (fl.col("index").isin(range(10)), lambda x: x < 10),
        ((fl.col("x") < 20) & (fl.col("half") > 5), lambda x: 10 < x < 20),
        ((fl.col("x") < 5) | ~(fl.col("x") < 95), lambda x: x < 5 or x >= 95),
        (fl.col("x") < 1000, lambda x: True),
        (fl.col("x") < 0, lambda x: False),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_a_filter_keeps_what_python_would_keep(predicate: Any, kept: Callable[[int], bool]) -> None:
    with numbers(100).filter(predicate).batch(8, index=True).loader() as loader:
        found = batches(loader)
        report = accounted(loader)
    expected = [x for x in range(100) if kept(x)]
    assert found == [expected[at : at + 8] for at in range(0, len(expected), 8)]
    assert report.filtered == 100 - len(expected)
    assert report.expected == report.delivered == len(expected)


def test_filters_combine_and_follow_any_order() -> None:
    pipeline = numbers(60).shuffle(2).repeat(2).filter(fl.col("x") < 30).filter(fl.col("x") != 3)
    with pipeline.batch(7, index=True).loader() as loader:
        found = flat(batches(loader))
    assert sorted(found) == sorted([x for x in range(30) if x != 3] * 2)


def test_texts_are_filtered_by_length_and_word(tmp_path: Path) -> None:
    lengths = [3, 0, 9, 4, 7, 1]
    lines = texts(tmp_path, lengths)
    for predicate, expected in [
        (fl.length("tokens") >= 4, [2, 3, 4]),
        (fl.length("tokens").isin([0, 1]), [1, 5]),
        (fl.col("word") == "b", [1, 3, 5]),
        (fl.col("word").isin(["a"]) & (fl.length("word") == 1), [0, 2, 4]),
    ]:
        with lines.filter(predicate).batch(2, index=True).loader() as loader:
            assert flat(batches(loader)) == expected


def test_filtered_samples_are_not_decoded(tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        content = bytearray(encoded(photo(number, 20, 20), "PNG"))
        if number % 2 == 0:  # The header is valid, and the pixels have a wrong checksum.
            content[len(content) // 2] ^= 1
        paths.append(tmp_path / f"{number}.png")
        paths[-1].write_bytes(content)
    with fl.files(paths[:1]).decode().batch(1).loader() as loader, pytest.raises(fl.errors.CorruptImageError):
        next(iter(loader))
    pipeline = fl.files(paths, labels=range(6)).decode().filter(fl.col("label").isin([1, 3, 5]))
    with pipeline.batch(2, index=True).loader() as loader:
        assert batches(loader) == [[1, 3], [5]]


def test_a_filter_that_keeps_few_samples_needs_little_memory() -> None:
    pipeline = fl.arrays({"x": np.arange(200_000), "wide": np.zeros((200_000, 64), np.uint8)})
    pipeline = pipeline.filter(fl.col("x") >= 199_990).batch(100, index=True)
    with pipeline.loader(memory="2MiB", prefetch="64KiB") as loader:
        assert flat(batches(loader)) == list(range(199_990, 200_000))
        assert accounted(loader).filtered == 199_990


def test_a_filtered_run_can_be_resumed_after_every_batch() -> None:
    pipeline = numbers(50).shuffle(1).filter((fl.col("x") < 20) | (fl.col("x") > 40)).batch(4, index=True)
    expected = assert_resumes_after_every_batch(pipeline.loader, epochs=2)
    assert len(flat(expected)) == 58


def test_faults_and_ranks_and_filters_add_up(tmp_path: Path) -> None:
    lengths = [None if at % 7 == 3 else at % 5 for at in range(60)]
    pipeline = texts(tmp_path, lengths)
    seen = []
    for rank in range(2):
        ranked = fl.jsonl(tmp_path / "texts.jsonl", index=None).shuffle(3).shard(rank, 2)
        ranked = ranked.parse({"tokens": fl.int64(shape=[None])}).filter(fl.length("tokens") > 1)
        with ranked.batch(4, index=True).loader(faults=fl.FaultPolicy("skip")) as loader:
            seen += flat(batches(loader))
            accounted(loader)
    good = [at for at, length in enumerate(lengths) if length is not None and length > 1]
    assert set(seen) == set(good)
    assert len(pipeline) == 60


def test_functions_get_the_samples_that_pass_the_filter() -> None:
    pipeline = numbers(50).shuffle(1).filter(fl.col("x") < 20).map(dict, threads=True).batch(4)
    with pipeline.loader(workers=2) as loader:
        found = [int(x) for batch in loader for x in batch["x"]]
        assert accounted(loader).filtered == 30
    assert sorted(found) == list(range(20))


def test_a_replacement_is_one_of_the_samples_that_pass_the_filter(tmp_path: Path) -> None:
    lengths = [None if at == 5 else at for at in range(200)]
    pipeline = texts(tmp_path, lengths).filter(fl.col("index").isin(range(10)))
    with pipeline.batch(4, index=True).loader(faults=fl.FaultPolicy("replace")) as loader:
        found = flat(batches(loader))
        assert accounted(loader).replaced == 1
    assert len(found) == 10
    assert set(found) <= set(range(10)) - {5}


def test_isin_accepts_many_values() -> None:
    these = range(0, 100_000, 2)
    with numbers(100_000).filter(fl.col("x").isin(these)).batch(1000, index=True).loader() as loader:
        assert flat(batches(loader)) == list(these)
    mixed = fl.col("half").isin([0.5, 2, 3.0, 7.25, -1])
    with numbers(20).filter(mixed).batch(20, index=True).loader() as loader:
        assert flat(batches(loader)) == [1, 4, 6]


def test_a_predicate_may_be_long() -> None:
    one_of = fl.col("x") == 0
    for number in range(3, 3000, 3):
        one_of = one_of | (fl.col("x") == number)
    with numbers(50).filter(one_of).batch(50, index=True).loader() as loader:
        assert flat(batches(loader)) == list(range(0, 50, 3))


# ---- buckets ----


def bucketed(
    lengths: Sequence[int | None],
    size: int,
    boundaries: Sequence[int],
    sizes: Sequence[int] | None,
    drop_last: bool,
) -> Checked:
    """The expected batches of an epoch, from a loop over the list."""
    sizes = sizes or [size] * (len(boundaries) + 1)
    open_batches: Checked = [[] for _ in sizes]
    found = []
    for index, length in enumerate(lengths):
        if length is None:
            continue
        bucket = sum(boundary <= length for boundary in boundaries)
        open_batches[bucket].append(index)
        if len(open_batches[bucket]) == sizes[bucket]:
            found.append(open_batches[bucket])
            open_batches[bucket] = []
    return found + [rest for rest in open_batches if rest and not drop_last]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=60),
    bad=st.sets(st.integers(1, 59), max_size=4),
    size=st.integers(1, 7),
    boundaries=st.lists(st.integers(1, 19), min_size=1, max_size=4, unique=True).map(sorted),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_samples_of_similar_length_come_together_and_resume_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    bad: set[int],
    size: int,
    boundaries: list[int],
    drop_last: bool,
    data: st.DataObject,
) -> None:
    corrupt: list[int | None] = [None if at in bad else length for at, length in enumerate(lengths)]
    one_size = st.integers(1, 5)
    sizes = data.draw(
        st.none() | st.lists(one_size, min_size=len(boundaries) + 1, max_size=len(boundaries) + 1)
    )
    pipeline = texts(tmp_path_factory.mktemp("texts"), corrupt).bucket("tokens", boundaries, sizes)
    pipeline = pipeline.batch(size, drop_last=drop_last, pad=data.draw(st.booleans()), index=True)

    def make() -> fl.Loader:
        policy = fl.FaultPolicy("skip", limit=None)
        return pipeline.loader(faults=policy, threads=data.draw(st.sampled_from([1, 3])))

    expected = bucketed(corrupt, size, boundaries, sizes, drop_last)
    with make() as loader:
        assert batches(loader) == expected
        assert len(loader) >= len(expected)
        accounted(loader)
    assert assert_resumes_after_every_batch(make, epochs=2) == expected * 2


def test_a_bucketed_batch_has_all_its_fields(tmp_path: Path) -> None:
    lengths = [random.Random(3).randrange(40) for _ in range(100)]
    pipeline = texts(tmp_path, lengths).bucket("tokens", [10, 20]).batch(8, pad=True, index=True)
    with pipeline.loader() as loader:
        for batch in loader:
            indices = [int(index) for index in batch["index"]]
            assert list(batch["tokens_lengths"]) == [lengths[index] for index in indices]
            for row, index in zip(batch["tokens"], indices, strict=True):
                assert list(row) == [index] * lengths[index] + [0] * (len(row) - lengths[index])
            assert list(batch["word"]) == ["ab"[index % 2] for index in indices]
            buckets = {sum(boundary <= lengths[index] for boundary in (10, 20)) for index in indices}
            assert len(buckets) == 1


def test_numbers_can_be_buckets_too_and_ranks_fill_up() -> None:
    pipeline = numbers(40).shuffle(1).bucket("half", [5, 10.5], [3, 2, 4])
    with pipeline.batch(4, index=True).loader() as loader:
        found = batches(loader)
    assert sorted(flat(found)) == list(range(40))
    assert {tuple(sorted({(x >= 10) + (x >= 21) for x in part})) for part in found} == {(0,), (1,), (2,)}


def test_filter_and_bucket_work_together_after_every_batch() -> None:
    pipeline = numbers(60).shuffle(4).filter(fl.col("x").isin(range(0, 60, 3)) | (fl.col("x") < 20))
    pipeline = pipeline.bucket("x", [20, 40]).batch(5, index=True)
    expected = assert_resumes_after_every_batch(pipeline.loader, epochs=2)
    kept = [x for x in range(60) if x % 3 == 0 or x < 20]
    assert sorted(flat(expected)) == sorted(kept * 2)


def test_ranks_with_faults_fill_their_buckets(tmp_path: Path) -> None:
    lengths = [None if at in (4, 10, 11, 25) else at % 6 for at in range(40)]
    texts(tmp_path, lengths)

    def make(rank: int) -> Callable[[], fl.Loader]:
        pipeline = fl.jsonl(tmp_path / "texts.jsonl", index=None).shuffle(3).shard(rank, 2)
        pipeline = pipeline.parse({"tokens": fl.int64(shape=[None])}).bucket("tokens", [2, 4])
        return lambda: pipeline.batch(3, index=True).loader(faults=fl.FaultPolicy("skip"))

    counts = [len(flat(assert_resumes_after_every_batch(make(rank), epochs=2))) for rank in range(2)]
    assert counts == [40, 40]


def test_states_of_buckets_stay_small() -> None:
    pipeline = numbers(5000).shuffle(1).bucket("x", list(range(500, 5000, 500))).batch(64, index=True)
    with pipeline.loader() as loader:
        sizes = [len(json.dumps(loader.state_dict())) for _ in loader]
    assert max(sizes) < 4000


# ---- refusals ----


def mistakes() -> list[tuple[str, Callable[[], object], str]]:
    ten = numbers(10)
    small = fl.col("x") < 5
    return [
        ("an unknown field", lambda: ten.filter(fl.col("y") < 5), "there are x, half"),
        ("a number for text", lambda: ten.filter(fl.col("x") == "five"), '"x" is a number'),
        ("the length of a number", lambda: ten.filter(fl.length("x") < 5), 'col("x")'),
        ("no function", lambda: ten.filter(5), "5"),  # type: ignore[arg-type]
        ("a function behind buckets", lambda: ten.bucket("x", [5]).map(dict), "cannot follow bucket"),
        ("buckets behind a function", lambda: ten.map(dict).bucket("x", [5]), "cannot follow map"),
        ("and", lambda: ten.filter(small and small), "&"),
        ("a list", lambda: fl.col("x") < [5], "[5]"),  # type: ignore[operator]
        ("a word for a list", lambda: fl.col("x").isin("abc"), "abc"),
        ("a field that is no name", lambda: fl.col(5), "5"),  # type: ignore[arg-type]
        ("half a predicate", lambda: small & 5, "5"),  # type: ignore[operator]
        ("take behind filter", lambda: ten.filter(small).take(5), "take cannot follow filter"),
        ("filter behind batch", lambda: ten.batch(2).filter(small), "filter cannot follow batch"),
        ("an unknown bucket", lambda: ten.bucket("y", [5]), "there are x, half"),
        ("no boundaries", lambda: ten.bucket("x", []), "[]"),
        ("boundaries that fall", lambda: ten.bucket("x", [5, 3]), "[5,3]"),
        ("too few sizes", lambda: ten.bucket("x", [5, 7], [1, 2]), "3 sizes"),
        ("two buckets", lambda: ten.bucket("x", [5]).bucket("x", [5]), "bucket cannot follow bucket"),
    ]


@pytest.mark.parametrize(
    ("call", "text"), [case[1:] for case in mistakes()], ids=[case[0] for case in mistakes()]
)
def test_an_invalid_call_is_refused_where_it_is_written(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert text in str(raised.value)


def test_a_pipeline_shows_its_filter() -> None:
    pipeline = numbers(4).filter((fl.col("x") < 3) & ~fl.col("half").isin([1]))
    assert repr(pipeline).endswith(".filter(((col('x') < 3) & ~col('half').isin([1])))")
