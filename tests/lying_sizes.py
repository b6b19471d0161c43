"""Files with false sizes: holes of gigabytes, long lengths in headers, lines that decompress to megabytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import shards

__all__ = ["HUGE", "KINDS", "compressed", "sparse"]

HUGE = 3 << 30
# Every byte of text is read.
LARGE = 300 << 20


def sparse(path: Path, *, at: int, size: int = HUGE, end: bytes = b"") -> None:
    """Makes a hole in a file, from an offset on."""
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
    # A header with a correct checksum, so that readers trust its length.
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


# The number of good samples, and of samples that are too large.
KINDS: list[tuple[Callable[[Path], str], int, int]] = [
    (picture, 1, 2),
    (tfrecord, 2, 1),
    (jsonl, 2, 1),
    (csv, 2, 1),
    (tar, 2, 1),
    (compressed, 1, 1),
]
