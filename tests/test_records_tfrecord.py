"""TFRecord and tf.train.Example as TensorFlow writes and reads them.

golden/tfrecord has small files that TensorFlow wrote, with the results of its parsers.
`written_by_tensorflow.py` makes many more, in a separate process.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import shards
from feedline import errors
from once import once

GOLDEN = Path(__file__).parent / "golden" / "tfrecord"
CASES = json.loads((GOLDEN / "golden.json").read_text())
PROGRAM = Path(__file__).parent / "written_by_tensorflow.py"

COMPRESSIONS = ["plain", "gzip", "zlib"]
EXAMPLES = {
    "image": fl.bytes_(),
    "label": fl.int64(),
    "grid": fl.float32(shape=[2, 3]),
    "box": fl.float32(shape=[None, 4]),
    "ids": fl.int64(shape=[None]),
    "words": fl.bytes_(shape=[None]),
    "weight": fl.float32(default=-1.0),
    "tags": fl.int64(shape=[None], default=[]),
}
SEQUENCES = {
    "number": fl.int64(),
    "frames": fl.sequence(fl.bytes_()),
    "boxes": fl.sequence(fl.float32(shape=[4])),
    "ids": fl.sequence(fl.int64()),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files written by TensorFlow, and found.json with the results of its parsers."""

    def write(folder: Path) -> None:
        done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, "written", write)


def value_of(written: dict[str, Any]) -> Any:
    if "bytes" in written:
        return bytes.fromhex(written["bytes"])
    if "list" in written:
        return [bytes.fromhex(part) for part in written["list"]]
    data = np.frombuffer(bytes.fromhex(written["data"]), written["dtype"])
    return data.reshape(written["shape"])


def assert_same(got: Any, expected: Any, of: str) -> None:
    """Compares bit for bit, including NaN and the sign of zero."""
    if isinstance(expected, np.ndarray):
        got = np.asarray(got)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), of
        assert got.tobytes() == expected.tobytes(), of
    else:
        assert got == expected, of


def samples(loader: fl.Loader) -> Iterator[dict[str, Any]]:
    """The samples of all batches, one by one."""
    for batch in loader:
        starts = {
            name.removesuffix("_lengths"): np.cumsum([0, *batch[name]])
            for name in batch
            if name.endswith("_lengths")
        }
        values = {name: value for name, value in batch.items() if not name.endswith("_lengths")}
        [size] = {len(starts[name]) - 1 if name in starts else len(value) for name, value in values.items()}
        for number in range(size):
            yield {
                name: value[starts[name][number] : starts[name][number + 1]]
                if name in starts
                else value[number]
                for name, value in values.items()
            }


FILES = [(name, case) for case in CASES for name in case["files"] if case["records"]]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("name", "case"), FILES, ids=[name for name, _ in FILES])
def test_values_are_those_of_the_parser_that_the_golden_file_names(
    name: str, case: dict[str, Any], size: int
) -> None:
    pipeline = fl.tfrecord(GOLDEN / name)
    fields: dict[str, str] = case["fields"] or {}
    if fields:
        pipeline = pipeline.parse({key: eval(text) for key, text in fields.items()})
    got = list(samples(pipeline.batch(size).loader()))
    assert len(got) == len(case["records"])
    for number, (sample, expected) in enumerate(zip(got, case["records"], strict=True)):
        assert sample.keys() == expected.keys()
        for key, written in expected.items():
            value = sample[key].encode() if "text" in fields.get(key, "") else sample[key]
            assert_same(value, value_of(written), f"{key} of record {number}")


def test_a_file_without_records_is_noted() -> None:
    names = [name for case in CASES for name in case["files"] if not case["records"]]
    assert len(names) == 2
    for name in names:
        with pytest.raises(errors.InvalidSourceError, match="has no records"):
            fl.tfrecord(GOLDEN / name)
        with pytest.warns(errors.EmptyShardWarning, match=f"1 shard has no records, of 2: .*{name}"):
            pipeline = fl.tfrecord([GOLDEN / name, GOLDEN / "raw.tfrecord"]).batch(9)
        assert [len(batch["bytes"]) for batch in pipeline.loader()] == [4]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batches_are_those_of_parse_example(written: Path, compression: str) -> None:
    expected = json.loads((written / "found.json").read_text())["examples"]
    pipeline = fl.tfrecord(written / f"examples-{compression}").parse(EXAMPLES)
    for pad in (False, True):
        [batch] = pipeline.batch(1000, pad=pad).loader()
        for name, value in batch.items():
            is_padded = pad and f"{name}_padded" in expected
            assert_same(value, value_of(expected[f"{name}_padded" if is_padded else name]), name)
        assert set(batch) == {name for name in expected if not name.endswith("_padded")}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batches_are_those_of_parse_sequence_example(written: Path, compression: str) -> None:
    expected = json.loads((written / "found.json").read_text())["sequences"]
    pipeline = fl.tfrecord(written / f"sequences-{compression}").parse(SEQUENCES)
    [batch] = pipeline.batch(1000, pad=True).loader()
    assert set(batch) == set(expected)
    for name, value in batch.items():
        assert_same(value, value_of(expected[name]), name)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_record_of_64_mib_comes_whole(written: Path, compression: str) -> None:
    expected = json.loads((written / "found.json").read_text())[f"big-{compression}"]
    loader = fl.tfrecord(written / f"big-{compression}").batch(1).loader()
    sums = [hashlib.sha256(batch["bytes"][0]).hexdigest() for batch in loader]
    assert len(sums) == 4
    assert sums == expected


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_schema_reads_the_file_that_it_was_made_from(written: Path, compression: str) -> None:
    for kind in ("examples", "sequences"):
        path = written / f"{kind}-{compression}"
        text = fl.example_schema(path, records=1000)
        assert text.startswith(".parse({")
        fields = eval(text.removeprefix(".parse(").removesuffix(")"))
        loader = fl.tfrecord(path).parse(fields).batch(50).loader()
        assert sum(1 for _ in samples(loader)) == 200
        assert not loader.report().faults
    assert '"grid": fl.float32(shape=[6]),' in fl.example_schema(written / "examples-plain")
    assert '"weight": fl.float32(default=0.0),' in fl.example_schema(written / "examples-plain")


