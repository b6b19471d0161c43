"""Faults that a run survives: retries, waits for sources, fills, quarantine and exclusion."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
from feedline import errors
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import encoded, photo, write
from programs import answer

JPEG = encoded(photo(1, 40, 30))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """60 files that are not images."""
    return write(tmp_path / "data", {f"{number:02}.jpg": b"%d" % number for number in range(60)})


def seen(loader: fl.Loader) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


# ---- retried ----


def test_a_transient_error_is_retried_and_reported(files: list[Path]) -> None:
    reported: list[fl.Event] = []
    policy = fl.FaultPolicy(retry=20, backoff=0.001)
    pipeline = fl.files(files).batch(8, index=True)
    loader = pipeline.loader(faults=policy, chaos={"seed": 2, "eio": 0.3}, on_event=reported.append)

    batches = seen(loader)

    report = loader.report()
    retried = [event for event in reported if event.name == "sample_retried"]
    assert flat(batches) == list(range(60))
    assert (report.delivered, report.skipped, report.retried) == (60, 0, len(retried))
    assert len(retried) > 5
    assert retried[0].details["kind"] == "ReadError"
    assert retried[0].details["path"] == str(files[retried[0].details["index"]])


def test_attempts_are_counted_and_the_last_one_is_judged(files: list[Path]) -> None:
    loader = (
        fl.files(files[:6])
        .batch(8, index=True)
        .loader(
            faults=fl.FaultPolicy("skip", retry=2, backoff=0.0, patience=0.0, limit=None),
            chaos={"seed": 2, "eio": 1.0},
        )
    )

    with pytest.raises(errors.TooManyFaultsError, match="all 6 samples were bad"):
        seen(loader)

    report = loader.report()
    assert (report.skipped, report.retried) == (6, 12)
    assert [fault.attempts for fault in report.faults] == [3] * 6
    assert all("input/output error" in fault.reason for fault in report.faults)


def test_by_type_gives_a_class_its_own_rule(tmp_path: Path) -> None:
    paths = write(
        tmp_path, {"0.jpg": JPEG, "1.jpg": JPEG[:-200], "2.jpg": JPEG, "3.jpg": b"text", "4.jpg": JPEG}
    )
    rules: dict[Any, Any] = {errors.CorruptImageError: {"retry": 2, "action": "skip"}}
    policy = fl.FaultPolicy(backoff=0.0, by_type=rules)
    loader = fl.files(paths).decode().batch(1, index=True).loader(faults=policy)
    running = iter(loader)

    assert [next(running)["index"].tolist() for _ in range(3)] == [[0], [4], [2]]
    with pytest.raises(errors.UnknownFormatError) as caught:
        next(running)

    assert caught.value.index == 3
    (fault,) = loader.report().faults
    assert (fault.index, fault.attempts) == (1, 3)


def test_closing_ends_the_wait_for_a_retry(files: list[Path]) -> None:
    loader = (
        fl.files(files)
        .batch(8)
        .loader(faults=fl.FaultPolicy(retry=9, backoff=60.0, patience=0.0), chaos={"eio": 1.0})
    )
    running = iter(loader)
    closer = threading.Timer(0.3, loader.close)
    closer.start()

    with pytest.raises(errors.ClosedError):
        next(running)

    closer.join()


# ---- the limit ----


def test_many_faults_end_the_run_early_and_a_few_early_faults_are_allowed(tmp_path: Path) -> None:
    paths = write(tmp_path, {f"{number:03}.jpg": b"x" for number in range(400)})
    policy = fl.FaultPolicy("skip", limit=0.1, window=50)

    def run(bad: set[int]) -> tuple[fl.Loader, errors.FeedlineError | None]:
        loader = fl.files([tmp_path / "gone" if at in bad else path for at, path in enumerate(paths)])
        made = loader.batch(5, index=True).loader(faults=policy)
        try:
            seen(made)
        except errors.FeedlineError as error:
            return made, error
        return made, None

    loader, error = run(set(range(10)))
    assert error is None
    assert loader.report().skipped == 10

    loader, error = run(set(range(0, 400, 2)))
    assert type(error) is errors.TooManyFaultsError
    assert "of the last 50 samples" in str(error)
    report = loader.report()
    assert report.delivered + report.skipped <= 60
    assert "ReadError" in str(error)
    assert str(tmp_path / "gone") in str(error)
    assert error.code == "FL209"
    assert str(error).splitlines()[-2] == "see: feedline explain FL209"
    assert str(error).splitlines()[-1].startswith("replay: loader.replay(index=")


# ---- quarantine and exclude ----


def test_quarantined_samples_can_be_excluded_from_the_next_run(files: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "deep" / "bad.jsonl"
    pipeline = fl.files(files).shuffle(3).batch(7, index=True)
    first = pipeline.loader(
        faults=fl.FaultPolicy("skip", quarantine=bad), chaos={"seed": 1, "raise": 0.2}, seed=0
    )
    good = sorted(flat(seen(first)))
    lines = [json.loads(line) for line in bad.read_text().splitlines()]

    assert first.report().quarantined == first.report().skipped == len(lines) > 3
    assert sorted([*good, *(line["index"] for line in lines)]) == list(range(60))
    assert {line["path"] for line in lines} == {str(files[line["index"]]) for line in lines}
    assert all(
        line["kind"] == "CorruptImageError" and abs(line["time"] - time.time()) < 600 for line in lines
    )

    reported: list[fl.Event] = []
    second = pipeline.loader(exclude=bad, chaos={"seed": 1, "raise": 0.2}, on_event=reported.append)
    assert sorted(flat(seen(second))) == good
    report = second.report()
    assert (report.expected, report.delivered, report.excluded) == (len(good), len(good), len(lines))
    assert reported[0].name == "samples_excluded"
    with pytest.raises(errors.StateMismatchError):
        second.load_state_dict(first.state_dict())


def test_ranks_stay_even_without_excluded_samples(files: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        "".join(f'{{"index": {index}, "kind": "CorruptImageError"}}\n' for index in (3, 10, 11, 59))
    )

    shares = [
        flat(seen(fl.files(files).shuffle(1).shard(rank, 4).batch(4, index=True).loader(exclude=bad)))
        for rank in range(4)
    ]

    assert [len(share) for share in shares] == [14] * 4
    assert sorted(flat(shares)) == sorted(set(range(60)) - {3, 10, 11, 59})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"index": 60, "kind": "CorruptImageError"}', "no sample 60: the source has 60"),
        ('{"index": "key", "kind": "CorruptImageError"}', "no sample"),
        ('{"index": 1, "kind": "CorruptImageError", "path": "other/x.jpg"}', "other/x.jpg"),
        ("what", "line 1 is not a fault"),
    ],
)
def test_an_invalid_quarantine_file_is_refused(
    files: list[Path], tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(content)

    with pytest.raises(errors.InvalidArgumentError, match=said):
        fl.files(files).batch(8).loader(exclude=tmp_path / "bad.jsonl")


# ---- ranks and batches ----


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 1000), world=st.integers(1, 4), size=st.integers(1, 7), drop_last=st.booleans(),
    threads=st.sampled_from([1, 2, 5]),
)  # fmt: skip
def test_ranks_have_equal_batches_whatever_they_skip(
    photos: list[Path], seed: int, world: int, size: int, drop_last: bool, threads: int
) -> None:
    def run(rank: int, threads: int) -> tuple[list[list[int]], fl.Report]:
        pipeline = fl.files(photos).shuffle(seed).shard(rank, world)
        loader = pipeline.batch(size, index=True, drop_last=drop_last).loader(
            threads=threads, faults=fl.FaultPolicy("skip", limit=None), chaos={"seed": seed, "raise": 0.2}
        )
        return seen(loader), loader.report()

    runs = [run(rank, threads) for rank in range(world)]

    for rank, (batches, report) in enumerate(runs):
        assert batches == run(rank, 1)[0]
        assert report.delivered - report.repeated + report.skipped == report.expected
        assert report.pending == 0
        if world > 1:
            assert len(batches) == len(runs[0][0])
            repeated = len(flat(batches)) - len(set(flat(batches)))
            # The padding of shards and drop_last also repeat and leave out some samples.
            assert repeated <= report.repeated + 1


def test_without_fill_batches_keep_their_boundaries_and_are_smaller(files: list[Path]) -> None:
    chaos = {"seed": 5, "raise": 0.4}

    def run(**arguments: Any) -> fl.Loader:
        return fl.files(files).batch(4, index=True).loader(**arguments)

    whole = seen(run())
    kept = run(faults=fl.FaultPolicy("skip", fill=False), chaos=chaos)
    batches = seen(kept)

    bad = {fault.index for fault in kept.report().faults}
    expected = [[index for index in batch if index not in bad] for batch in whole]
    assert batches == [batch for batch in expected if batch]
    assert len({len(batch) for batch in batches}) > 1


def test_a_replacement_is_drawn_from_the_ranks_own_samples(files: list[Path]) -> None:
    for rank in range(3):
        pipeline = fl.files(files).shuffle(2).shard(rank, 3).batch(4, index=True)
        own = set(flat(seen(pipeline.loader())))
        loader = pipeline.loader(faults=fl.FaultPolicy("replace"), chaos={"seed": 4, "raise": 0.3})
        found = flat(seen(loader))

        assert len(found) == 20
        assert set(found) <= own
        assert loader.report().replaced > 0


# ---- a source that is unavailable ----


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A mounted folder with images, if mounting is allowed on this machine."""
    write(tmp_path / "disk", {f"cat/{number:02}.jpg": JPEG for number in range(60)})
    point = tmp_path / "mounted"
    point.mkdir()
    if os.geteuid() != 0 or not bound(tmp_path / "disk", point):
        pytest.skip("mounting is not allowed here")
    yield point
    subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def bound(disk: Path, point: Path) -> bool:
    return subprocess.run(["mount", "--bind", disk, point], check=False, capture_output=True).returncode == 0


