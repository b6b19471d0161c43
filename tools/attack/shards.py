"""Corrupts shards and pictures: good samples must be delivered unchanged, and the rest accounted for."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import numpy as np
import shards
from pictures import encoded, noise, photo

from attack.findings import expect, only_clean_errors
from attack.mutations import NUMBERS, Damage, damage, damage_at

__all__ = ["attack"]

SKIP = fl.FaultPolicy("skip", limit=None)


@dataclass
class Shard:
    """A small file of records.

    Attributes:
        content: the bytes of the file.
        spans: the start and end of each record, including surrounding bytes that it needs.
        open: opens a path as a pipeline.
        values: the records in a batch, as text that can be compared.
        checks: whether a changed record is always detected.
    """

    content: bytes
    spans: list[tuple[int, int]]
    open: Callable[[Path], Any]
    values: Callable[[dict[str, Any]], list[str]]
    checks: bool = False


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Corrupts shards of each format, and pictures."""
    counts: Counter[str] = Counter()
    for number, make in enumerate([*FORMATS.values()] * 3):
        place = folder / str(number)
        place.mkdir()
        counts += corrupt(draws, place, make(draws))
    for number in range(3):
        place = folder / f"pictures-{number}"
        place.mkdir()
        counts += pictures(draws, place)
    counts += payloads(draws, folder)
    counts += headers(draws, folder)
    return counts


def corrupt(draws: Random, folder: Path, shard: Shard) -> Counter[str]:
    """Reads a shard, to know its records, then reads it with one range of its bytes changed."""
    path = folder / "shard"
    path.write_bytes(shard.content)
    whole, report = read(shard, path, "the whole shard")
    right = len(whole) == len(shard.spans) and not report.faults
    expect(right, f"{shard.open(path)!r}: a whole shard gives {len(whole)} records\n{report}")
    changed = damage(draws, shard.content)
    path.write_bytes(changed.content)
    what = f"{shard.open.__qualname__}: {changed.what}"
    with only_clean_errors(what) as raised:
        seen, report = read(shard, path, what)
        untouched = [
            value for value, span in zip(whole, shard.spans, strict=True) if not changed.touches(*span)
        ]
        must_have(seen, untouched, f"{what}\nunchanged records were not delivered\n{report}")
        if shard.checks:
            expect(set(seen) <= set(whole), f"{what}\ncorrupt records: {set(seen) - set(whole)}")
    return Counter({"shards": 1, "refused": len(raised)})


def read(shard: Shard, path: Path, what: str) -> tuple[list[str], fl.Report]:
    """The records of a shard, in order, and the report, which must add up."""
    found: list[tuple[int, str]] = []
    with shard.open(path).batch(3, index=True).loader(threads=1, faults=SKIP) as loader:
        for batch in loader:
            # Records from the end fill the slots of skipped ones.
            found += zip(batch["index"].tolist(), shard.values(batch), strict=True)
        report = loader.report()
    seen = [value for _, value in sorted(found)]
    expect(len(dict(found)) == len(found), f"{what}\nrecords came twice: {sorted(found)!r:.500}")
    right = len(seen) == report.delivered and report.delivered + report.skipped == report.expected
    expect(right, f"{what}\nthe report does not add up: {len(seen)} came\n{report}")
    return seen, report


def must_have(seen: list[str], wanted: list[str], text: str) -> None:
    """Checks that all wanted records were delivered, in order."""
    left = iter(seen)
    missing = [record for record in wanted if record not in left]
    expect(not missing, f"{text}\n{missing[:3]!r:.500}")


# ---- formats ----


def tfrecord(draws: Random) -> Shard:
    records = [draws.randbytes(draws.choice([0, 1, 10, 300])) + bytes([number]) for number in range(12)]
    framed = [shards.framed(record) for record in records]
    return Shard(
        b"".join(framed),
        spans_of(framed),
        lambda path: fl.tfrecord(path, index=None),
        lambda batch: [bytes(record).hex() for record in batch["bytes"]],
        checks=True,
    )


def spans_of(parts: list[bytes], start: int = 0) -> list[tuple[int, int]]:
    spans = []
    for part in parts:
        spans.append((start, start + len(part)))
        start += len(part)
    return spans


