"""Gives files, classes, members and columns hostile names: terminal and folders must not be affected."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tarfile
import tempfile
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import shards
from feedline import _native
from pictures import encoded, photo

from attack.findings import expect, only_clean_errors

__all__ = ["attack"]

FORGED = "forged: all is well"
PARTS = [
    f"\n{FORGED}",
    f"\r{FORGED}",
    f"\r\n{FORGED}",
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\x00",
    "\x7f",
    "\b\b\b",
    "\t",
    "\u202egnp",
    "\u2066x\u2069",
    f"\u2028{FORGED}",
    f"\x85{FORGED}",
    "\u200b",
    "\udcff\udcfe",
    "é" * 30,
    "a" * 200,
    "<script>alert(1)</script>",
    "'\"`$(touch owned)`",
    "%s%n{}",
    "..",
    ".",
    " ",
    "~",
    "-rf",
    "名前",
    "\\",
]
# Unicode categories of characters that control a terminal or the direction of text.
FORBIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
ALLOWED = {"\n", "\t", "\xad", "\u200b", "\u200c", "\u200d", "\ufeff"}


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Uses some hostile names everywhere a name is possible."""
    counts: Counter[str] = Counter()
    for number in range(3):
        place = folder / str(number)
        place.mkdir()
        name = hostile(draws)
        for where in (in_pictures, in_tar, in_columns, in_records):
            inner = place / where.__name__
            inner.mkdir()
            where(draws, inner, name)
            counts += Counter({"names": 1})
    return counts


def hostile(draws: Random) -> str:
    """A hostile name, which may be invalid as a file name."""
    return "".join(draws.choice(PARTS) for _ in range(draws.randint(1, 3)))


def as_file_name(name: str) -> str:
    """A similar name that is valid as a file name."""
    short = name.replace("\0", "").replace("/", "")
    while len(os.fsencode(short)) > 200:
        short = short[:-1]
    return f"n{short}"


def as_utf8(name: str) -> str:
    return name.encode(errors="replace").decode()


class Texts:
    """Collects all text for the user: errors, reports, events, log, warnings, stdout and stderr."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: object) -> None:
        self.texts.append((where, str(text)))

    def check(self, what: str) -> None:
        for where, text in self.texts:
            bad = {char for char in text if unicodedata.category(char) in FORBIDDEN} - ALLOWED
            expect(not bad, f"{what}: {where} has raw {sorted(bad)!r}\n{text!r:.1500}")
            forged = [line for line in text.splitlines() if line.startswith(FORGED)]
            expect(not forged, f"{what}: {where} has a forged line\n{text!r:.1500}")


@contextlib.contextmanager
def listening(texts: Texts) -> Iterator[None]:
    """Collects the log, the warnings, stdout and stderr of the block."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("feedline")
    logger.addHandler(handler)
    with tempfile.TemporaryFile() as output, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        saved = [os.dup(1), os.dup(2)]
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            yield
        finally:
            for number, copy in enumerate(saved, 1):
                os.dup2(copy, number)
                os.close(copy)
            logger.removeHandler(handler)
        output.seek(0)
        texts.add("stdout or stderr", output.read().decode(errors="surrogateescape"))
    texts.add("the log", stream.getvalue())
    for warning in warned:
        texts.add("a warning", warning.message)


def show(texts: Texts, what: str, *arguments: object) -> int:
    """Runs a command of Feedline, whose output is collected."""
    with only_clean_errors(f"{what}: feedline {arguments[0]}") as raised:
        code = _native.run(["feedline", *map(os.fspath, map(str, arguments))])
        expect(code in (0, 1, 2), f"{what}: feedline {arguments[0]} ends with {code}")
        return code
    texts.add("an error", raised[0])
    return 2


def iterate(texts: Texts, what: str, make: Any) -> None:
    """Iterates over the loader of a pipeline, once with each policy."""
    for policy in (fl.FaultPolicy("skip", limit=None), fl.FaultPolicy()):
        with only_clean_errors(what) as raised:
            pipeline = make()
            texts.add("a pipeline", repr(pipeline))
            events: list[fl.Event] = []
            with pipeline.batch(2).loader(threads=1, faults=policy, on_event=events.append) as loader:
                try:
                    for _ in loader:
                        pass
                finally:
                    texts.add("a report", loader.report())
                    texts.add("a loader", repr(loader))
                    for event in events:
                        texts.add("an event", event)
        for error in raised:
            texts.add("an error", error)