def test_no_sample_is_skipped_because_a_mount_went_away(mount: Path, tmp_path: Path) -> None:
    reported: list[str] = []

    def record(event: fl.Event) -> None:
        reported.append(event.name)
        if event.name == "source_probed" and reported.count("source_probed") == 2:
            assert bound(tmp_path / "disk", mount)

    loader = (
        fl.images(mount)
        .decode()
        .batch(4, index=True)
        .loader(faults=fl.FaultPolicy("skip", patience=60.0), prefetch=0, files=1, on_event=record)
    )
    running = iter(loader)
    found = next(running)["index"].tolist()
    subprocess.run(["umount", "-l", mount], check=True)
    for batch in running:
        found += batch["index"].tolist()

    assert found == list(range(60))
    assert loader.report().skipped == 0
    changes = [name for name in reported if name in ("source_unavailable", "source_recovered")]
    assert changes == ["source_unavailable", "source_recovered"]
    assert any("is back after" in note for note in loader.report().notes)


def test_a_folder_that_stays_unavailable_ends_the_run_and_is_named(tmp_path: Path, caplog: Any) -> None:
    data = tmp_path / "data"
    write(data, {f"cat/{number:02}.jpg": JPEG for number in range(60)})
    policy = fl.FaultPolicy("skip", patience=0.5)
    loader = fl.images(data).batch(4, index=True).loader(faults=policy, prefetch=0, files=1, stall=0.3)
    running = iter(loader)
    next(running)
    data.rename(tmp_path / "away")

    with caplog.at_level(logging.WARNING, "feedline"), pytest.raises(errors.SourceUnavailableError) as caught:
        for _ in running:
            pass

    assert f"{data} has been unavailable for 0.5 s" in str(caught.value)
    assert loader.report().skipped == 0
    assert f"{data} is unavailable, reading pauses" in caplog.text
    assert "no batch for" in caplog.text
    assert "the source is unavailable" in caplog.text