def lines_of(parts: list[bytes], start: int = 0) -> list[tuple[int, int]]:
    """The spans of lines, each with the newline before it: without it, two lines become one."""
    return [(max(0, first - 1), last) for first, last in spans_of(parts, start)]


def jsonl(draws: Random) -> Shard:
    texts = [json.dumps({"x": number, "t": "é" * draws.randint(0, 30)}) + "\n" for number in range(12)]
    lines = [text.encode() for text in texts]
    return Shard(
        b"".join(lines),
        lines_of(lines),
        lambda path: fl.jsonl(path, index=None).parse({"x": fl.int64(), "t": fl.text()}),
        lambda batch: [f"{x} {t}" for x, t in zip(batch["x"], batch["t"], strict=True)],
    )


def csv(draws: Random) -> Shard:
    header = b"x,t\n"
    lines = [f"{number},{'a' * draws.randint(0, 30)}\n".encode() for number in range(12)]
    whole = header + b"".join(lines)
    # All rows need the header.
    spans = [(first, last) for first, last in lines_of(lines, len(header))]
    return Shard(
        whole,
        spans,
        lambda path: fl.csv(path, index=None).parse({"x": fl.int64(), "t": fl.text()}),
        lambda batch: [f"{x} {t}" for x, t in zip(batch["x"], batch["t"], strict=True)],
    )


