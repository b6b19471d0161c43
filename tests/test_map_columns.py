"""Columns after functions: a function that changes nothing gives the batches of the native pipeline."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline._mapped import shapes
from filled import filled_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import example, tfrecord
from shards import tar as write_tar

PLACES = [pytest.param(False, id="workers"), pytest.param(True, id="threads")]
SKIP = fl.FaultPolicy("skip", limit=None)
Sample = dict[str, Any]


def same(thing: Any) -> Any:
    return thing


def keep(_sample: Sample) -> bool:
    return True


def with_map(pipeline: fl.Pipeline, *, threads: bool) -> fl.Pipeline:
    return pipeline.map(same, threads=threads)


def with_filter(pipeline: fl.Pipeline, *, threads: bool) -> fl.Pipeline:
    return pipeline.filter(keep, threads=threads)


def with_both(pipeline: fl.Pipeline, *, threads: bool) -> fl.Pipeline:
    return pipeline.filter(keep, threads=threads).map(same, threads=threads)


def outcome_of(pipeline: fl.Pipeline, **settings: Any) -> tuple[list[Any], list[tuple[Any, str]]]:
    """The batches, described so that equal types and values compare equal, and the faults."""
    batches: list[Any] = []
    with pipeline.loader(faults=SKIP, **settings) as loader:
        try:
            for batch in loader:
                batches.append({name: described(column) for name, column in batch.items()})
        except fl.errors.TooManyFaultsError:
            batches.append("no sample was good")
        faults = [(fault.index, fault.kind) for fault in loader.report().faults]
    return batches, faults


def described(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return (str(column.dtype), column.shape, column.tolist())
    return [(type(value).__name__, value) for value in column]


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text("ab", max_size=2)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kz"), inner, max_size=2),
    max_leaves=5,
)
LINES = st.lists(
    st.fixed_dictionaries({"a": VALUES, "m": VALUES}, optional={"o": VALUES}), min_size=1, max_size=9
)


@settings(max_examples=30, deadline=None)
@given(lines=LINES, size=st.integers(1, 4))
def test_a_function_that_changes_nothing_changes_no_batch_for_any_json(
    lines: list[Sample], size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Compressed, so that samples move up after a skipped one with and without functions.
        path = Path(folder) / "lines.jsonl.gz"
        path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
        native = outcome_of(fl.jsonl(path).batch(size))
        for add in (with_map, with_filter, with_both):
            assert outcome_of(add(fl.jsonl(path), threads=True).batch(size), workers=1) == native
        assert outcome_of(fl.jsonl(path).batch(size).map_batch(same, threads=True), workers=1) == native


RECORDS: list[Sample] = [
    {"id": 0, "m": {"k": 1}, "b": True, "n": None, "t": "x", "l": [1, 2], "s": ["a"], "f": 1.5, "e": [[1]]},
    {"id": 1, "m": {"k": 2.5}, "b": 1, "n": 3, "t": "", "l": [], "s": [], "f": 2, "e": []},
    {"id": 2, "m": {}, "b": None, "n": 2.5, "t": "yy", "l": [5], "s": ["b", "c"], "f": 0, "e": {"k": None}},
    {"id": 3, "m": None, "b": [1], "n": {"k": []}, "t": "z", "l": [6, 7, 8], "s": ["d"], "f": -1, "e": "x"},
    {"id": 4, "m": [1, None], "b": "no", "n": [None], "t": "w", "l": [9], "s": ["e", "f"], "f": 3.5, "e": 1},
]


def jsonl(folder: Path) -> fl.Pipeline:
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return fl.jsonl(path)


def parsed(folder: Path) -> fl.Pipeline:
    fields = {"id": fl.int64(), "s": fl.text(shape=[None]), "l": fl.int64(shape=[None]), "f": fl.float32()}
    return jsonl(folder).parse(fields)


def csv(folder: Path) -> fl.Pipeline:
    path = folder / "rows.csv"
    path.write_text("id,x,t\n" + "".join(f"{row},{row / 2},name {row}\n" for row in range(5)))
    return fl.csv(path)


def tar(folder: Path) -> fl.Pipeline:
    members = [
        (f"{record['id']:03}.{name}", content.encode())
        for record in RECORDS
        for name, content in (("json", json.dumps(record)), ("cls", str(record["id"])), ("txt", "hello"))
    ]
    return fl.tar(write_tar(folder / "shard.tar", members))


def examples(folder: Path) -> fl.Pipeline:
    records = [example({"id": [number], "x": [0.5] * number, "t": b"abc"[:number]}) for number in range(5)]
    fields = {"id": fl.int64(), "x": fl.float32(shape=[None]), "t": fl.bytes_()}
    return fl.tfrecord(tfrecord(folder / "shard.tfrecord", records)).parse(fields)


SOURCES: dict[str, Callable[[Path], fl.Pipeline]] = {
    "jsonl": jsonl,
    "parsed": parsed,
    "csv": csv,
    "tar": tar,
    "tfrecord": examples,
}


@pytest.mark.parametrize("threads", PLACES)
@pytest.mark.parametrize("name", SOURCES)
def test_batches_of_every_kind_of_record_are_the_same_with_functions(
    name: str, threads: bool, tmp_path: Path
) -> None:
    pipeline = SOURCES[name](tmp_path)
    native = outcome_of(pipeline.batch(2))
    assert sum(len(next(iter(batch.values()))) > 0 for batch in native[0]) == 3
    assert (
        outcome_of(with_both(pipeline, threads=threads).batch(2).map_batch(same, threads=threads), workers=1)
        == native
    )
    assert outcome_of(pipeline.batch(2).map_batch(same, threads=threads), workers=1) == native


# ---- values that a function changes ----


def made(change: Callable[[Sample], Sample], folder: Path, size: int = 5) -> list[Any]:
    with jsonl(folder).map(change, threads=True).batch(size).loader(workers=1, faults=SKIP) as loader:
        batches = list(loader)
        assert loader.report().faults == ()
    return batches


def test_numbers_that_a_function_makes_from_values_are_stacked(tmp_path: Path) -> None:
    def lengths(sample: Sample) -> Sample:
        return {"t": len(sample["t"]), "m": str(sample["m"]) == "None", "e": np.float32(1)}

    (batch,) = made(lengths, tmp_path)
    assert described(batch["t"]) == ("int64", (5,), [1, 0, 2, 1, 1])
    assert described(batch["m"]) == ("bool", (5,), [False, False, False, True, False])
    assert described(batch["e"]) == ("float32", (5,), [1.0] * 5)


def test_integers_among_floats_are_stacked_with_them(tmp_path: Path) -> None:
    def scores(sample: Sample) -> Sample:
        score = [1, 2.5, 3, 4, 0.5][int(sample["id"])]
        return {"score": score, "n": score, "inner": {"score": score}}

    for size in (5, 2):
        batches = made(scores, tmp_path, size)
        for name in ("score", "n"):
            assert np.concatenate([batch[name] for batch in batches]).tolist() == [1, 2.5, 3, 4, 0.5]
        assert np.concatenate([batch["inner"]["score"] for batch in batches]).tolist() == [1, 2.5, 3, 4, 0.5]


def test_values_that_a_function_changes_in_some_samples_stay_a_list(tmp_path: Path) -> None:
    def fill(sample: Sample) -> Sample:
        sample["n"] = 0 if sample["n"] is None else sample["n"]
        sample["m"] = {**sample["m"], "z": 1} if isinstance(sample["m"], dict) else sample["m"]
        return {name: sample[name] for name in ("n", "m")}

    (batch,) = made(fill, tmp_path)
    assert batch["n"] == [0, 3, 2.5, {"k": []}, [None]]
    assert [type(value) for value in batch["n"][:2]] == [int, int]
    assert batch["m"] == [{"k": 1, "z": 1}, {"k": 2.5, "z": 1}, {"z": 1}, None, [1, None]]


# ---- samples that do not fit ----


@pytest.mark.parametrize("threads", PLACES)
def test_one_odd_sample_is_the_fault_at_any_place_in_its_batch(threads: bool) -> None:
    for odd in (0, 1, 3, 4) if threads else (0,):

        def shaped(sample: Sample, odd: int = odd) -> Sample:
            return {"x": sample["x"], "a": np.zeros(3 if sample["x"] == odd else 5)}

        pipeline = fl.arrays({"x": np.arange(9)}).map(shaped, threads=threads).batch(4)
        with pipeline.loader(workers=1, faults=SKIP) as loader:
            came = [batch["x"].tolist() for batch in loader]
            (fault,) = loader.report().faults
        assert came == filled_batches(range(9), {odd}, 4)
        assert fault.index == odd
        assert (
            "a is an array of float64 with shape [3], not an array of float64 with shape [5]" in fault.reason
        )


def test_odd_samples_are_raised_replaced_limited_and_resumed_like_other_faults() -> None:
    def shaped(sample: Sample) -> Sample:
        return {"x": sample["x"], "a": np.zeros(3 if sample["x"] in (0, 5, 6) else 5)}

    pipeline = fl.arrays({"x": np.arange(12)}).map(shaped, threads=True).batch(4)

    def xs(loader: Any) -> list[list[int]]:
        return [batch["x"].tolist() for batch in loader]

    with (
        pipeline.loader(workers=2) as loader,
        pytest.raises(fl.errors.ShapeMismatchError, match="sample 0 does not"),
    ):
        list(loader)
    with pipeline.loader(workers=2, faults=fl.FaultPolicy("replace")) as loader:
        came = [x for batch in xs(loader) for x in batch]
        assert [x for at, x in enumerate(came) if at not in (0, 5, 6)] == [1, 2, 3, 4, 7, 8, 9, 10, 11]
        assert not {0, 5, 6} & set(came)
        report = loader.report()
        assert (report.delivered, report.replaced) == (12, 3)
    with pipeline.loader(workers=2, faults=fl.FaultPolicy("skip", fill=False)) as loader:
        assert xs(loader) == [[1, 2, 3], [4, 7], [8, 9, 10, 11]]
    with (
        pipeline.loader(workers=2, faults=fl.FaultPolicy("skip", limit=2)) as loader,
        pytest.raises(fl.errors.TooManyFaultsError),
    ):
        list(loader)
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        epoch = iter(loader)
        assert next(epoch)["x"].tolist() == [11, 1, 2, 3]
        state = loader.state_dict()
    with pipeline.loader(workers=2, faults=SKIP) as loader:
        loader.load_state_dict(state)
        # Samples 4 to 7 form two equal groups: the first sample decides.
        assert xs(loader) == [[4, 10, 9, 7], [8]]


def test_the_structure_of_a_sample_is_described() -> None:
    table: list[tuple[Any, Any]] = [
        (("number",), "a number of int64 or float64"),
        (("array", "<f4", ()), "a number of float32"),
        (("array", "<f4", (3,)), "an array of float32 with shape [3]"),
        (("ragged", "<i8", 2, (4,)), "an array of int64 with 2 axes and shape [any, 4]"),
        (("ragged", "<i8", 2, None), "an array of int64 with 2 axes"),
        (("thing",), "no array and no number"),
        ({"m": {"k": ("values",)}, 3: ()}, {"m": {"k": "a value that is no array"}, "3": []}),
        ((("number",), ("lists",)), ["a number of int64 or float64", "a list"]),
    ]
    for spec, text in table:
        assert shapes.described(spec) == text


# ---- wrong calls ----


def generates(sample: Sample) -> Any:
    yield sample


async def waits(sample: Sample) -> Any:
    return sample


def test_an_object_that_is_not_a_function_of_a_sample_is_refused_with_a_hint() -> None:
    pipeline: Any = fl.arrays({"x": np.arange(5)})
    table: list[tuple[Callable[[], Any], str]] = [
        (lambda: pipeline.map({"x": 1}), r"map: give a function of a sample, got \{'x': 1\}"),
        (lambda: pipeline.map(None), r"without calling it: map\(augment\)"),
        (lambda: pipeline.map(fl.col("x") < 3), r"choose samples with filter"),
        (lambda: pipeline.filter("x < 3"), r"got 'x < 3'\nhint: use filter\(lambda"),
        (lambda: pipeline.map(generates), r"generates returns a generator, not a sample"),
        (lambda: pipeline.filter(generates), r"use return, not yield"),
        (lambda: pipeline.batch(2).map_batch(waits), r"waits returns a coroutine, not a batch"),
        (lambda: pipeline.batch(2).map_batch(5), r"map_batch: give a function of a batch, got 5"),
    ]
    for wrong, text in table:
        with pytest.raises(fl.errors.InvalidArgumentError, match=text):
            wrong()


def test_the_error_of_a_filter_that_returns_an_array_says_what_to_return() -> None:
    def several(sample: Sample) -> Any:
        return np.array([True, False])

    pipeline = fl.arrays({"x": np.arange(5)}).filter(several, threads=True).batch(2)
    with (
        pipeline.loader(workers=1) as loader,
        pytest.raises(TypeError, match=r"returned an array of shape \(2,\): a filter must return True"),
    ):
        list(loader)