def test_a_folder_that_never_existed_is_no_unavailable_source(tmp_path: Path) -> None:
    paths = [tmp_path / "never" / f"{number}.jpg" for number in range(8)]
    loader = fl.files(paths).batch(4).loader(faults=fl.FaultPolicy("skip", retry=3, limit=None))

    with pytest.raises(errors.TooManyFaultsError, match="all 8 samples were bad"):
        list(loader)

    assert loader.report().skipped == 8
    assert not [note for note in loader.report().notes if "unavailable" in note]


# ---- reports ----


def test_a_long_wait_for_a_batch_is_explained_once(files: list[Path], caplog: Any) -> None:
    loader = (
        fl.files(files[:2])
        .batch(1)
        .loader(stall=0.2, readers=1, chaos={"slow": 1.0, "seconds": 0.9}, prefetch=0)
    )

    with caplog.at_level(logging.WARNING, "feedline"):
        next(iter(loader))

    stalls = [record.message for record in caplog.records if "no batch for" in record.message]
    assert len(stalls) == 1
    assert f"reading sample 0 ({files[0]}) for 0." in stalls[0]


def test_the_log_summarises_an_epoch_with_faults(files: list[Path], caplog: Any) -> None:
    loader = fl.files(files).batch(8).loader(faults=fl.FaultPolicy("skip"), chaos={"seed": 1, "raise": 0.1})

    with caplog.at_level(logging.INFO, "feedline"):
        list(loader)

    skipped = loader.report().skipped
    last = caplog.records[-1]
    assert (last.levelname, last.message) == (
        "WARNING",
        f"epoch 0: {60 - skipped} samples delivered, {skipped} skipped",
    )
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == skipped + 1


def test_a_callback_that_raises_does_not_end_the_run(files: list[Path], caplog: Any) -> None:
    def bad(event: fl.Event) -> None:
        raise RuntimeError(event.name)

    loader = fl.files(files).batch(8, index=True).loader(on_event=bad)

    assert len(flat(seen(loader))) == 60
    assert "on_event failed for epoch_started" in caplog.text


def test_the_slowest_samples_are_named(files: list[Path]) -> None:
    loader = fl.files(files).batch(8).loader()
    list(loader)

    slowest = loader.report().slowest

    assert len(slowest) == 10
    assert [slow.seconds for slow in slowest] == sorted((slow.seconds for slow in slowest), reverse=True)
    assert {slow.stage for slow in slowest} <= {"fetch", "worker"}


def test_faults_leave_no_thread_and_no_descriptor_behind(tmp_path: Path) -> None:
    write(tmp_path / "data", {f"{number}.jpg": b"x" for number in range(40)})
    program = """
    import threading
    def count():
        return [len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))]
    def run():
        loader = fl.files(arguments[0] + "/*.jpg").shard(0, 2).batch(3).loader(
            faults=fl.FaultPolicy("skip", retry=1, backoff=0.001, quarantine=arguments[1]),
            chaos={"eio": 0.2, "raise": 0.2, "slow": 0.1, "seconds": 0.01})
        batches = len(list(loader))
        loader.close()
        return batches
    run()
    before = count()
    batches = [run() for _ in range(5)]
    say([before, count(), len(set(batches))])
    """

    before, after, kinds = answer(program, tmp_path / "data", tmp_path / "bad.jsonl", seconds=200)

    assert after[0] == before[0]
    assert after[1] <= before[1]
    assert kinds == 1
