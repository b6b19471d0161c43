"""Reads files with wrong sizes in a memory cgroup: the process must survive, deliver good samples and name
bad ones."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import shards
from lying_sizes import KINDS, sparse
from pictures import encoded, photo

from attack.findings import Finding, expect
from attack.memory_group import kills_in, memory_group

__all__ = ["attack"]

MIB = 1 << 20
# A record of a compressed shard may take 256 MiB before it is known to be too long.
LIMIT = 800 * MIB
# Loads all samples and prints how many were delivered and skipped.
PROGRAM = """
import json, sys, warnings
import feedline as fl
warnings.simplefilter("ignore")
with open(sys.argv[2], "w") as group:
    group.write("0")
source = eval(sys.argv[1])
settings = {"memory": sys.argv[3], "threads": int(sys.argv[4])}
delivered = 0
loader = source.batch(1).loader(faults=fl.FaultPolicy("skip", limit=None), **settings)
for batch in loader:
    delivered += 1
report = loader.report()
print(json.dumps([delivered, report.skipped, report.expected, str(report)]))
"""


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Reads two kinds of files, each in a process of its own."""
    counts: Counter[str] = Counter()
    for number in range(2):
        place = folder / str(number)
        place.mkdir()
        make, good, bad = draws.choice(LIES)
        source = make(place)
        counts += load(draws, source, good, bad, make.__name__)
    return counts


def load(draws: Random, source: str, good: int, bad: int, what: str) -> Counter[str]:
    memory, threads = draws.choice(["64MiB", "100MiB"]), draws.randint(1, 4)
    with memory_group(LIMIT) as group:
        command = [sys.executable, "-c", PROGRAM, source, str(group / "cgroup.procs"), memory, str(threads)]
        # The cgroup counts only memory that is used, not the reserved stacks of threads.
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        killed = kills_in(group)
    what = f"{what}: {source}, memory={memory}, {threads} threads, {LIMIT // MIB} MiB"
    if killed or done.returncode != 0:
        raise Finding(
            f"{what}: the kernel killed {killed}, exit code {done.returncode}\n{done.stderr[-3000:]}"
        )
    delivered, skipped, expected, report = json.loads(done.stdout)
    right = (delivered, skipped) == (good, bad) and delivered + skipped == expected
    expect(right, f"{what}: {delivered} delivered, {skipped} skipped, and not {good} and {bad}\n{report}")
    return Counter({"runs": 1, "good samples": good, "bad samples": bad})


# ---- files ----


def pixels(folder: Path) -> str:
    """Image headers with more pixels than fit into memory."""
    png = bytearray(encoded(photo(1, 8, 8), "PNG"))
    png[16:24] = (2**31 - 1).to_bytes(4, "big") * 2
    jpeg = bytearray(encoded(photo(1, 8, 8), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = b"\xff\xff\xff\xff"
    webp = bytearray(encoded(photo(1, 8, 8), "WEBP"))
    webp[26:30] = b"\xff\x3f\xff\x3f"
    contents = [encoded(photo(1, 8, 8), "PNG"), bytes(png), bytes(jpeg), bytes(webp)]
    paths = []
    for number, content in enumerate(contents):
        paths.append(folder / f"{number}.img")
        paths[-1].write_bytes(content)
    return f"fl.files({[str(path) for path in paths]!r}).decode().resize((4, 4))"


def arrays_in_tar(folder: Path) -> str:
    """Array headers that claim terabytes of numbers."""
    members = []
    for number, count in enumerate([3, 2**40, 2**62, 10**30]):
        array = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            array, {"descr": "<f4", "fortran_order": False, "shape": (count,)}
        )
        members.append((f"{number}.npy", array.getvalue() + np.zeros(3, np.float32).tobytes()))
    path = shards.tar(folder / "a.tar", members)
    return f"fl.tar({str(path)!r}).parse({{'npy': fl.npy('float32', shape=[None])}})"


def lengths_in_tfrecord(folder: Path) -> str:
    """A header with a valid checksum that claims more bytes than the file has."""
    length = (2**62).to_bytes(8, "little")
    path = folder / "a.tfrecord"
    lie = length + shards.masked(length) + b"rest"
    path.write_bytes(shards.framed(b"good") + lie + shards.framed(b"good too"))
    return f"fl.tfrecord({str(path)!r})"


def compressed_record(folder: Path) -> str:
    """A record that decompresses to more bytes than a record may have."""
    size = 700 * MIB
    header = size.to_bytes(8, "little")
    path = folder / "a.tfrecord.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(shards.framed(b"good") + header + shards.masked(header))
        for _ in range(size // MIB):
            file.write(bytes(MIB))
        file.write(bytes(4) + shards.framed(b"good too"))
    return f"fl.tfrecord({str(path)!r}, check=False)"


def sparse_files(folder: Path) -> str:
    """Sparse files of up to a terabyte."""
    for number in range(3):
        sparse(folder / f"{number}.bin", at=0, size=1 << (30 + 5 * number))
    (folder / "good.bin").write_bytes(b"good")
    paths = [str(folder / name) for name in ("0.bin", "1.bin", "2.bin", "good.bin")]
    return f"fl.files({paths!r})"


Make = Callable[[Path], str]
LIES: list[tuple[Make, int, int]] = [
    *KINDS,
    (pixels, 1, 3),
    (arrays_in_tar, 1, 3),
    (lengths_in_tfrecord, 2, 1),
    (compressed_record, 1, 1),
    (sparse_files, 1, 3),
]