def test_missing_and_mistyped_features_are_named_with_what_was_found(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"label": [1], "image": b"x"},
        {"image": b"x"},
        {"label": [1.5], "image": b"x"},
        {"label": [1, 2], "image": b"x"},
        {"label": b"1", "image": b"x"},
        {"label": [7], "image": b"x"},
    ]
    path = shards.tfrecord(tmp_path / "a.tfrecord", [shards.example(record) for record in records])
    pipeline = fl.tfrecord(path).parse({"label": fl.int64(), "image": fl.bytes_()}).batch(2)
    with pytest.raises(
        errors.InvalidFieldError, match='feature "label" is missing; the record has "image"'
    ) as caught:
        list(pipeline.loader())
    assert (caught.value.index, caught.value.record, caught.value.path) == (1, 1, str(path))
    loader = pipeline.loader(faults=fl.FaultPolicy("skip", limit=None))
    assert [batch["label"].tolist() for batch in loader] == [[1, 7]]
    reasons = [fault.reason for fault in loader.report().faults]
    wanted = "expected 1 of int64"
    for reason, found in zip(
        reasons,
        ["is missing", "holds 1 value of float32", "holds 2 values of int64", "holds 1 value of bytes"],
        strict=True,
    ):
        assert f'feature "label" {found}' in reason
        assert found == "is missing" or wanted in reason


def test_a_record_that_is_not_an_example_is_a_fault(tmp_path: Path) -> None:
    good = shards.example({"label": [1]})
    path = shards.tfrecord(tmp_path / "a.tfrecord", [good, b"\x0a\xff\xff\x7f", b"\x07", good])
    loader = (
        fl.tfrecord(path)
        .parse({"label": fl.int64()})
        .batch(4)
        .loader(faults=fl.FaultPolicy("skip", limit=None))
    )
    assert [batch["label"].tolist() for batch in loader] == [[1, 1]]
    for fault in loader.report().faults:
        assert fault.kind == "CorruptRecordError"
        assert "not a tf.train.Example" in fault.reason


def test_the_repr_of_a_field_is_valid_python() -> None:
    for field in [
        fl.bytes_(),
        fl.bytes_(shape=[None], default=[]),
        fl.text(default="?", key="name"),
        fl.json_(default={"a": [1]}),
        fl.int64(shape=(2, 3), default=-1),
        fl.float32(shape=[None, 4], default=[[1, 2, 3, 4]], key="box"),
        fl.npy(np.uint16, shape=[2]),
        fl.sequence(fl.int64(shape=[2], default=[])),
    ]:
        assert eval(repr(field)) == field


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fl.int64(shape=4)", "shape must be a list"),
        ("fl.int64(shape=[4, None])", "of which the first may be None, got [4, None]"),
        ("fl.int64(shape=[0])", "got [0]"),
        ("fl.int64(shape=[True])", "got [True]"),
        ("fl.int64(default=1.5)", "default must be of int64, got 1.5"),
        ("fl.int64(default=True)", "default must be of int64, got True"),
        ("fl.int64(default=2**63)", "got 9223372036854775808"),
        ("fl.int64(shape=[2], default=[1, 2, 3])", "numbers of shape [2], or one for all, got [1, 2, 3]"),
        ("fl.int64(shape=[None, 2], default=3)", "numbers of shape [None, 2], such as [], got 3"),
        ("fl.float32(default='x')", "default must be of float32, got 'x'"),
        ("fl.bytes_(default='x')", "default must be bytes, got 'x'"),
        ("fl.text(shape=[None], default='x')", "default must be [], got 'x'"),
        ("fl.int64(key=7)", "key must be the name in the record"),
        ("fl.npy('complex64')", "a type of plain numbers, got 'complex64'"),
        ("fl.npy('uint8', default=256)", "default must be of uint8, got 256"),
        ("fl.sequence(3)", "give a field such as fl.int64(), got 3"),
        ("fl.sequence(fl.int64(shape=[None]))", "without None, got fl.int64(shape=[None])"),
        ("fl.sequence(fl.sequence(fl.int64()))", "is a sequence already"),
        ("fl.json_(default=object())", "default must be a JSON value"),
    ],
)
def test_a_wrong_field_is_refused_where_it_is_written(text: str, message: str) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        eval(text)
    assert message in str(caught.value)


def test_parse_refuses_fields_that_the_records_cannot_have() -> None:
    pipeline = fl.tfrecord(GOLDEN / "kinds.tfrecord")
    for fields, message in [
        ([1], "give fields by name"),
        ({}, "a field or more"),
        ({"a": fl.int64}, "'a' must be a field such as fl.int64()"),
        ({"": fl.int64()}, "a field must have a name"),
        ({"a": fl.json_()}, 'field "a" cannot be json_()'),
        ({"a": fl.npy("int8")}, 'field "a" cannot be npy()'),
        ({"a": fl.int64(default=[])}, "default must be"),
        ({"a": fl.float32(default=1e300)}, "default must be one of float32, got 1e+300"),
    ]:
        with pytest.raises(errors.InvalidArgumentError) as caught:
            pipeline.parse(fields)  # type: ignore[arg-type]
        assert message in str(caught.value), fields
