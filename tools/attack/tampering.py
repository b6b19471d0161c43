"""Changes files that accompany the data: Feedline must reject them, or deliver the correct data."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import numpy as np
import shards

from attack.findings import expect, only_clean_errors
from attack.mutations import damage, damage_json, replace_file

__all__ = ["attack"]

SKIP = fl.FaultPolicy("skip", limit=None)


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Changes each kind of file several times."""
    counts: Counter[str] = Counter()
    tamper: list[Callable[[Random, Path], Counter[str]]]
    tamper = [states, indices, manifests, exclusions, quarantines]
    for number, change in enumerate(tamper * 4):
        place = folder / str(number)
        place.mkdir()
        counts += change(draws, place)
    return counts


def samples(draws: Random) -> tuple[Any, int]:
    """A pipeline without `batch`, whose samples contain their index, and the number of samples."""
    count = draws.randint(1, 60)
    numbers = np.arange(count)
    pipeline = fl.arrays({"x": numbers * 3, "n": numbers % 5})
    if draws.random() < 0.6:
        pipeline = pipeline.shuffle(draws.randrange(100))
    if draws.random() < 0.3:
        pipeline = pipeline.shard(draws.randrange(2), 2, "uneven" if count > 1 else "pad")
    if draws.random() < 0.3:
        pipeline = pipeline.bucket("n", [2, 4])
    return pipeline, count


# ---- states ----


def states(draws: Random, folder: Path) -> Counter[str]:
    """Changes a state, which must be rejected. One with a valid checksum may resume elsewhere, but must
    deliver correct samples."""
    source, count = samples(draws)
    pipeline = source.batch(draws.randint(1, 7), index=True, drop_last=draws.random() < 0.2)
    with pipeline.loader(threads=1) as loader:
        epoch = iter(loader)
        for _ in range(draws.randrange(len(loader) + 1)):
            next(epoch, None)
        good = loader.state_dict()
        # After the last batch comes the next epoch.
        rest = [batch["index"].tolist() for batch in epoch] or [batch["index"].tolist() for batch in loader]
    forges = draws.random() < 0.5
    text = damage_json(draws, json.dumps(good, separators=(",", ":")))
    if forges:
        text = with_checksum(text)
    what = f"{pipeline!r}, state\n{good}\nchanged to\n{text[:1000]}"
    try:
        changed = json.loads(text)
    except (ValueError, RecursionError):
        return Counter({"states": 1, "refused": 1})
    with pipeline.loader(threads=1) as resumed, only_clean_errors(what) as raised:
        resumed.load_state_dict(changed)
    if raised:
        return Counter({"states": 1, "refused": 1})
    with pipeline.loader(threads=1) as resumed, only_clean_errors(what) as raised:
        resumed.load_state_dict(changed)
        seen = [check_rows(batch, what) for batch in resumed]
        if not forges:
            expect(seen == rest, f"{what}\nthe batches are {seen}\nand not {rest}")
        flat = [index for batch in seen for index in batch]
        expect(len(set(flat)) == len(flat) <= count, f"{what}\nsamples were delivered twice: {seen}")
        whole = [index for batch in resumed for index in check_rows(batch, what)]
        expect(len(set(whole)) == len(whole), f"{what}\nthe epoch after it has samples twice: {whole}")
    return Counter({"states": 1, "refused": len(raised)})


