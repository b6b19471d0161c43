"""Caches in native pipelines: any source, ranks, functions, resume, several processes and killed ones."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import shards
from batches import assert_same, kept
from feedline.errors import InvalidArgumentError
from pictures import encoded, photo
from programs import answer, start


def images(tree: Path) -> fl.Pipeline:
    return fl.images(tree).shuffle(seed=3)


def both(pipeline: fl.Pipeline, cached: fl.Pipeline, epochs: int = 3, **loader: Any) -> fl.Report:
    """Checks that some epochs are the same, and returns the report of the one with a cache."""
    plain, other = pipeline.loader(**loader), cached.loader(**loader)
    for _ in range(epochs):
        assert_same(kept(plain), kept(other))
    return other.report()


def test_images_are_the_same_with_a_cache_anywhere(tree: Path, tmp_path: Path) -> None:
    def ended(pipeline: fl.Pipeline) -> fl.Pipeline:
        return pipeline.random_crop(32).flip().to_float().batch(5, index=True)

    plain = ended(images(tree).decode().resize(40))
    for number, cached in enumerate(
        (
            images(tree).cache(memory="64MiB").decode().resize(40),
            images(tree).decode().cache(memory="64MiB").resize(40),
            images(tree).decode().resize(40).cache(memory="64MiB"),
            images(tree).cache(tmp_path / "bytes", size="64MiB").decode().resize(40),
            images(tree).decode().resize(40).cache(tmp_path / "images", size="64MiB"),
            fl.images(tree).cache(memory="64MiB").shuffle(seed=3).decode().resize(40),
        )
    ):
        report = both(plain, ended(cached))
        assert (report.cache_misses, report.cache_hits) == (24, 48), number
        assert "cache: 48 of 72 samples (67 %)" in str(report)
        assert report.cache_corrupt == 0


def test_every_rank_finds_what_the_others_have_kept(tree: Path, tmp_path: Path) -> None:
    """Ranks get other samples in each epoch."""

    def pipeline(rank: int) -> fl.Pipeline:
        return images(tree).shard(rank=rank, world=2).decode()

    def ended(pipeline: fl.Pipeline) -> fl.Pipeline:
        return pipeline.random_resized_crop(24).batch(3, index=True)

    plain = [ended(pipeline(rank)).loader() for rank in range(2)]
    cached = [ended(pipeline(rank).cache(tmp_path, size="64MiB")).loader() for rank in range(2)]
    for _ in range(3):
        for one, other in zip(plain, cached, strict=True):
            assert_same(kept(one), kept(other))
    reports = [loader.report() for loader in cached]
    assert sum(report.cache_hits for report in reports) >= 48 - 24 + 12
    assert sum(report.cache_misses for report in reports) <= 36


def test_a_run_with_a_cache_continues_one_without(tree: Path) -> None:
    plain = images(tree).decode().resize(40).random_crop(32).batch(4, index=True)
    cached = images(tree).decode().resize(40).cache(memory="64MiB").random_crop(32).batch(4, index=True)
    with plain.loader() as loader:
        running = iter(loader)
        next(running)
        next(running)
        state = loader.state_dict()
        rest = kept(running)
    with cached.loader() as loader:
        list(loader)
        loader.load_state_dict(state)
        assert_same(kept(loader), rest)
        assert loader.report().cache_hits > 0


def records(folder: Path) -> dict[str, fl.Pipeline]:
    """Sources of records, each with 20 of them."""
    pictures = [encoded(photo(number, 30 + number, 40)) for number in range(20)]
    examples = [shards.example({"jpg": picture, "cls": [at]}) for at, picture in enumerate(pictures)]
    shards.tfrecord(folder / "a.tfrecord", examples[:12])
    shards.tfrecord(folder / "b.tfrecord", examples[12:])
    members = [
        (f"{at:03}.{kind}", data)
        for at, picture in enumerate(pictures)
        for kind, data in (("jpg", picture), ("cls", str(at).encode()))
    ]
    shards.tar(folder / "a.tar", members)
    (folder / "a.jsonl").write_text("".join(f'{{"x": {at}, "y": "text {at}"}}\n' for at in range(20)))
    (folder / "a.tfrecord.gz").write_bytes(gzip.compress((folder / "a.tfrecord").read_bytes()))
    fields = {"jpg": fl.bytes_(), "cls": fl.int64()}
    return {
        "raw": fl.tfrecord(str(folder / "*.tfrecord")),
        "parsed": fl.tfrecord(str(folder / "*.tfrecord")).parse(fields),
        "tar": fl.tar(folder / "a.tar"),
        "jsonl": fl.jsonl(folder / "a.jsonl"),
        "compressed": fl.tfrecord(folder / "a.tfrecord.gz").parse(fields),
    }


@pytest.mark.parametrize("name", ["raw", "parsed", "tar", "jsonl", "compressed"])
@pytest.mark.parametrize("where", ["memory", "folder"])
def test_records_of_any_container_are_the_same_with_a_cache(tmp_path: Path, name: str, where: str) -> None:
    (tmp_path / "data").mkdir()
    source = records(tmp_path / "data")[name]

    def cache(pipeline: fl.Pipeline) -> fl.Pipeline:
        if where == "memory":
            return pipeline.cache(memory="64MiB")
        return pipeline.cache(tmp_path / "cache", size="64MiB")

    count = 12 if name == "compressed" else 20
    report = both(source.batch(3), cache(source).batch(3))
    assert (report.cache_misses, report.cache_hits) == (count, 2 * count)
    if name in ("parsed", "tar", "compressed"):
        plain = source.decode().resize(24).random_crop(20).batch(3)
        report = both(plain, cache(source.decode().resize(24)).random_crop(20).batch(3))
        assert (report.cache_misses, report.cache_hits) == (count, 2 * count)


def test_a_changed_shard_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    shards.tfrecord(path, [b"one", b"two"])
    cached = fl.tfrecord(path).cache(tmp_path / "cache", size="1MiB").batch(2)
    assert next(iter(cached.loader()))["bytes"] == [b"one", b"two"]
    shards.tfrecord(path, [b"ONE", b"TWO"])
    os.utime(path, ns=(1, 1))
    cached = fl.tfrecord(path).cache(tmp_path / "cache", size="1MiB").batch(2)
    assert next(iter(cached.loader()))["bytes"] == [b"ONE", b"TWO"]


def brighter(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"] // 2}


def test_functions_get_the_same_samples(tree: Path) -> None:
    def ended(pipeline: fl.Pipeline) -> fl.Pipeline:
        return pipeline.random_crop(32).map(brighter).batch(4)

    report = both(
        ended(images(tree).decode().resize(40)),
        ended(images(tree).decode().resize(40).cache(memory="64MiB")),
        workers=1,
    )
    assert (report.cache_misses, report.cache_hits) == (24, 48)


def test_a_small_cache_keeps_a_part_of_the_samples(tree: Path) -> None:
    """Images of 67.5 KB and what an entry costs: 15 of 24 fit into 1 MiB."""
    resized = images(tree).decode().resize((150, 150))
    report = both(
        resized.resize((100, 100)).batch(8), resized.cache(memory="1MiB").resize((100, 100)).batch(8)
    )
    assert (report.cache_hits, report.cache_misses) == (2 * 15, 72 - 2 * 15)


def test_what_a_cache_cannot_do_is_refused(tree: Path) -> None:
    decoded = images(tree).decode()
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: decoded.flip().cache(memory="1GiB"), "cache cannot follow flip"),
        (lambda: decoded.random_crop(8).resize(9).cache(memory="1GiB"), "cache cannot follow random_crop"),
        (lambda: decoded.to_float().cache(memory="1GiB"), "cache cannot follow to_float or cast"),
        (lambda: decoded.map(brighter).cache(memory="1GiB"), "cache cannot follow map"),
        (lambda: decoded.cache(memory="1GiB").cache(memory="1GiB"), "there is a cache already"),
        (lambda: images(tree).decode(scaled=True).cache(memory="1GiB"), "scaled=True"),
        (lambda: decoded.cache(), "neither memory nor a folder"),
        (lambda: decoded.cache("x"), "the most bytes"),
        (lambda: decoded.cache("x", memory="1GiB"), "either in memory or in a folder"),
        (lambda: decoded.cache(memory="lots"), "memory must be"),
        (lambda: fl.arrays({"x": np.arange(2)}).cache(memory="1GiB"), "in memory already"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidArgumentError, match=message):
            call()


def test_two_processes_fill_one_folder_at_the_same_time(tree: Path, tmp_path: Path) -> None:
    program = """
        folder, cache = arguments
        pipeline = fl.images(folder).decode().resize(40).cache(cache, size="64MiB").center_crop(32).batch(4)
        loader = pipeline.loader()
        epochs = [[int(batch["image"].astype("int64").sum()) for batch in loader] for _ in range(3)]
        assert epochs[0] == epochs[1] == epochs[2]
        report = loader.report()
        say([epochs[0], report.cache_corrupt, report.cache_hits >= 48])
    """
    running = [start(program, tree, tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=200)[0] for process in running]
    assert said[0] == said[1]
    assert said[0].rstrip().endswith("0, true]")


def test_a_killed_process_leaves_a_folder_that_can_be_used(tree: Path, tmp_path: Path) -> None:
    program = """
        folder, cache = arguments
        pipeline = fl.images(folder).repeat(1000).decode().resize(40).cache(cache, size="64MiB").batch(4)
        for batch in pipeline.loader():
            say(1)
    """
    process = start(program, tree, tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".flcache"] == []
    plain = images(tree).decode().resize(40).batch(4, pad=True)
    report = both(plain, images(tree).decode().resize(40).cache(tmp_path, size="64MiB").batch(4, pad=True))
    assert report.cache_corrupt == 0
    assert report.cache_hits >= 48


def test_no_descriptor_is_left(tree: Path, tmp_path: Path) -> None:
    counted = answer(
        """
        folder, cache = arguments
        before = descriptors()
        pipeline = fl.images(folder).decode().resize(40).cache(cache, size="64MiB").center_crop(8).batch(4)
        with pipeline.loader() as loader:
            list(loader)
            next(iter(loader))
        deadline = time.monotonic() + 30
        while descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        say(descriptors() - before)
        """,
        tree,
        tmp_path,
    )
    assert counted == 0


def test_few_descriptors_are_enough(tree: Path, tmp_path: Path) -> None:
    plain = images(tree).decode().resize(40).center_crop(32).batch(5)
    cached = images(tree).decode().resize(40).cache(tmp_path, size="64MiB").center_crop(32).batch(5)
    assert both(plain, cached, files=1).cache_hits == 48


def test_a_cache_and_the_samples_share_the_memory(tmp_path: Path) -> None:
    """Samples of 1 MiB each. Where the memory is short, samples go first."""
    for number in range(24):
        (tmp_path / f"{number:02}.bin").write_bytes(os.urandom(1 << 20))
    plain = fl.files(str(tmp_path / "*.bin")).batch(2)
    cached = fl.files(str(tmp_path / "*.bin")).cache(memory="12MiB").batch(2)
    both(plain, cached, memory="20MiB", prefetch="2MiB")
    report = both(plain, cached, memory="80MiB", prefetch="2MiB")
    assert 0 < report.cache_hits <= 2 * 11
