"""Files as other programs write them: empty shards, compressions, odd names, NaN in JSON; casts and paths."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import lzma
import os
import tarfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import shards
from feedline import errors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


def tarred(path: Path, members: list[tuple[str, bytes]], **options: Any) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def first(pipeline: fl.Pipeline, size: int = 100) -> dict[str, Any]:
    return next(iter(pipeline.batch(size).loader()))


# ---- empty shards ----


def written(folder: Path, counts: list[int]) -> list[Path]:
    """A TFRecord shard for each count, some of them compressed."""
    paths = []
    for shard, count in enumerate(counts):
        path = folder / f"{len(list(folder.iterdir()))}.tfrecord"
        shards.tfrecord(path, [b"%d-%d" % (shard, record) for record in range(count)])
        if shard % 2:
            path.write_bytes(gzip.compress(path.read_bytes()))
        paths.append(path)
    return paths


@pytest.mark.filterwarnings("ignore::feedline.errors.EmptyShardWarning")
def test_empty_shards_are_interleaved_as_tensorflow_does(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    draw = np.random.default_rng(11)
    cases = [([3, 0, 7, 1, 4], 2, 1)]
    for _ in range(12):
        counts = [int(count) for count in draw.integers(0, 5, size=draw.integers(2, 8))]
        cases.append(([*counts, 1], int(draw.integers(1, 5)), int(draw.integers(1, 4))))
    for counts, cycle, block in cases:
        paths = written(tmp_path, counts)
        ours = fl.tfrecord(paths, index=None).interleave(cycle, block).batch(1000).loader()
        names = tf.data.Dataset.from_tensor_slices([os.fspath(path) for path in paths])
        theirs = names.interleave(
            lambda path: tf.data.TFRecordDataset(
                path, compression_type=tf.where(tf.io.read_file(path) == b"", "", kind(tf, path))
            ),
            cycle_length=cycle,
            block_length=block,
        )
        found = [record for batch in ours for record in batch["bytes"]]
        assert found == list(theirs.as_numpy_iterator()), (counts, cycle, block)


def kind(tf: Any, path: Any) -> Any:
    is_packed = tf.strings.substr(tf.io.read_file(path), 0, 2) == b"\x1f\x8b"
    return tf.where(is_packed, "GZIP", "")


def test_an_empty_shard_is_noted_and_does_not_end_the_run(tmp_path: Path) -> None:
    empty_tar = tarred(tmp_path / "empty.tar", [])
    makes: list[tuple[Callable[..., fl.Pipeline], bytes, list[bytes]]] = [
        (fl.tfrecord, shards.framed(b"one"), [b"", gzip.compress(b""), zlib.compress(b"")]),
        (fl.jsonl, b'{"a": 1}\n', [b"", b"\n\n", gzip.compress(b""), bz2.compress(b"")]),
        (fl.csv, b"a\n1\n", [b"", b"a\n", gzip.compress(b"a\n")]),
        (fl.tar, tarred(tmp_path / "one.tar", [("a.txt", b"1")]).read_bytes(), [empty_tar.read_bytes()]),
    ]
    for make, good, empties in makes:
        for number, empty in enumerate(empties):
            paths = [tmp_path / f"{make.__name__}-{number}-{part}" for part in range(3)]
            for path, data in zip(paths, [empty, good, empty], strict=True):
                path.write_bytes(data)
            with pytest.warns(errors.EmptyShardWarning, match="2 shards have no records, of 3") as seen:
                pipeline = make(paths)
            assert seen[0].filename == __file__
            loader = pipeline.batch(2).loader()
            assert len(list(loader)) == 1
            report = loader.report()
            assert (report.delivered, report.skipped) == (1, 0)
            assert any("2 shards have no records" in note for note in report.notes), report.notes
            with pytest.raises(errors.InvalidSourceError, match=r"has no records|has a record|first row"):
                make([paths[0], paths[2]])


# ---- compression ----


def skippable(data: bytes) -> bytes:
    """The format of pzstd: a skippable frame, then zstd."""
    import pyarrow  # type: ignore[import-untyped]

    packed: bytes = pyarrow.compress(data, "zstd", asbytes=True)
    return b"\x50\x2a\x4d\x18\x04\x00\x00\x00size" + packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "xz": lzma.compress,
    "several xz": lambda data: lzma.compress(data[:700]) + b"\0" * 8 + lzma.compress(data[700:]),
    "bzip2": bz2.compress,
    "several bzip2": lambda data: bz2.compress(data[:700]) + bz2.compress(data[700:]),
    "pzstd": skippable,
}


def test_every_format_is_read_in_every_compression(tmp_path: Path) -> None:
    members = [(f"{number:03}.txt", b"n%d" % number) for number in range(30)]
    plain = {
        "tar": tarred(tmp_path / "a.tar", members).read_bytes(),
        "jsonl": b"".join(b'{"txt": "n%d"}\n' % number for number in range(300)),
        "csv": b"txt\n" + b"".join(b"n%d\n" % number for number in range(300)),
        "tfrecord": b"".join(shards.framed(b"n%d" % number) for number in range(300)),
    }
    for format_, data in plain.items():
        source = getattr(fl, format_)
        field = "bytes" if format_ == "tfrecord" else "txt"
        expected = [f"n{number}" for number in range(30 if format_ == "tar" else 300)]
        for name, pack in PACKED.items():
            path = tmp_path / "packed"
            path.write_bytes(pack(data))
            batch = first(source(path), 400)
            found = [text.decode() if isinstance(text, bytes) else text for text in batch[field]]
            assert found == expected, (format_, name)


def test_an_unsupported_compression_is_named_and_not_called_corrupt(tmp_path: Path) -> None:
    files = {
        "lz4": b"\x04\x22\x4d\x18" + b"x" * 600,
        "snappy": b"\xff\x06\x00\x00sNaPpY" + b"x" * 600,
        "7z": b"7z\xbc\xaf\x27\x1c" + b"x" * 600,
        "zip": b"PK\x03\x04" + b"x" * 600,
    }
    for name, data in files.items():
        path = tmp_path / f"a.{name}"
        path.write_bytes(data)
        for source in (fl.tar, fl.tfrecord, fl.jsonl, fl.csv):
            with pytest.raises(
                errors.InvalidSourceError, match=f"compressed with {name}, which is not supported"
            ):
                source(path)


# ---- tar ----


def test_the_last_of_two_values_in_a_pax_header_counts(tmp_path: Path) -> None:
    def record(key: str, value: str) -> bytes:
        rest = f" {key}={value}\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        return f"{length}{rest}".encode()

    header = tarfile.TarInfo("pax")
    header.type = tarfile.XHDTYPE
    data = (
        record("path", "first.txt") + record("size", "1") + record("path", "last.txt") + record("size", "4")
    )
    header.size = len(data)
    member = tarfile.TarInfo("short.txt")
    member.size = 4
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(header, io.BytesIO(data))
        archive.addfile(member, io.BytesIO(b"text"))
    with tarfile.open(path) as archive:
        assert [(one.name, one.size) for one in archive] == [("last.txt", 4)]
    batch = first(fl.tar(path))
    assert (batch["__key__"], batch["txt"]) == (["last"], ["text"])


def test_odd_extensions_can_be_requested_and_break_no_shard(tmp_path: Path) -> None:
    names = ["a..txt", "a.my;ext", "a. txt", "a.", "a.jpg", "a.seg.png"]
    path = tarred(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    batch = first(fl.tar(path))
    found = {name: value for name, value in batch.items() if name != "__key__"}
    assert {
        name: bytes(v[0]) if not isinstance(v[0], str) else v[0].encode() for name, v in found.items()
    } == {name[2:]: name.encode() for name in names}
    asked = {name: fl.bytes_() for name in [".txt", "my;ext", " txt", "png;jpg", "seg.png", ".jpg"]}
    batch = first(fl.tar(path).parse({**asked, "nothing": fl.bytes_(key="")}))
    assert {name: bytes(values[0]) for name, values in batch.items()} == {
        ".txt": b"a..txt",
        "my;ext": b"a.my;ext",
        " txt": b"a. txt",
        "png;jpg": b"a.jpg",
        "seg.png": b"a.seg.png",
        ".jpg": b"a.jpg",
        "nothing": b"a.",
    }


def test_arrays_are_converted_to_c_order_and_native_bytes(tmp_path: Path) -> None:
    plain = np.arange(24, dtype="int32").reshape(2, 3, 4)
    for array in [np.asfortranarray(plain), plain.astype(">i4"), np.asfortranarray(plain.astype(">i4"))]:
        path = tarred(tmp_path / "a.tar", [("a.npy", npy(array)), ("b.npy", npy(array))])
        for pipeline in [fl.tar(path), fl.tar(path).parse({"npy": fl.npy("int32", shape=[2, 3, 4])})]:
            found = first(pipeline)["npy"]
            assert found.dtype == np.int32
            assert (found == plain).all()
        flat = first(fl.tar(path).parse({"npy": fl.npy("int32", shape=[None, 3, 4])}))
        assert (flat["npy"] == np.concatenate([plain, plain])).all()


def test_an_array_of_an_unexpected_type_is_a_fault_that_names_the_type(tmp_path: Path) -> None:
    for dtype, name in [("complex64", "<c8"), ("M8[s]", r"<M8\[s\]"), ("U3", "<U3")]:
        members = [("a.npy", npy(np.zeros(2, dtype))), ("b.npy", npy(np.zeros(2, dtype)))]
        path = tarred(tmp_path / "a.tar", members)
        with pytest.raises(errors.InvalidFieldError, match=f'numbers of type "{name}" are not supported'):
            first(fl.tar(path))


# ---- JSON, Examples ----


def test_the_numbers_that_python_writes_to_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"x": float("nan"), "v": [1.5, float("-inf")], "t": "NaN, Infinity"},
        {"x": float("inf"), "v": [], "t": ""},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {
        "x": fl.float32(),
        "v": fl.float32(shape=[None]),
        "t": fl.text(),
        "all": fl.json_(key="__json__"),
    }
    for pipeline in [fl.jsonl(path), fl.jsonl(path).parse(asked)]:
        batch = first(pipeline)
        assert np.isnan(batch["x"][0])
        assert batch["x"][1] == np.inf
        assert batch["v"].tolist() == [1.5, -np.inf]
        assert batch["t"] == ["NaN, Infinity", ""]
    assert batch["all"][1] == rows[1]
    tar = tarred(tmp_path / "a.tar", [("a.json", json.dumps(rows[0]).encode())])
    assert np.isnan(first(fl.tar(tar))["json"][0]["x"])
    for bad in ['{"x": nan}', '{"x": -NaN}', '{"x": 1NaN}', '{"x": Infinity1}', '{"x": NaN', "[NaN NaN]"]:
        path.write_text(bad + "\n")
        with pytest.raises(errors.FeedlineError, match="not JSON"):
            first(fl.jsonl(path).parse({"x": fl.json_()}))
    path.write_text('{"x": NaN}\n')
    with pytest.raises(errors.InvalidFieldError, match="int64"):
        first(fl.jsonl(path).parse({"x": fl.int64()}))


def test_a_varint_with_bits_beyond_the_64th_is_read_as_protobuf_does(tmp_path: Path) -> None:
    example_pb2 = pytest.importorskip("tensorflow.core.example.example_pb2")

    def message(number: int, inside: bytes) -> bytes:
        return bytes([number << 3 | 2, len(inside)]) + inside

    for last in (0x01, 0x7F):
        minus_one = b"\xff" * 9 + bytes([last])
        values = message(3, message(1, minus_one))
        record = message(1, message(1, message(1, b"x") + message(2, values)))
        assert example_pb2.Example.FromString(record).features.feature["x"].int64_list.value == [-1]
        path = tmp_path / f"{last}.tfrecord"
        shards.tfrecord(path, [record])
        assert first(fl.tfrecord(path).parse({"x": fl.int64()}))["x"].tolist() == [-1]


# ---- names of columns ----


def test_two_columns_with_the_same_name_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"tok": [1, 2], "tok_lengths": 7}\n')
    both = {"tok": fl.int64(shape=[None]), "tok_lengths": fl.int64()}
    tar = tarred(tmp_path / "a.tar", [("a.tok", b"1 2"), ("a.tok_lengths", b"7")])
    texts = {"tok": fl.text(shape=[None]), "tok_lengths": fl.int64()}
    lengths = fl.arrays({"tok_lengths": np.arange(1)})
    picture = tarred(tmp_path / "p.tar", [("a.png", b"not read"), ("a.image_shape", b"1")])
    shape = fl.tar(picture).parse({"png": fl.bytes_(), "image_shape": fl.int64()})
    cases: list[Callable[[], Any]] = [
        lambda: fl.jsonl(path).parse(both),
        lambda: fl.jsonl(path).parse(texts),
        lambda: fl.jsonl(path).batch(2),
        lambda: fl.tar(tar).parse(both),
        lambda: fl.jsonl(path).zip(lengths).parse({"tok": fl.int64(shape=[None])}).batch(2),
        lambda: shape.decode(field="png").batch(2, pad=True),
    ]
    for case in cases:
        with pytest.raises(errors.InvalidArgumentError, match=r'"tok_lengths".*"tok"|"image_shape".*"image"'):
            case()
    renamed = fl.jsonl(path).parse({"tok": fl.int64(shape=[None]), "theirs": fl.int64(key="tok_lengths")})
    batch = first(renamed)
    assert (batch["tok_lengths"].tolist(), batch["theirs"].tolist()) == ([2], [7])
    shape.decode(field="png").batch(2)


# ---- casts ----


def test_cast_tokens_can_index_an_embedding(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "train.bin"
    np.arange(65_500, 65_500 + 33, dtype="uint16").tofile(path)
    batch = first(fl.tokens(path, "uint16", 9).cast("int64"), 3)
    assert batch["tokens"].dtype == np.int64
    assert batch["tokens"].tolist() == np.arange(65_500, 65_527).reshape(3, 9).tolist()
    assert torch.nn.Embedding(66_000, 2)(torch.from_dlpack(batch["tokens"])).shape == (3, 9, 2)


def test_numbers_of_every_source_are_cast_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 3, "v": [1, 2]}\n{"x": 5, "v": [4]}\n')
    pipeline = fl.jsonl(path).cast("int32", field="v").to_float(mean=1, std=2, field="x")
    batch = next(iter(pipeline.batch(2, pad={"v": -100}).loader()))
    assert (batch["v"].dtype, batch["v"].tolist()) == (np.int32, [[1, 2], [4, -100]])
    assert (batch["x"].dtype, batch["x"].tolist()) == (np.float32, [1.0, 2.0])
    numbers = np.arange(6.0).reshape(3, 2)
    batch = first(fl.arrays({"x": numbers, "y": np.arange(3)}).to_float(field=["x", "y"]))
    assert (batch["x"].dtype, batch["y"].dtype) == (np.float32, np.float32)
    assert (batch["x"] == numbers).all()
    assert first(fl.arrays({"x": numbers}).cast("float16"))["x"].tolist() == numbers.tolist()
    mapped = fl.arrays({"x": numbers}).cast("int8").map(lambda sample: {"t": sample["x"].dtype.name})
    assert next(iter(mapped.batch(3).loader(workers=1)))["t"] == ["int8"] * 3


def test_meaningless_casts_are_refused() -> None:
    two = fl.arrays({"x": np.zeros(3), "y": np.zeros(3)})
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: two.cast("int64"), 'which field.*"x", "y"'),
        (lambda: two.cast("int64", field="z"), 'no numeric field "z"; the numeric fields are: "x", "y"'),
        (lambda: two.cast("int64", field=[]), "field must be"),
        (lambda: two.cast("int64", field="x").cast("int8", field="x"), "decided already"),
        (lambda: two.cast("complex64", field="x"), "dtype must be"),
        (lambda: two.cast("int64", layout="CHW", field="x"), "layout is for pictures"),
        (lambda: two.to_float(std=0, field="x"), "std must not be zero"),
        (lambda: fl.arrays({"x": np.zeros(3)}).batch(2).cast("int8"), "cannot follow batch"),
    ]
    for case, message in cases:
        with pytest.raises(errors.InvalidArgumentError, match=message):
            case()


# ---- paths ----


def test_paths_may_be_bytes_patterns_braces_and_lists_of_these(tmp_path: Path) -> None:
    for name in ["b-00", "b-01", "b-02", "a-00"]:
        shards.tfrecord(tmp_path / f"{name}.tfrecord", [name.encode()])
        np.arange(3, dtype="uint16").tofile(tmp_path / f"{name}.bin")
    folder = os.fspath(tmp_path)
    cases: list[tuple[Any, list[bytes]]] = [
        (os.fsencode(f"{folder}/a-00.tfrecord"), [b"a-00"]),
        ([os.fsencode(f"{folder}/a-00.tfrecord"), tmp_path / "b-00.tfrecord"], [b"a-00", b"b-00"]),
        (f"{folder}/b-{{01..02}}.tfrecord", [b"b-01", b"b-02"]),
        (f"{folder}/{{b-02,a-00}}.tfrecord", [b"b-02", b"a-00"]),
        ([f"{folder}/b-*.tfrecord", f"{folder}/a-*.tfrecord"], [b"b-00", b"b-01", b"b-02", b"a-00"]),
    ]
    for paths, expected in cases:
        assert [bytes(record) for record in first(fl.tfrecord(paths))["bytes"]] == expected, paths
        # Each file is one record with 16 bytes of framing.
        assert len(first(fl.files(paths))["bytes"]) == len(expected)
    assert len(fl.tokens([f"{folder}/b-{{00..01}}.bin", f"{folder}/a*.bin"], "uint16", 3)) == 3
    assert len(fl.images(os.fsencode(make_images(tmp_path)))) == 1


def make_images(folder: Path) -> Path:
    (folder / "photos" / "cat").mkdir(parents=True)
    (folder / "photos" / "cat" / "1.png").write_bytes(b"")
    return folder / "photos"


def test_remote_paths_are_refused_as_unsupported() -> None:
    for make in (
        fl.tfrecord,
        fl.tar,
        fl.jsonl,
        fl.csv,
        fl.files,
        fl.images,
        lambda path: fl.tokens(path, "uint16", 8),
    ):
        for path, what in [
            ("s3://bucket/shard-{000..009}.tar", "reading from s3 is not supported yet"),
            ("https://example.com/a.tar", "reading from https is not supported yet"),
            ("pipe:cat a.tar", "reading from a command is not supported yet"),
        ]:
            with pytest.raises(errors.InvalidSourceError, match=what):
                make(path)


def test_a_length_instead_of_a_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        errors.InvalidArgumentError, match=r"dtype must be the name of a type, got 129"
    ) as caught:
        fl.tokens(tmp_path / "a.bin", 129)
    assert '"uint16", 129' in str(caught.value)


def test_there_is_no_warning_if_all_shards_have_records(tmp_path: Path) -> None:
    shards.tfrecord(tmp_path / "a", [b"1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.tfrecord(list(itertools.repeat(tmp_path / "a", 2)))
