"""Records from outside: order, faults with their places, indices, manifests, compressed shards, tokens."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shards

import feedline as fl
from feedline import errors


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))


RECORDS = [b"", b"a", b"hello world", bytes(range(200)), b"x" * 700]


def records_of(loader: fl.Loader) -> list[bytes]:
    return [record for batch in loader for record in batch["bytes"]]


def skipping(pipeline: fl.Pipeline, size: int = 2, **policy: Any) -> fl.Loader:
    return pipeline.batch(size).loader(faults=fl.FaultPolicy("skip", **policy))


def test_records_come_as_bytes_in_order(tmp_path: Path) -> None:
    for number in range(3):
        shards.tfrecord(tmp_path / f"{number}.tfrecord", [b"%d-" % number + record for record in RECORDS])
    loader = fl.tfrecord(str(tmp_path / "*.tfrecord")).batch(4).loader()
    assert records_of(loader) == [b"%d-" % number + record for number in range(3) for record in RECORDS]
    assert len(loader) == 4


def test_shuffle_and_ranks_share_all_records(tmp_path: Path) -> None:
    for number in range(4):
        shards.tfrecord(tmp_path / f"{number}", [b"%d %d" % (number, at) for at in range(25)])
    paths = [tmp_path / str(number) for number in range(4)]
    seen = []
    for rank in range(3):
        pipeline = fl.tfrecord(paths).shuffle(5).shard(rank, 3, remainder="uneven")
        seen.append(records_of(pipeline.batch(8).loader()))
    assert sorted(sum(seen, [])) == sorted(b"%d %d" % (number, at) for number in range(4) for at in range(25))
    assert seen[0] != sorted(seen[0])


def test_every_flip_of_a_shard_is_named_and_costs_no_other_record(tmp_path: Path) -> None:
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
        assert got == [record for number, record in enumerate(RECORDS[:4]) if number != hit], at
        [fault] = loader.report().faults
        assert (fault.kind, fault.path, fault.record) == ("DamagedRecord", str(path), hit)
        assert fault.offset == starts[hit]


def test_every_cut_of_a_shard_is_named_but_between_two_records(tmp_path: Path) -> None:
    whole = b"".join(shards.framed(record) for record in RECORDS[:4])
    starts = [int(start) for start in np.cumsum([0, *(16 + len(record) for record in RECORDS[:4])])]
    path = tmp_path / "a.tfrecord"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        loader = skipping(fl.tfrecord(path, index=None))
        complete = sum(1 for start in starts[1:] if start <= length)
        assert records_of(loader) == RECORDS[:complete]
        faults = loader.report().faults
        if length in starts[1:]:
            assert not faults
        else:
            assert [fault.kind for fault in faults] == ["DamagedRecord"], length


def test_a_cut_between_two_records_is_noticed_by_the_index_or_a_manifest(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a.tfrecord", RECORDS)
    fl.tfrecord(path)
    shards.tfrecord(path, RECORDS[:3])
    loader = skipping(fl.tfrecord(path))
    assert records_of(loader) == RECORDS[:3]
    assert "ends after 3 records, and had 5" in loader.report().faults[0].reason
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
    with pytest.raises(errors.DamagedRecord) as caught:
        records_of(fl.tfrecord(path).batch(1).loader())
    error = caught.value
    assert (error.index, error.path, error.record, error.offset) == (1, str(path), 1, 16)
    assert "record 1 is damaged" in str(error) and "feedline explain FL211" in str(error)
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
    with open(path, "r+b") as file:
        file.truncate(1000)
    loader = skipping(pipeline)
    got = records_of(loader)
    assert got == [b"%d" % number * 100 for number in range(len(got))]
    assert len(got) + len(loader.report().faults) == 50
    assert "shrunk" in loader.report().faults[0].reason


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


def test_a_compressed_shard_that_is_cut_keeps_what_came_before(tmp_path: Path) -> None:
    records = [os.urandom(200) for _ in range(100)]
    data = gzip.compress(b"".join(map(shards.framed, records)))
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(data[: len(data) // 2])
    loader = skipping(fl.tfrecord(path))
    got = records_of(loader)
    assert 10 < len(got) < 100 and got == records[: len(got)]
    assert "gzip stream is damaged" in loader.report().faults[0].reason


def test_resume_is_exact_with_records(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", [b"%d" % number for number in range(40)])
    pipeline = fl.tfrecord(path).shuffle(3).batch(6)
    whole = [batch["bytes"] for batch in pipeline.loader()]
    for step in range(len(whole)):
        first = pipeline.loader()
        epoch = iter(first)
        head = [next(epoch)["bytes"] for _ in range(step)]
        second = pipeline.loader()
        second.resume(first.checkpoint())
        assert head + [batch["bytes"] for batch in second] == whole


def test_two_thousand_shards_are_interleaved_under_a_limit_of_64_files(tmp_path: Path) -> None:
    for number in range(2000):
        shards.tfrecord(tmp_path / f"{number:04}", [b"%d %d" % (number, at) for at in range(3)])
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import feedline as fl
loader = fl.tfrecord({str(tmp_path / '*')!r}, index=None).interleave(cycle=512, block=1).batch(50).loader()
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
    expected = np.concatenate([windows, np.lib.stride_tricks.sliding_window_view(numbers[:100] + 5000, 64)[::32]])
    assert got.dtype == np.uint16 and np.array_equal(got, expected)
    shuffled = fl.tokens(tmp_path / "a.bin", np.uint16, 65).shuffle(1).batch(4).loader()
    assert sorted(int(row[0]) for batch in shuffled for row in batch["tokens"]) == list(range(0, 936, 65))


def test_a_token_file_that_shrinks_is_a_fault_and_no_bus_error(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(100_000, dtype=np.uint16).tofile(path)
    pipeline = fl.tokens(path, "uint16", 1000)
    with open(path, "r+b") as file:
        file.truncate(20_000)
    loader = skipping(pipeline)
    assert sum(len(batch["tokens"]) for batch in loader) == 10
    assert len(loader.report().faults) == 90


def test_arrays_stand_beside_records(tmp_path: Path) -> None:
    path = shards.tfrecord(tmp_path / "a", [b"%d" % number for number in range(10)])
    weights = np.arange(10, dtype=np.float32)
    loader = fl.tfrecord(path).zip(fl.arrays({"weight": weights})).shuffle(1).batch(3).loader()
    pairs = [(int(r), float(w)) for batch in loader for r, w in zip(batch["bytes"], batch["weight"], strict=True)]
    assert sorted(pairs) == [(number, float(number)) for number in range(10)]
    with pytest.raises(errors.BadSource, match="10 samples and 9 beside"):
        fl.tfrecord(path).zip(fl.arrays({"weight": weights[:9]}))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: fl.tfrecord([]), "list of shards is empty"),
        (lambda path: fl.tfrecord(path / "no*thing"), "no file matches"),
        (lambda path: fl.tfrecord(path / "nothing"), "opening the shard"),
        (lambda path: fl.tfrecord(3), "give a pattern or a list of paths, got 3"),
        (lambda path: fl.tfrecord(path / "a", check="no"), "check must be True or False, got 'no'"),
        (lambda path: fl.tfrecord(path / "a", index=5), "index must be .* got 5"),
        (lambda path: fl.csv(path / "a", delimiter="ab"), "one ASCII character, got 'ab'"),
        (lambda path: fl.tokens(path / "a", "uint16", 0), "length must be .* got 0"),
        (lambda path: fl.tokens(path / "a", "no type", 4), "'no type'"),
        (lambda path: fl.tokens(path / "a", None, 4), "give dtype"),
        (lambda path: fl.tfrecord(path / "a", manifest=path / "none.json"), "manifest cannot be read"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, call: Any, said: str) -> None:
    shards.tfrecord(tmp_path / "a", RECORDS)
    with pytest.raises((errors.BadSetting, errors.BadSource), match=said):
        call(tmp_path)
