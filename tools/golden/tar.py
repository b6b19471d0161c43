"""Writes tests/golden/tar: archives of every kind, and what the webdataset package reads from them.

python tools/golden/tar.py        (needs webdataset 1.0.2)
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from webdataset.tariterators import tarfile_samples

GOLDEN = Path(__file__).parent.parent.parent / "tests" / "golden" / "tar"
LONG = "/".join(["a-long-folder-name"] * 9)
NAMES = [
    "a.txt",
    "a.cls",
    "dir/b.seg.png",
    "dir/b.SEG.Jpg",
    "dir/.hidden",
    "dir/.hid.den",
    "x/y/.z",
    "x.y/.z",
    "x.y/w/.z",
    "noext",
    "d.ot/file",
    "d.ot/file.txt",
    ".hid",
    "./c.txt",
    "a..b",
    "trail.",
    "__meta__",
    "__x__/a.txt",
    "__x__/b/c.txt",
    "__y__.txt",
    "__z.txt",
    "sub/__k__/a.json",
    "sub/__k__",
    "a.txt",
    "b.txt",
    "\u00fc.T\u00dcT",
    "/abs.txt",
    "with space.t x t",
    "a/b/c.d/e.f.g",
    "a//b.txt",
    "a/../b.txt",
]


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = "a.txt"
    archive.addfile(info, io.BytesIO(data))


def archive(kind: int, members: list[tuple[str, bytes, bytes]], **options: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind, **options) as tar:  # type: ignore[call-overload]
        for name, data, type_ in members:
            add(tar, name, data, type_)
    return buffer.getvalue()


def files(names: list[str]) -> list[tuple[str, bytes, bytes]]:
    return [
        (name, f"{number}:{name}".encode() * number, tarfile.REGTYPE) for number, name in enumerate(names)
    ]


def main() -> None:
    long = [f"{LONG}/{key}.{extension}" for key in "ab" for extension in ("txt", "cls", "x" * 120)]
    others = [
        ("a.txt", b"1", tarfile.REGTYPE),
        ("a.old", b"2", tarfile.AREGTYPE),
        ("folder", b"", tarfile.DIRTYPE),
        ("fold.er", b"", tarfile.DIRTYPE),
        ("a.symbolic", b"", tarfile.SYMTYPE),
        ("a.hard", b"", tarfile.LNKTYPE),
        ("a.fifo", b"", tarfile.FIFOTYPE),
        ("a.character", b"", tarfile.CHRTYPE),
        ("a.contiguous", b"3" * 1000, tarfile.CONTTYPE),
        ("a.unknown", b"4" * 1000, b"Z"),
        ("a.last", b"", tarfile.REGTYPE),
        ("b.txt", b"5" * 512, tarfile.REGTYPE),
    ]
    archives = {
        "names-pax": archive(tarfile.PAX_FORMAT, files(NAMES)),
        "names-gnu": archive(tarfile.GNU_FORMAT, files(NAMES)),
        "names-ustar": archive(tarfile.USTAR_FORMAT, files(NAMES)),
        "long-pax": archive(tarfile.PAX_FORMAT, files(long)),
        "long-gnu": archive(tarfile.GNU_FORMAT, files(long)),
        "long-ustar": archive(tarfile.USTAR_FORMAT, files([name for name in long if "xx" not in name])),
        "others": archive(tarfile.USTAR_FORMAT, others),
        "global": archive(tarfile.PAX_FORMAT, files(NAMES[:5]), pax_headers={"comment": "of all"}),
    }
    GOLDEN.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, content in archives.items():
        path = GOLDEN / f"{name}.tar"
        path.write_bytes(content)
        expected[name] = [
            {
                key: value if key == "__key__" else value.hex()
                for key, value in sample.items()
                if key != "__url__"
            }
            for sample in tarfile_samples([{"url": str(path)}])
        ]
    (GOLDEN / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main()