def tar(draws: Random) -> Shard:
    members = []
    for number in range(8):
        members += [(f"{number:03}.bin", draws.randbytes(draws.choice([0, 5, 700])))]
        members += [(f"{number:03}.cls", str(number).encode())]
    with_paths = io.BytesIO()
    with tarfile.open(fileobj=with_paths, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    content = with_paths.getvalue()
    return Shard(
        content,
        # A corrupt range may affect neighbouring samples, and how many is not defined.
        [(0, len(content))] * 8,
        lambda path: fl.tar(path, index=None).parse({"x": fl.int64(key="cls"), "b": fl.bytes_(key="bin")}),
        lambda batch: [f"{x} {bytes(b).hex()}" for x, b in zip(batch["x"], batch["b"], strict=True)],
    )


def compressed(draws: Random) -> Shard:
    inner = draws.choice([tfrecord, jsonl, csv])(draws)
    # All records after the change are lost; how many before it are lost depends on the blocks of the format.
    content = draws.choice([gzip.compress, zlib.compress])(inner.content)
    return Shard(content, [(0, len(content))] * len(inner.spans), inner.open, inner.values)


def tokens(draws: Random) -> Shard:
    numbers = np.arange(96, dtype=draws.choice(["uint16", "int32"]))
    content, name = numbers.tobytes(), str(numbers.dtype)
    size = 8 * numbers.itemsize
    if draws.random() < 0.6:
        buffer = io.BytesIO()
        np.save(buffer, numbers)
        content = buffer.getvalue()
        return Shard(
            content,
            [(0, len(content))] * 12,
            lambda path: fl.tokens(path, length=8),
            lambda batch: [str(row.tolist()) for row in batch["tokens"]],
        )
    return Shard(
        content,
        # Inserted bytes move all numbers that follow.
        [(0, (number + 1) * size) for number in range(12)],
        lambda path: fl.tokens(path, name, 8),
        lambda batch: [str(row.tolist()) for row in batch["tokens"]],
    )


FORMATS: dict[str, Callable[[Random], Shard]] = {
    "tfrecord": tfrecord,
    "jsonl": jsonl,
    "csv": csv,
    "tar": tar,
    "compressed": compressed,
    "tokens": tokens,
}


# ---- pictures, and the content of records ----


def pictures(draws: Random, folder: Path) -> Counter[str]:
    """Corrupts some files; the pixels of all others must not change."""
    paths, kind = [], draws.choice(["JPEG", "PNG", "WEBP"])
    for number in range(6):
        pixels = photo(number, 20, 14) if draws.random() < 0.7 else noise(number, 9, 11, 3)
        path = folder / f"{number}.img"
        path.write_bytes(encoded(pixels, kind))
        paths.append(path)
    wanted, _ = pixels_of(paths, "whole pictures")
    corrupted = draws.sample(range(6), draws.randint(1, 4))
    changes = []
    for number in corrupted:
        changed = damage(draws, paths[number].read_bytes())
        paths[number].write_bytes(changed.content)
        changes.append(f"{number}: {changed.what}")
    what = f"{kind}, {', '.join(changes)}"
    with only_clean_errors(what):
        seen, report = pixels_of(paths, what)
        for index in set(range(6)) - set(corrupted):
            right = index in seen and (seen[index] == wanted[index]).all()
            expect(right, f"{what}\npicture {index} was not corrupted, but has changed\n{report}")
    return Counter({"pictures": len(corrupted)})


def pixels_of(paths: list[Path], what: str) -> tuple[dict[int, Any], fl.Report]:
    pipeline = fl.files(paths).decode(max_pixels=1 << 20).resize((8, 8)).batch(2, index=True)
    seen: dict[int, Any] = {}
    with pipeline.loader(threads=1, faults=SKIP) as loader:
        for batch in loader:
            seen.update(zip(batch["index"].tolist(), batch["image"].copy(), strict=True))
        report = loader.report()
    right = len(seen) == report.delivered and report.delivered + report.skipped == report.expected == 6
    expect(right, f"{what}\nthe report does not add up: {len(seen)} came\n{report}")
    return seen, report


def payloads(draws: Random, folder: Path) -> Counter[str]:
    """Corrupts the content of records, Examples and arrays, inside a valid frame."""
    example = shards.example({"i": [1, 2, 3], "f": [0.5, 1.5], "b": b"bytes"})
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    examples = [example, *(somewhere(draws, example).content for _ in range(20))]
    arrays = [array.getvalue(), *(somewhere(draws, array.getvalue()).content for _ in range(20))]
    records = shards.tfrecord(folder / "payloads.tfrecord", examples)
    members = shards.tar(folder / "payloads.tar", [(f"{n:03}.npy", data) for n, data in enumerate(arrays)])
    parsed = fl.tfrecord(records).parse(
        {"i": fl.int64(shape=[3]), "f": fl.float32(shape=[None]), "b": fl.bytes_()}
    )
    for pipeline in (
        parsed,
        fl.tar(members),
        fl.tar(members).parse({"npy": fl.npy("float32", shape=[2, 3])}),
    ):
        what = f"{pipeline!r} with corrupt payloads"
        with only_clean_errors(what), pipeline.batch(1).loader(threads=1, faults=SKIP) as loader:
            came = sum(1 for _ in loader)
            report = loader.report()
            right = came == report.delivered and report.delivered + report.skipped == report.expected == 21
            expect(right and came >= 1, f"{what}\nthe report does not add up: {came} came\n{report}")
    return Counter({"payloads": 40})


def headers(draws: Random, folder: Path) -> Counter[str]:
    """Writes valid headers of .npy files with impossible shapes and types."""
    path = folder / "lying.npy"
    for _ in range(10):
        shape = draws.choice(["96,", "95,", "97,", "-1,", "0,", "True,", "96.0,", "8, 12", "", "96"])
        if draws.random() < 0.3:
            shape = f"{draws.choice(NUMBERS)},"
        kind = draws.choice(
            ["<u2", "<u2", "<u2", ">u2", "<u8", "|O", "<c8", "<U3", "|b1", "<M8[s]", "<u2, <u2"]
        )
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
        path.write_bytes(
            b"\x93NUMPY\x01\0" + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + bytes(192)
        )
        with only_clean_errors(f"tokens of an .npy file with the header {header!r}"):
            with (
                fl.tokens(path, length=draws.choice([1, 8])).batch(4).loader(threads=1, faults=SKIP) as loader
            ):
                came = sum(len(batch["tokens"]) for batch in loader)
                report = loader.report()
            expect(came == report.delivered == report.expected, f"{header!r}: {came} came\n{report}")
    return Counter({"headers": 10})


def somewhere(draws: Random, content: bytes) -> Damage:
    """Changes a range that is not after the end, so that something always changes."""
    return damage_at(draws, content, draws.randrange(len(content)))