def in_pictures(draws: Random, folder: Path, name: str) -> None:
    """Hostile names of a class and of its files."""
    what = f"pictures named {name!r}"
    texts = Texts()
    for kind in (as_file_name(name), "good"):
        (folder / "in" / kind).mkdir(parents=True)
        (folder / "in" / kind / f"{as_file_name(name)}.png").write_bytes(b"no picture")
        (folder / "in" / kind / "good.png").write_bytes(encoded(photo(1, 8, 8), "PNG"))
    with listening(texts):
        iterate(texts, what, lambda: fl.images(folder / "in").decode().resize((4, 4)))
        show(texts, what, "verify", folder / "in")
        show(texts, what, "show", folder / "in" / as_file_name(name) / f"{as_file_name(name)}.png")
        show(texts, what, "convert", folder / "in", folder / "out", "--to", draws.choice(["tar", "tfrecord"]))
    texts.check(what)


def in_tar(draws: Random, folder: Path, name: str) -> None:
    """Hostile names of members, some of which would be written outside of the target folder."""
    what = f"tar members named {name!r}"
    outside = folder / "outside"
    outside.mkdir()
    (folder / "deep" / "out").mkdir(parents=True)
    texts = Texts()
    picture = encoded(photo(1, 8, 8), "PNG")
    names = [name, f"../{name}", f"../../outside/{name}", f"{outside}/{name}", "good", "../../outside/x"]
    names += ["..", "a/../../../outside/y", f"{name}/../../x", "c\\..\\..\\z"]
    path = folder / "shard.tar"
    with tarfile.open(path, "w", format=draws.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])) as archive:
        for member in names:
            for extension, data in (("png", picture if draws.random() < 0.8 else b"bad"), ("cls", b"0")):
                info = tarfile.TarInfo(member.replace("\0", "") + f".{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        if draws.random() < 0.5:
            link = tarfile.TarInfo("link.png")
            link.type, link.linkname = tarfile.SYMTYPE, str(outside)
            archive.addfile(link)
    (folder / "classes.txt").write_text(draws.choice([as_utf8(name), "../../outside", str(outside)]) + "\n")
    before = tree(folder)
    with listening(texts):
        iterate(texts, what, lambda: fl.tar(path))
        show(texts, what, "verify", path)
        show(texts, what, "show", path)
        show(texts, what, "convert", path, folder / "deep" / "out" / "target", "--to", "folder")
    texts.check(what)
    written = {place for place in tree(folder) - before if not place.startswith("deep/out/target")}
    expect(not written, f"{what}: written outside of the target: {sorted(written)}")


def tree(folder: Path) -> set[str]:
    return {os.fspath(path.relative_to(folder)) for path in folder.rglob("*")}


def in_columns(draws: Random, folder: Path, name: str) -> None:
    """Hostile names of CSV columns and JSON keys."""
    texts = Texts()
    what = f"columns named {name!r}"
    text = as_utf8(name)
    rows = folder / f"{as_file_name(name)}.csv"
    quoted = text.replace('"', '""')
    rows.write_text(f'"{quoted}",y\n1,2\nthree\n4,5\n', newline="")
    lines = folder / f"{as_file_name(name)}.jsonl"
    lines.write_text(
        "".join(json.dumps(row) + "\n" for row in ({text: 1, "y": "a"}, {"y": text}, {text: []}))
    )
    with listening(texts):
        for path, source in ((rows, fl.csv), (lines, fl.jsonl)):
            iterate(texts, what, lambda: source(path))  # noqa: B023
            iterate(texts, what, lambda: source(path).parse({text: fl.int64(), "z": fl.text(key="y")}))  # noqa: B023
            for command in ("verify", "show", "index"):
                show(texts, what, command, path)
    texts.check(what)


def in_records(draws: Random, folder: Path, name: str) -> None:
    """Hostile names of shards and features, also in a manifest and in a quarantine file."""
    texts = Texts()
    what = f"features named {name!r}"
    text = as_utf8(name)
    records = [shards.example({text: [1], "b": text.encode()}), b"no example", shards.example({"b": b""})]
    path = shards.tfrecord(folder / f"{as_file_name(name)}.tfrecord", records)
    path.write_bytes(path.read_bytes() + draws.randbytes(20))
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({text: {"records": 3}, "other": {"bytes": 1}}))
    listed = folder / "bad.jsonl"
    listed.write_text(json.dumps({"index": 0, "path": text, "kind": text, "message": text}) + "\n" + text)
    with listening(texts):
        iterate(texts, what, lambda: fl.tfrecord(path).parse({text: fl.int64(), "b": fl.text()}))
        iterate(texts, what, lambda: fl.tfrecord(path, manifest=manifest))
        with only_clean_errors(what) as raised:
            fl.tfrecord(path).batch(1).loader(exclude=listed)
        for error in raised:
            texts.add("an error", error)
        with only_clean_errors(what) as raised:
            texts.add("a schema", fl.example_schema(path))
        for command in ("verify", "show", "index"):
            show(texts, what, command, path)
    texts.check(what)
