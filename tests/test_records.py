"""Records: order, faults with their places, indices, manifests, compressed shards, tokens."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pyarrow  # type: ignore[import-untyped]
import pytest
import shards
from feedline import errors
from filled import filled_batches
from pictures import encoded, photo


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


RECORDS = [b"", b"a", b"hello world", bytes(range(200)), b"x" * 700]


def records_of(loader: fl.Loader) -> list[bytes]:
    return [record for batch in loader for record in batch["bytes"]]


def skipping(pipeline: fl.Pipeline, size: int = 2, **policy: Any) -> fl.Loader:
    return pipeline.batch(size).loader(faults=fl.FaultPolicy("skip", **{"limit": None, **policy}))


def test_records_come_as_bytes_in_order(tmp_path: Path) -> None:
    for number in range(3):
        shards.tfrecord(tmp_path / f"{number}.tfrecord", [b"%d-" % number + record for record in RECORDS])
    loader = fl.tfrecord(str(tmp_path / "*.tfrecord")).batch(4).loader()
    assert records_of(loader) == [b"%d-" % number + record for number in range(3) for record in RECORDS]
    assert len(loader) == 4


def test_an_index_that_cannot_be_saved_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        shards.tfrecord(tmp_path / f"{number}.tfrecord", RECORDS)
    occupied = tmp_path / "a file"
    occupied.touch()
    # Nothing can be created below a file, not even by root.
    monkeypatch.setenv("FEEDLINE_CACHE", str(occupied / "cache"))
    events: list[fl.Event] = []

    loader = fl.tfrecord(str(tmp_path / "*.tfrecord")).batch(4).loader(on_event=events.append)

    assert records_of(loader) == RECORDS * 3
    (event,) = (event for event in events if event.name == "index_not_saved")
    assert event.details["shards"] == 3
    assert event.details["path"].startswith(str(occupied))
    assert event.text.endswith("so the next run scans 3 shards again")
    assert event.text in loader.report().notes


def test_shuffle_and_ranks_share_all_records(tmp_path: Path) -> None:
    for number in range(4):
        shards.tfrecord(tmp_path / f"{number}", [b"%d %d" % (number, at) for at in range(25)])
    paths = [tmp_path / str(number) for number in range(4)]
    seen = []
    for rank in range(3):
        pipeline = fl.tfrecord(paths).shuffle(5).shard(rank, 3, remainder="uneven")
        seen.append(records_of(pipeline.batch(8).loader()))
    everything = sorted(record for part in seen for record in part)
    assert everything == sorted(b"%d %d" % (number, at) for number in range(4) for at in range(25))
    assert seen[0] != sorted(seen[0])


def test_every_flipped_byte_of_a_shard_is_named_and_affects_no_other_record(tmp_path: Path) -> None:
    whole = b"".join(shards.framed(record) for record in RECORDS[:4])
    starts = np.cumsum([0, *(16 + len(record) for record in RECORDS[:4])])
    path = tmp_path / "a.tfrecord"
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x40
        path.write_bytes(flipped)
        loader = skipping(fl.tfrecord(path, index=None))
        got = records_of(loader)
        hit = int(np.searchsorted(starts, at, side="right")) - 1
        # The last record fills the slot of the corrupt one.
        others = [number for batch in filled_batches(range(4), {hit}, 2) for number in batch]
        assert got == [RECORDS[number] for number in others], at
        [fault] = loader.report().faults
        assert (fault.kind, fault.path, fault.record) == ("CorruptRecordError", str(path), hit)
        assert fault.offset == starts[hit]


def test_every_truncation_of_a_shard_is_named_except_between_two_records(tmp_path: Path) -> None:
    whole = b"".join(shards.framed(record) for record in RECORDS[:4])
    starts = [int(start) for start in np.cumsum([0, *(16 + len(record) for record in RECORDS[:4])])]
    path = tmp_path / "a.tfrecord"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        loader = skipping(fl.tfrecord(path, index=None))
        complete = sum(1 for start in starts[1:] if start <= length)
        # A shard without a complete record gives no good sample, which is an error.
        with contextlib.nullcontext() if complete else contextlib.suppress(errors.TooManyFaultsError):
            assert records_of(loader) == RECORDS[:complete]
        faults = loader.report().faults
        if length in starts[1:]:
            assert not faults
        else:
            assert [fault.kind for fault in faults] == ["CorruptRecordError"], length


def test_the_index_or_a_manifest_shows_a_truncation_between_two_records(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a.tfrecord", RECORDS)
    fl.tfrecord(path)
    shards.tfrecord(path, RECORDS[:3])
    loader = skipping(fl.tfrecord(path))
    assert records_of(loader) == RECORDS[:3]
    assert "ends after 3 records, but had 5" in loader.report().faults[0].reason
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"a.tfrecord": {"records": 5, "bytes": 10_000}}))
    loader = skipping(fl.tfrecord(path, index=None, manifest=manifest))
    assert records_of(loader) == RECORDS[:3]
    assert "manifest says 5 records" in loader.report().faults[0].reason


def test_by_default_the_first_bad_record_is_raised_with_its_place(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a.tfrecord", RECORDS)
    data = bytearray(path.read_bytes())
    data[16 + 12] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.CorruptRecordError) as caught:
        records_of(fl.tfrecord(path).batch(1).loader())
    error = caught.value
    assert (error.index, error.path, error.record, error.offset) == (1, str(path), 1, 16)
    assert "record 1 is corrupt" in str(error)
    assert "feedline explain FL211" in str(error)
    assert len(records_of(fl.tfrecord(path, check=False).batch(1).loader())) == len(RECORDS)


def test_a_length_that_lies_allocates_nothing(tmp_path: Path) -> None:
    length = (2**62).to_bytes(8, "little")
    path = tmp_path / "a.tfrecord"
    path.write_bytes(shards.framed(b"one") + length + shards.masked(length) + b"rest" + shards.framed(b"two"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loader = skipping(fl.tfrecord(path))
    assert records_of(loader) == [b"one", b"two"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_shard_that_shrinks_after_it_was_indexed_is_a_fault(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a.tfrecord", [b"%d" % number * 100 for number in range(50)])
    pipeline = fl.tfrecord(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    loader = skipping(pipeline)
    with pytest.raises(errors.TooManyFaultsError):
        records_of(loader)
    assert len(loader.report().faults) == 50
    assert "when it was indexed, and has 1000 now" in loader.report().faults[0].reason


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_compressed_shards_come_in_order_and_again_in_the_next_epoch(tmp_path: Path, pack: Any) -> None:
    expected = []
    for number in range(3):
        records = [b"%d %d " % (number, at) * (at % 50) for at in range(2000)]
        expected += records
        (tmp_path / f"{number}.tfrecord").write_bytes(pack(b"".join(map(shards.framed, records))))
    loader = fl.tfrecord(str(tmp_path / "*.tfrecord")).batch(64).loader()
    assert records_of(loader) == expected
    assert records_of(loader) == expected


def test_a_truncated_compressed_shard_keeps_the_records_before(tmp_path: Path) -> None:
    records = [os.urandom(200) for _ in range(100)]
    data = gzip.compress(b"".join(map(shards.framed, records)))
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(data[: len(data) // 2])
    loader = skipping(fl.tfrecord(path))
    got = records_of(loader)
    assert 10 < len(got) < 100
    assert got == records[: len(got)]
    assert "gzip stream is corrupt" in loader.report().faults[0].reason


def test_resume_is_exact_with_records(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", [b"%d" % number for number in range(40)])
    pipeline = fl.tfrecord(path).shuffle(3).batch(6)
    whole = [batch["bytes"] for batch in pipeline.loader()]
    for step in range(len(whole)):
        first = pipeline.loader()
        epoch = iter(first)
        head = [next(epoch)["bytes"] for _ in range(step)]
        second = pipeline.loader()
        second.load_state_dict(first.state_dict())
        assert head + [batch["bytes"] for batch in second] == whole


def test_two_thousand_shards_are_interleaved_under_a_limit_of_64_files(tmp_path: Path) -> None:
    for number in range(2000):
        shards.tfrecord(tmp_path / f"{number:04}", [b"%d %d" % (number, at) for at in range(3)])
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import feedline as fl
loader = fl.tfrecord({str(tmp_path / "*")!r}, index=None).interleave(cycle=512, block=1).batch(50).loader()
seen = [record.decode() for batch in loader for record in batch["bytes"]]
assert sorted(seen) == sorted(f"{{n}} {{at}}" for n in range(2000) for at in range(3)), len(seen)
assert seen[:3] == ["0 0", "1 0", "2 0"] and seen[512] == "0 1", seen[510:514]
print("every record once")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "every record once", done.stderr


def test_tokens_are_windows_of_the_files(tmp_path: Path) -> None:
    numbers = np.arange(1000, dtype=np.uint16)
    numbers.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", numbers[:100] + 5000)
    loader = fl.tokens([tmp_path / "a.bin", tmp_path / "b.npy"], "uint16", 64, stride=32).batch(8).loader()
    got = np.concatenate([batch["tokens"] for batch in loader])
    windows = np.lib.stride_tricks.sliding_window_view(numbers, 64)[::32]
    expected = np.concatenate(
        [windows, np.lib.stride_tricks.sliding_window_view(numbers[:100] + 5000, 64)[::32]]
    )
    assert got.dtype == np.uint16
    assert np.array_equal(got, expected)
    shuffled = fl.tokens(tmp_path / "a.bin", np.uint16, 65).shuffle(1).batch(4).loader()
    assert sorted(int(row[0]) for batch in shuffled for row in batch["tokens"]) == list(range(0, 936, 65))


def test_a_token_file_that_shrinks_is_a_fault_and_no_bus_error(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(100_000, dtype=np.uint16).tofile(path)
    pipeline = fl.tokens(path, "uint16", 1000)
    with path.open("r+b") as file:
        file.truncate(20_000)
    loader = skipping(pipeline)
    with pytest.raises(errors.TooManyFaultsError):
        list(loader)
    assert len(loader.report().faults) == 100


def test_arrays_can_be_zipped_with_records(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", [b"%d" % number for number in range(10)])
    weights = np.arange(10, dtype=np.float32)
    loader = fl.tfrecord(path).zip(fl.arrays({"weight": weights})).shuffle(1).batch(3).loader()
    pairs = [
        (int(r), float(w)) for batch in loader for r, w in zip(batch["bytes"], batch["weight"], strict=True)
    ]
    assert sorted(pairs) == [(number, float(number)) for number in range(10)]
    with pytest.raises(errors.InvalidSourceError, match="10 samples, but 9 rows beside"):
        fl.tfrecord(path).zip(fl.arrays({"weight": weights[:9]}))


# Users do not run a type checker.
UNTYPED: Any = fl


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: fl.tfrecord([]), "list of shards is empty"),
        (lambda path: fl.tfrecord(path / "no*thing"), "no file matches"),
        (lambda path: fl.tfrecord(path / "nothing"), "opening the shard"),
        (lambda path: UNTYPED.tfrecord(3), "give a pattern or a list of paths, got 3"),
        (lambda path: UNTYPED.tfrecord(path / "a", check="no"), "check must be True or False, got 'no'"),
        (lambda path: UNTYPED.tfrecord(path / "a", index=5), "index must be .* got 5"),
        (lambda path: fl.csv(path / "a", delimiter="ab"), "one ASCII character, got 'ab'"),
        (lambda path: fl.tokens(path / "a", "uint16", 0), "length must be .* got 0"),
        (lambda path: fl.tokens(path / "a", "no type", 4), "'no type'"),
        (lambda path: fl.tokens(path / "a", None, 4), "give dtype"),
        (lambda path: fl.tfrecord(path / "a", manifest=path / "none.json"), "manifest cannot be read"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, call: Any, said: str) -> None:
    shards.tfrecord(tmp_path / "a", RECORDS)
    with pytest.raises((errors.InvalidArgumentError, errors.InvalidSourceError), match=said):
        call(tmp_path)


def test_a_long_run_of_bad_records_does_not_stop_the_good_ones_after_it(tmp_path: Path) -> None:
    # Lists are made only a few batches ahead of the consumer; skipped samples must not count towards that.
    good = shards.framed(b"g" * (1 << 20))
    bad = good[:-1] + bytes([good[-1] ^ 1])
    path = tmp_path / "a.tfrecord"
    path.write_bytes(good + bad * 40 + good)
    loader = skipping(fl.tfrecord(path), size=2)
    assert [len(record) for record in records_of(loader)] == [1 << 20, 1 << 20]
    assert loader.report().skipped == 40


EXAMPLES: list[dict[str, Any]] = [
    {
        "image_raw": b"pixels %d" % number,
        "label": [number],
        "box": [float(at) for at in range(4 * (number % 3))],
    }
    for number in range(20)
]


def test_fields_of_examples_become_columns(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", map(shards.example, EXAMPLES))
    pipeline = fl.tfrecord(path).parse(
        {
            "image_raw": fl.bytes_(),
            "label": fl.int64(),
            "box": fl.float32(shape=[None, 4], default=[]),
            "weight": fl.float32(default=1.5),
        }
    )
    batches = list(pipeline.batch(8, index=True).loader())
    assert [list(batch["index"]) for batch in batches] == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    first = batches[0]
    assert first["image_raw"] == [b"pixels %d" % number for number in range(8)]
    assert first["label"].tolist() == list(range(8))
    assert first["label"].dtype == np.int64
    assert first["weight"].tolist() == [1.5] * 8
    assert first["weight"].dtype == np.float32
    assert first["box_lengths"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert first["box"].shape == (7, 4)
    padded = next(iter(pipeline.batch(3, pad=True).loader()))
    assert padded["box"].shape == (3, 2, 4)
    assert padded["box_lengths"].tolist() == [0, 1, 2]
    assert padded["box"][1].tolist() == [[0.0, 1.0, 2.0, 3.0], [0.0] * 4]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"no such": fl.int64()}, "no such"),
        ({"label": fl.float32()}, "label.*float32"),
        ({"label": fl.int64(shape=[2])}, "label.*2"),
    ],
)
def test_a_field_of_another_type_or_shape_is_a_fault_that_names_it(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    path = shards.tfrecord(tmp_path / "a", map(shards.example, EXAMPLES))
    with pytest.raises(errors.InvalidFieldError, match=said) as caught:
        next(iter(fl.tfrecord(path).parse(fields).batch(2).loader()))
    assert (caught.value.record, caught.value.path) == (0, str(path))


def test_the_schema_of_a_file_is_valid_python(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", map(shards.example, EXAMPLES))
    text = fl.example_schema(path)
    made = eval(f"fl.tfrecord(path){text}", {"fl": fl, "path": path})
    batch = next(iter(made.batch(20).loader()))
    assert batch["label"].tolist() == list(range(20))
    assert len(batch["image_raw"]) == 20


def png(number: int) -> bytes:
    return encoded(photo(number, 32, 24), "PNG")


def test_images_in_records_are_decoded_and_other_fields_kept(tmp_path: Path) -> None:
    path = shards.tfrecord(
        tmp_path / "a", (shards.example({"image_raw": png(number), "label": [number]}) for number in range(9))
    )
    pipeline = fl.tfrecord(path).parse({"image_raw": fl.bytes_(), "label": fl.int64()})
    for sized in (pipeline.decode(), pipeline.decode(field="image_raw").resize((24, 32))):
        batch = next(iter(sized.batch(9).loader()))
        assert set(batch) == {"image", "label"}
        assert batch["label"].tolist() == list(range(9))
        expected = [np.asarray(photo(number, 32, 24)) for number in range(9)]
        assert np.array_equal(batch["image"], np.stack(expected))


def samples_of_tar(count: int) -> list[tuple[str, bytes]]:
    members = []
    for number in range(count):
        members += [
            (f"train/{number:03}.png", png(number)),
            (f"train/{number:03}.cls", b"%d" % number),
            (f"train/{number:03}.json", json.dumps({"name": f"n{number}"}).encode()),
            (f"train/{number:03}.txt", f"text {number}".encode()),
        ]
    return members


def test_a_tar_is_read_by_its_extensions_with_or_without_parse(tmp_path: Path) -> None:
    shards.tar(tmp_path / "a.tar", samples_of_tar(10))
    batch = next(iter(fl.tar(str(tmp_path / "*.tar")).decode().batch(10).loader()))
    assert batch["cls"].tolist() == list(range(10))
    assert batch["image"].shape == (10, 24, 32, 3)
    assert batch["json"] == [{"name": f"n{number}"} for number in range(10)]
    assert batch["txt"] == [f"text {number}" for number in range(10)]
    assert batch["__key__"] == [f"train/{number:03}" for number in range(10)]
    parsed = fl.tar(tmp_path / "a.tar").parse({"label": fl.int64(key="cls"), "png": fl.bytes_()})
    batch = next(iter(parsed.shuffle(1).batch(10).loader()))
    assert sorted(batch["label"].tolist()) == list(range(10))
    assert set(batch) == {"label", "png"}


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_tar_is_a_stream_of_the_same_samples(tmp_path: Path, ending: str) -> None:
    plain = shards.tar(tmp_path / "a.tar", samples_of_tar(50))
    packed = tmp_path / f"b.tar.{ending}"
    if ending == "gz":
        packed.write_bytes(gzip.compress(plain.read_bytes()))
    else:
        packed.write_bytes(pyarrow.compress(plain.read_bytes(), codec="zstd", asbytes=True))
    ours = [list(batch["cls"]) for batch in fl.tar(packed).batch(7).loader()]
    assert ours == [list(batch["cls"]) for batch in fl.tar(plain).batch(7).loader()]


def test_a_truncated_tar_is_a_fault_and_never_a_silent_end(tmp_path: Path) -> None:
    whole = shards.tar(tmp_path / "whole.tar", samples_of_tar(5)).read_bytes()
    path = tmp_path / "a.tar"
    for length in [700, 5000, 12_000, len(whole) // 2]:
        path.write_bytes(whole[:length])
        loader = skipping(fl.tar(path, index=None).parse({"cls": fl.int64()}))
        seen: list[int] = []
        try:
            for batch in loader:
                seen += batch["cls"].tolist()
        except errors.TooManyFaultsError:
            assert not seen
        assert seen == list(range(len(seen))), length
        assert loader.report().skipped >= 1, length


def test_a_pickle_is_refused_and_named(tmp_path: Path) -> None:
    path = shards.tar(tmp_path / "a.tar", [("x.pkl", b"\x80\x04N."), ("x.cls", b"1")])
    with pytest.raises(errors.UnsafeFormatError, match=r"\.pkl"):
        next(iter(fl.tar(path).parse({"pkl": fl.json_()}).batch(1).loader()))
    assert next(iter(fl.tar(path).parse({"cls": fl.int64()}).batch(1).loader()))["cls"].tolist() == [1]


def test_lines_of_json_and_rows_of_csv_have_fields(tmp_path: Path) -> None:
    lines = [{"id": number, "text": f"line {number}", "scores": [0.5, number]} for number in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    batch = next(iter(fl.jsonl(tmp_path / "a.jsonl").batch(10).loader()))
    assert batch["id"].tolist() == list(range(10))
    assert batch["text"] == [line["text"] for line in lines]
    parsed = fl.jsonl(tmp_path / "a.jsonl").parse({"scores": fl.float32(shape=[2])}).shuffle(3)
    batch = next(iter(parsed.batch(10).loader()))
    assert sorted(batch["scores"][:, 1].tolist()) == list(range(10))

    (tmp_path / "a.csv").write_text('name,age\n"Ada, Countess",36\n"two\nlines",7\n')
    batch = next(
        iter(fl.csv(tmp_path / "a.csv").parse({"name": fl.text(), "age": fl.int64()}).batch(2).loader())
    )
    assert batch["name"] == ["Ada, Countess", "two\nlines"]
    assert batch["age"].tolist() == [36, 7]


def test_a_line_that_is_not_json_is_a_fault_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 0}\n{"id": \n{"id": 2}\n')
    loader = skipping(fl.jsonl(path).parse({"id": fl.int64()}))
    assert [batch["id"].tolist() for batch in loader] == [[0, 2]]
    [fault] = loader.report().faults
    assert (fault.record, fault.offset) == (1, 10)


def test_compressed_shards_are_shuffled_in_runs_and_dealt_out_whole(tmp_path: Path) -> None:
    expected = []
    for number in range(4):
        records = [b"%d %d" % (number, at) for at in range(300)]
        expected += records
        (tmp_path / f"{number}").write_bytes(gzip.compress(b"".join(map(shards.framed, records))))
    pipeline = fl.tfrecord(str(tmp_path / "?"))
    with pytest.raises(errors.InvalidArgumentError, match="front to back"):
        pipeline.shuffle(1)
    with pytest.raises(errors.InvalidArgumentError, match="every rank would unpack"):
        pipeline.shard(0, 2, by="record")
    shuffled = records_of(pipeline.interleave(cycle=2, seed=5).shuffle(1, buffer=100).batch(10).loader())
    assert sorted(shuffled) == sorted(expected)
    assert shuffled[:100] != sorted(shuffled[:100])
    ranks = [records_of(pipeline.shard(rank, 2).batch(10).loader()) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == sorted(expected)
    assert {record[:1] for record in ranks[0]}.isdisjoint(record[:1] for record in ranks[1])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "npy"])
def test_a_bad_first_record_is_a_fault_like_any_other(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "first"
    if kind == "jsonl":
        path.write_text('{"x": \n{"x": 1}\n{"x": 2}\n')
        pipeline = fl.jsonl(path, index=None)
    elif kind == "csv":
        path.write_text("x,y\n7\n1,1\n2,2\n")
        pipeline = fl.csv(path, index=None)
    else:
        arrays = [io.BytesIO() for _ in range(3)]
        for number, array in enumerate(arrays):
            np.save(array, np.array([number]))
        contents = [array.getvalue() for array in arrays]
        contents[0] = contents[0][:20]
        members = [(f"{number}.x.npy", content) for number, content in enumerate(contents)]
        pipeline = fl.tar(shards.tar(path, members), index=None)
    with pytest.raises(fl.FeedlineError) as raised:
        list(pipeline.batch(4).loader())
    assert str(path) in str(raised.value)
    with pipeline.batch(4).loader(faults=fl.FaultPolicy("skip")) as loader:
        (batch,) = loader
        assert loader.report().skipped == 1
    name = "x.npy" if kind == "npy" else "x"
    assert batch[name].ravel().tolist() == [2, 1]


def test_a_file_of_only_bad_lines_gives_faults_and_not_bytes(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("{\n{\n")
    policy = fl.FaultPolicy("skip", limit=None)
    with fl.jsonl(path, index=None).batch(1).loader(faults=policy) as loader:
        with pytest.raises(errors.TooManyFaultsError):
            list(loader)
        assert loader.report().skipped == 2


def test_json_that_python_could_not_read_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text('{"x": 1}\n{"x": ' + "[" * 2000 + "]" * 2000 + '}\n{"x": "[[{{"}\n')
    pipeline = fl.jsonl(path, index=None).parse({"x": fl.json_()}).batch(1)
    with pipeline.loader(faults=fl.FaultPolicy("skip")) as loader:
        assert [batch["x"] for batch in loader] == [[1], ["[[{{"]]
        (fault,) = loader.report().faults
    assert "nested deeper than 128" in fault.reason


@pytest.mark.parametrize("kind", ["jsonl", "tfrecord"])
def test_lists_of_text_are_text(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "texts"
    if kind == "jsonl":
        path.write_text('{"t": ["w", "\u00e4"]}\n{"t": []}\n{"t": ["x"]}\n')
        pipeline = fl.jsonl(path, index=None)
    else:
        feature = tensorflow_texts([["w", "\u00e4"], [], ["x"]])
        pipeline = fl.tfrecord(shards.tfrecord(path, feature), index=None)
    (batch,) = pipeline.parse({"t": fl.text(shape=[None])}).batch(3).loader()
    assert batch["t"] == ["w", "\u00e4", "x"]
    assert batch["t_lengths"].tolist() == [2, 0, 1]


def tensorflow_texts(lists: list[list[str]]) -> list[bytes]:
    tf = pytest.importorskip("tensorflow")
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "t": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[text.encode() for text in texts])
                    )
                }
            )
        ).SerializeToString()
        for texts in lists
    ]


def test_a_shard_that_was_fixed_is_good_again(tmp_path: Path) -> None:
    whole = b"".join(shards.framed(b"%d" % number) for number in range(5))
    path, cache = tmp_path / "a.tfrecord", str(tmp_path / "cache")

    def records(content: bytes) -> list[bytes]:
        path.write_bytes(content)
        os.utime(path, ns=(next(clock), 0))
        loader = fl.tfrecord(path, index=cache).batch(9).loader(faults=fl.FaultPolicy("skip"))
        found = [record for batch in loader for record in batch["bytes"]]
        faults.append(loader.report().skipped)
        return found

    faults: list[int] = []
    clock = itertools.count(10**18, 10**9)
    assert [len(records(content)) for content in (whole + b"\5\0", whole)] == [5, 5]
    assert faults == [1, 0]
    # A truncated shard stays a fault, even if its time changes.
    assert [len(records(content)) for content in (whole[:-17], whole[:-17], whole)] == [4, 4, 5]
    assert faults[2:] == [1, 1, 0]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_pattern_that_matches_something_other_than_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    shards.tfrecord(tmp_path / "a.tfrecord", [b"1"])
    odd = tmp_path / "b.tfrecord"
    odd.symlink_to(tmp_path / "gone") if kind == "link" else os.mkfifo(odd)
    with pytest.raises(fl.errors.InvalidSourceError) as raised:
        fl.tfrecord(str(tmp_path / "*.tfrecord"), index=None)
    assert str(odd) in str(raised.value)


def test_numbers_in_the_other_byte_order_are_refused(tmp_path: Path) -> None:
    np.array([1, 2, 3, 4], ">u2").tofile(tmp_path / "big.bin")
    with pytest.raises(fl.errors.InvalidArgumentError, match="little-endian"):
        fl.tokens(tmp_path / "big.bin", ">u2", 4)
