"""Sizes that lie: a sample that no budget can hold is a fault of that sample, and takes no memory."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import shards

HUGE = 3 << 30
# Of text, every byte is looked at.
LARGE = 300 << 20
# Loads what is good in a process of its own, and says what was delivered, skipped, and the memory it took.
PROGRAM = """
import json, resource, sys, warnings
import feedline as fl
warnings.simplefilter("ignore")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = eval(sys.argv[1])
loader = source.batch(1).loader(memory="64MiB", threads=2, faults=fl.FaultPolicy("skip", limit=None))
delivered = sum(len(next(iter(batch.values()))) for batch in loader)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = loader.report()
print(json.dumps([delivered, report.skipped, (peak - before) >> 10, str(report)]))
"""


def load(source: str) -> tuple[int, int, int, str]:
    command = [sys.executable, "-c", PROGRAM, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    delivered, skipped, megabytes, report = json.loads(done.stdout)
    return delivered, skipped, megabytes, report


def sparse(path: Path, *, at: int, size: int = HUGE, end: bytes = b"") -> None:
    """A hole in a file, from a place on."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(at + size)
        file.seek(at + size)
        file.write(end)


def picture(folder: Path) -> str:
    from pictures import encoded, photo

    (folder / "a").mkdir()
    (folder / "a" / "good.png").write_bytes(encoded(photo(1, 8, 8)))
    sparse(folder / "a" / "huge.png", at=0)
    sparse(folder / "a" / "more.png", at=0, size=1 << 40)
    return f"fl.images({str(folder)!r}).decode().resize((4, 4))"


def tfrecord(folder: Path) -> str:
    path = shards.tfrecord(folder / "a.tfrecord", [b"good"])
    start = path.stat().st_size
    framed = shards.framed(b"x" * 100)
    # A header whose checksum is right: the length is taken for what it says.
    with path.open("ab") as file:
        length = HUGE.to_bytes(8, "little")
        file.write(length + shards.masked(length))
    sparse(path, at=start + 12, end=framed[-4:] + shards.framed(b"good too"))
    return f"fl.tfrecord({str(path)!r}, check=False)"


def jsonl(folder: Path) -> str:
    path = folder / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n')
    sparse(path, at=path.stat().st_size, size=LARGE, end=b'\n{"x": 2}\n')
    return f"fl.jsonl({str(path)!r})"


def csv(folder: Path) -> str:
    path = folder / "a.csv"
    path.write_bytes(b"x\n1\n")
    sparse(path, at=path.stat().st_size, size=LARGE, end=b"\n2\n")
    return f"fl.csv({str(path)!r})"


def tar(folder: Path) -> str:
    path = folder / "a.tar"
    with tarfile.open(path, "w") as file:
        for name in ("0.txt", "1.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            file.addfile(member, io.BytesIO(b"good"))
    data = path.read_bytes()
    member = tarfile.TarInfo("2.txt")
    member.size = HUGE
    path.write_bytes(data[:2048] + member.tobuf(tarfile.GNU_FORMAT))
    sparse(path, at=2560, end=b"\0" * 1024)
    return f"fl.tar({str(path)!r})"


def compressed(folder: Path) -> str:
    path = folder / "a.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"x": 1}\n')
        for _ in range(600):
            file.write(b" " * (1 << 20))
        file.write(b'\n{"x": 2}\n')
    return f"fl.jsonl({str(path)!r})"


# How many samples are good, and how many are too large.
KINDS: list[tuple[Callable[[Path], str], int, int]] = [
    (picture, 1, 2),
    (tfrecord, 2, 1),
    (jsonl, 2, 1),
    (csv, 2, 1),
    (tar, 2, 1),
    (compressed, 1, 1),
]


@pytest.mark.parametrize(("make", "good", "bad"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
def test_a_sample_that_does_not_fit_is_skipped_and_takes_no_memory(
    make: Callable[[Path], str], good: int, bad: int, tmp_path: Path
) -> None:
    delivered, skipped, megabytes, report = load(make(tmp_path))

    assert (delivered, skipped) == (good, bad), report
    # The end of a compressed line is looked for in what is unpacked, up to a limit.
    assert megabytes < (500 if make is compressed else 200), report
    if make is not compressed:
        assert "may take 64.0 MiB" in report