def with_checksum(text: str) -> str:
    """The same state with the checksum that Feedline would write."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict):
        return text
    bare = json.dumps({**document, "checksum": 0}, separators=(",", ":"))
    return json.dumps({**document, "checksum": shards.crc32c(bare.encode(errors="replace"))})


def check_rows(batch: dict[str, Any], what: str) -> list[int]:
    """Checks that the values of a batch belong to its indices, and returns the indices."""
    right = (batch["x"] == batch["index"] * 3).all() and (batch["n"] == batch["index"] % 5).all()
    expect(right, f"{what}\na batch has wrong values: {batch}")
    return [int(index) for index in batch["index"]]


# ---- shards, and the files that accompany them ----


def write_shards(draws: Random, folder: Path, count: int = 2) -> tuple[str, list[Path], list[int]]:
    """Writes shards whose records are ascending numbers; sometimes compressed."""
    kind = draws.choice(["tfrecord", "jsonl", "csv", "tar"])
    paths, numbers, first = [], [], 0
    for shard in range(count):
        mine = list(range(first, first + draws.randint(1, 30)))
        first = mine[-1] + 1
        path = folder / f"{shard}.{kind}"
        if kind == "tfrecord":
            shards.tfrecord(path, [shards.example({"x": [number]}) for number in mine])
        elif kind == "tar":
            shards.tar(path, [(f"{number:04}.cls", str(number).encode()) for number in mine])
        elif kind == "jsonl":
            path.write_text("".join(f'{{"x": {number}}}\n' for number in mine))
        else:
            path.write_text("x\n" + "".join(f"{number}\n" for number in mine))
        paths.append(path)
        numbers += mine
    if draws.random() < 0.3:
        for path in paths:
            path.write_bytes(gzip.compress(path.read_bytes()))
    return kind, paths, numbers


def opened(kind: str, paths: list[Path], **settings: Any) -> Any:
    """A pipeline over shards of `write_shards`."""
    source = {"tfrecord": fl.tfrecord, "jsonl": fl.jsonl, "csv": fl.csv, "tar": fl.tar}[kind]
    field = fl.int64(key="cls") if kind == "tar" else fl.int64()
    return source(paths, **settings).parse({"x": field})


def take(pipeline: Any, **settings: Any) -> tuple[list[int], fl.Report]:
    """All delivered numbers, and the report, which must add up."""
    with pipeline.batch(4).loader(**{"threads": 1, "faults": SKIP, **settings}) as loader:
        seen = [int(number) for batch in loader for number in batch["x"]]
        report = loader.report()
    right = len(seen) == report.delivered and report.delivered + report.skipped == report.expected
    expect(right, f"the report does not add up: {len(seen)} came\n{report}")
    return seen, report


def indices(draws: Random, folder: Path) -> Counter[str]:
    """Changes an index: all records must be delivered, or faults reported."""
    kind, paths, numbers = write_shards(draws, folder)
    opened(kind, paths, index="beside")
    kept = [path.with_name(f"{path.name}.flindex") for path in paths]
    expect(all(path.is_file() for path in kept), f"no index was kept beside {paths}")
    victim = draws.choice(kept)
    ways = ["damage", "damage", "head", "head", "swap", "replace"]
    way = draws.choice([*ways, "head" if kind == "csv" else "forge"])
    before = victim.read_bytes()
    if way == "damage":
        victim.write_bytes(damage(draws, before).content)
    elif way == "head":
        victim.write_bytes(damage_head(draws, before))
    elif way == "forge":
        # The last four bytes are a checksum of all others. Only the owner of a shard can write such an index
        # beside it. Not for CSV, where the two halves of a row are valid rows as well.
        forged = draws.choice([damage_head(draws, before[:-4]), damage(draws, before[:-4]).content])
        victim.write_bytes(forged + shards.crc32c(forged).to_bytes(4, "little"))
    elif way == "swap":
        shutil.copyfile(kept[0], folder / "other")
        shutil.copyfile(kept[1], kept[0])
        shutil.copyfile(folder / "other", kept[1])
    else:
        way = replace_file(draws, victim)
    what = f"{kind}, index changed by {way}: {before!r:.600}"
    if way in ("damage", "head", "swap", "forge"):
        what += f"\nto {victim.read_bytes()!r:.600}"
    with only_clean_errors(what) as raised:
        seen, report = take(opened(kind, paths, index="beside"))
        must_be_accounted(seen, numbers, report, what)
    return Counter({"indices": 1, "refused": len(raised)})


def damage_head(draws: Random, index: bytes) -> bytes:
    """An index with another value in the JSON of its first line."""
    head, rest = index.split(b"\n", 1)
    return damage_json(draws, head.decode()).encode(errors="replace") + b"\n" + rest


def must_be_accounted(
    seen: list[int], numbers: list[int], report: fl.Report, what: str, *, excluded: bool = False
) -> None:
    """Checks that records were delivered once, with their values, and in order unless some were skipped. If
    some are missing, there must be faults."""
    expect(len(seen) == len(set(seen)), f"{what}\nrecords were delivered twice: {seen}")
    expect(bool(report.skipped) or seen == sorted(seen), f"{what}\nrecords are out of order: {seen}")
    expect(set(seen) <= set(numbers), f"{what}\nrecords that do not exist: {set(seen) - set(numbers)}")
    missing = sorted(set(numbers) - set(seen))
    expect(
        not missing or report.faults or excluded, f"{what}\nrecords were lost silently: {missing}\n{report}"
    )


def manifests(draws: Random, folder: Path) -> Counter[str]:
    """Changes a manifest, which may add faults, but must not remove records."""
    kind, paths, numbers = write_shards(draws, folder, draws.randint(1, 3))
    counted: dict[str, Any] = {}
    for path in paths:
        records = len(take(opened(kind, [path], index=None))[0])
        counted[path.name] = {"records": records, "bytes": path.stat().st_size}
    manifest = folder / "manifest.json"
    text = json.dumps(counted)
    manifest.write_text(text)
    seen, report = take(opened(kind, paths, manifest=manifest))
    expect(seen == numbers and not report.faults, f"{kind}: a right manifest gives {seen}\n{report}")
    what = f"{kind}, manifest {text}"
    if draws.random() < 0.2:
        what += f" replaced: {replace_file(draws, manifest)}"
    else:
        changed = damage_json(draws, text).encode(errors="surrogatepass")
        manifest.write_bytes(changed)
        what += f"\nchanged to {changed!r:.600}"
    with only_clean_errors(what) as raised:
        seen, report = take(opened(kind, paths, manifest=manifest))
        must_be_accounted(seen, numbers, report, what)
        expect(sorted(seen) == numbers, f"{what}\nthe records are {seen}\nand not {numbers}\n{report}")
    return Counter({"manifests": 1, "refused": len(raised)})


def exclusions(draws: Random, folder: Path) -> Counter[str]:
    """Changes a list of excluded samples, which must be rejected, or exclude and count its samples."""
    kind, paths, numbers = write_shards(draws, folder)
    listed = folder / "bad.jsonl"
    policy = fl.FaultPolicy("skip", limit=None, quarantine=listed)
    with only_clean_errors("the first run"):
        take(opened(kind, paths), faults=policy, chaos={"raise": 0.2, "seed": draws.randrange(100)})
    lines = listed.read_text().splitlines() if listed.is_file() else []
    bad = {json.loads(line)["index"] for line in lines}
    what = f"{kind}, {len(numbers)} records, excluded {sorted(bad)}"
    if lines and len(bad) < len(numbers):
        seen, report = take(opened(kind, paths), exclude=listed)
        right = [number for index, number in enumerate(numbers) if index not in bad]
        expect(seen == right and report.excluded == len(bad), f"{what}\nthe records are {seen}\n{report}")
    if not lines or draws.random() < 0.2:
        what += f" replaced: {replace_file(draws, listed)}"
    else:
        at = draws.randrange(len(lines))
        lines[at] = damage_json(draws, lines[at])
        listed.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
        what += f"\nchanged to {listed.read_bytes()!r:.600}"
    with only_clean_errors(what) as raised:
        seen, report = take(opened(kind, paths), exclude=listed)
        must_be_accounted(seen, numbers, report, what, excluded=True)
        counted = len(seen) + report.skipped + report.excluded
        expect(counted == len(numbers), f"{what}\n{counted} of {len(numbers)} are accounted for\n{report}")
    with only_clean_errors(f"Executor, {what}"), fl.Executor(1, exclude=listed):
        pass
    return Counter({"lists of excluded samples": 1, "refused": len(raised)})


def quarantines(draws: Random, folder: Path) -> Counter[str]:
    """Makes the quarantine file unusable: the run must end with an error, or report it and continue."""
    kind, paths, numbers = write_shards(draws, folder)
    target = folder / "bad.jsonl"
    way = draws.choice(["garbage", "no end of line", "link", "replace", "replace"])
    if way == "replace":
        way = replace_file(draws, target)
    elif way == "link":
        (folder / "other").write_text("kept\n")
        target.symlink_to(folder / "other")
    else:
        target.write_bytes(draws.randbytes(50) if way == "garbage" else b'{"index": 1}')
    bad = len(numbers) // 2
    pipeline = opened(kind, paths).batch(3)
    what = f"{kind}, quarantine to {way}"
    events: list[fl.Event] = []
    policy = fl.FaultPolicy("skip", limit=None, quarantine=target)
    with only_clean_errors(what) as raised:
        chaos = {"raise": 0.3, "seed": bad}
        with pipeline.loader(threads=1, faults=policy, chaos=chaos, on_event=events.append) as loader:
            seen = [int(number) for batch in loader for number in batch["x"]]
            report = loader.report()
        must_be_accounted(seen, numbers, report, what)
        failed = any(event.name == "quarantine_failed" for event in events)
        silent = report.quarantined != report.skipped and not failed
        expect(not silent, f"{what}\nfaults were silently not written to the quarantine file\n{report}")
    return Counter({"quarantines": 1, "refused": len(raised)})
