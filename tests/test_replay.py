"""`loader.replay` makes a batch or a sample again, alone and in this thread, with the random numbers of the
run; every error of a sample ends with the line to type."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import shards
import torch
from feedline.errors import (
    ClosedError,
    CorruptImageError,
    FeedlineWarning,
    InvalidArgumentError,
    TooManyFaultsError,
)
from feedline.torch import DataLoader
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

SEEN: list[str] = []


def typed(error: BaseException, loader: Any) -> Any:
    """What the last line of a message says, typed in."""
    text = "\n".join([str(error), *getattr(error, "__notes__", [])]).strip().splitlines()[-1]
    found = re.fullmatch(r"replay: (loader\.replay\(.*\))", text)
    assert found, text
    return eval(found[1], {"loader": loader})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def draws(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    return {**sample, "own": random.integers(1 << 60)}


def draws_globally(sample: dict[str, Any]) -> dict[str, Any]:
    drawn = [random.random(), np.random.random(), float(torch.rand(()))]
    return {**sample, "global": np.array(drawn)}


def doubles(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] * 2}


def is_odd(sample: dict[str, Any]) -> bool:
    return int(sample["x"]) % 2 == 1


def numbers(count: int = 40) -> fl.Pipeline:
    return fl.arrays({"x": np.arange(count), "n": np.arange(count) % 5})


Order = Callable[[fl.Pipeline], fl.Pipeline]

PIPELINES: dict[str, Callable[[Order], fl.Pipeline]] = {
    "plain": lambda order: order(numbers()),
    "repeated": lambda order: order(numbers(20).repeat(2)),
    "map": lambda order: order(numbers()).map(draws).map(draws_globally),
    "threads": lambda order: order(numbers()).map(draws, threads=True),
    "filter": lambda order: order(numbers()).filter(fl.col("n") < 3),
    "map_filter": lambda order: order(numbers()).filter(is_odd, threads=True).map(draws, threads=True),
    "bucket": lambda order: order(numbers()).bucket("n", [2, 4]),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_batch_can_be_made_again(name: str, rank: int) -> None:
    pipeline = PIPELINES[name](lambda source: source.shuffle(5).shard(rank, 2)).batch(6, index=True)
    if name == "map":
        pipeline = pipeline.map_batch(doubles)
    has_functions = "map" in name or name == "threads"
    with pipeline.loader(workers=1 if has_functions else None) as loader:
        epochs = [list(loader) for _ in range(2)]
        for epoch, batches in enumerate(epochs):
            for number in (0, len(batches) // 2, len(batches) - 1):
                assert same(loader.replay(batch=number, epoch=epoch), batches[number])
        assert same(loader.replay(1), epochs[1][1])
        with pytest.raises(InvalidArgumentError, match="there is no batch 1000"):
            loader.replay(batch=1000)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 3), st.data())
def test_every_sample_can_be_made_again(
    count: int, size: int, world: int, is_shuffled: bool, epoch: int, data: Any
) -> None:
    rank = data.draw(st.integers(0, world - 1))
    pipeline = numbers(count)
    if is_shuffled:
        pipeline = pipeline.shuffle(3)
    pipeline = pipeline.shard(rank, world).map(draws, threads=True)
    with pipeline.batch(size, index=True).loader(threads=1, workers=1) as loader:
        batches = [list(loader) for _ in range(epoch + 1)][-1]
        index, position = data.draw(st.sampled_from(range(count))), None
        found = loader.replay(index=index, epoch=epoch)
        assert found["x"] == index
        for batch in batches:
            for offset, other in enumerate(batch["index"]):
                if other == index and position is None:
                    position = offset
                    assert found["own"] == batch["own"][offset] or world > 1


def test_random_crops_are_the_same(photos: list[Path]) -> None:
    pipeline = fl.files(photos).shuffle(2).decode().random_resized_crop(16).flip()
    with pipeline.batch(4, index=True).loader() as loader:
        for epoch in range(2):
            for batch in list(loader):
                for offset, index in enumerate(batch["index"]):
                    again = loader.replay(index=int(index), epoch=epoch)
                    assert np.array_equal(again["image"], batch["image"][offset])


def test_records_and_compressed_shards_can_be_made_again(tmp_path: Path) -> None:
    records = [b"%d" % number for number in range(30)]
    plain = str(shards.tfrecord(tmp_path / "plain.tfrecord", records))
    with fl.tfrecord(plain, index=None).shuffle(1).batch(4).loader() as loader:
        batches = [list(batch["bytes"]) for batch in loader]
        assert list(loader.replay(batch=3, epoch=0)["bytes"]) == batches[3]
        assert bytes(loader.replay(index=17)["bytes"]) == b"17"


def test_a_bad_file_raises_its_error_again(photos: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(photos[0].read_bytes()[:200])
    pipeline = fl.files([*photos[:3], bad]).decode().resize((8, 8)).batch(2)
    with pipeline.loader() as loader:
        with pytest.raises(CorruptImageError) as raised:
            list(loader)
        assert (raised.value.index, raised.value.epoch) == (3, 0)
        with pytest.raises(CorruptImageError, match="sample 3"):
            typed(raised.value, loader)
    # A policy that skips does not hide it.
    with pipeline.loader(faults=fl.FaultPolicy("skip", limit=None)) as loader:
        with pytest.warns(FeedlineWarning):
            list(loader)
        with pytest.raises(CorruptImageError):
            loader.replay(batch=1)


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    SEEN.append(threading.current_thread().name)
    if int(sample["x"]) == 7:
        raise KeyError("the seventh")
    return sample


@pytest.mark.parametrize("threads", [False, True])
def test_a_function_that_raises_is_called_in_this_thread(threads: bool) -> None:
    with numbers(12).map(fails, threads=threads).batch(4).loader(workers=1) as loader:
        with pytest.raises(KeyError) as raised:
            list(loader)
        SEEN.clear()
        with pytest.raises(KeyError, match="the seventh") as again:
            typed(raised.value, loader)
        # Its own traceback, for a debugger: the innermost frame is that of the function.
        assert again.traceback[-1].name == "fails"
        assert [threading.current_thread().name] == SEEN


def dies(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["x"]) == 5 and os.environ.get("FEEDLINE_TEST_DIES"):
        os._exit(3)
    return sample


def test_a_sample_that_killed_its_worker_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_TEST_DIES", "1")
    with warnings.catch_warnings(), numbers(12).map(dies).batch(4).loader(workers=1) as loader:
        warnings.simplefilter("ignore")
        with pytest.raises(fl.errors.WorkerDiedError) as raised:
            list(loader)
        assert loader.deaths[-1].certificate.endswith("replay: loader.replay(index=5, epoch=0)")
        monkeypatch.delenv("FEEDLINE_TEST_DIES")
        assert typed(raised.value, loader)["x"] == 5


def test_a_replay_changes_nothing_in_the_run() -> None:
    with numbers().shuffle(1).map(draws_globally).batch(5).loader(workers=1) as loader:
        whole = list(loader)
    with numbers().shuffle(1).map(draws_globally).batch(5).loader(workers=1) as loader:
        found = []
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        for batch in loader:
            found.append(batch)
            state = loader.state_dict()
            loader.replay(batch=2)
            loader.replay(index=3)
            assert loader.state_dict() == state
        drawn = random.random(), np.random.random(), float(torch.rand(()))
        assert same(found, whole)
        assert loader.report().delivered == 40
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn == (random.random(), np.random.random(), float(torch.rand(())))


def test_a_sample_that_a_filter_left_out_is_none() -> None:
    with numbers().filter(fl.col("n") < 3).batch(4).loader() as loader:
        assert loader.replay(index=4, epoch=0) is None
        assert loader.replay(index=5, epoch=0)["x"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either batch= or index="),
        ({"batch": 1, "index": 1}, "give either batch= or index="),
        ({"batch": -1}, "batch must be a whole number from 0, got -1"),
        ({"batch": True}, "batch must be a whole number from 0, got True"),
        ({"index": "a"}, "index must be a whole number from 0, got 'a'"),
        ({"index": 400}, "sample 400 is not in epoch 0"),
        ({"index": 3, "epoch": 2**62}, "epoch"),
        ({"index": 3, "epoch": 1.5}, "epoch must be a whole number from 0, got 1.5"),
    ],
)
def test_mistakes_are_refused_with_their_value(arguments: dict[str, Any], message: str) -> None:
    with numbers().batch(4).loader() as loader, pytest.raises(InvalidArgumentError, match=re.escape(message)):
        loader.replay(**arguments)


def test_a_closed_loader_refuses() -> None:
    loader = numbers().batch(4).loader()
    loader.close()
    with pytest.raises(ClosedError):
        loader.replay(batch=0)


# ---- torch ----


class Drawn(Dataset[Any]):
    """Samples with random numbers of all global generators."""

    bad = -1

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        drawn = [random.random(), np.random.random(), float(torch.rand(()))]
        if index == self.bad:
            raise ValueError("a bad sample")
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Bad(Drawn):
    bad = 11


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_every_batch_of_a_torch_loader_can_be_made_again(workers: int, is_shuffled: bool) -> None:
    torch.manual_seed(3)
    loader = DataLoader(Drawn(), batch_size=4, shuffle=is_shuffled, num_workers=workers, seeding="sample")
    epochs = [list(loader) for _ in range(2)]
    before = torch.get_rng_state()
    for epoch, batches in enumerate(epochs):
        for number, batch in enumerate(batches):
            assert torch.equal(loader.replay(batch=number, epoch=epoch), batch)
            for sample in batch:
                assert torch.equal(loader.replay(index=int(sample[0]), epoch=epoch), sample)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(InvalidArgumentError, match="there is no batch 8: epoch 1 has 8 batches"):
        loader.replay(batch=8)


@pytest.mark.parametrize("workers", [1, 2])
def test_with_the_seeds_of_torch_the_batches_of_the_worker_before_are_made_first(workers: int) -> None:
    torch.manual_seed(3)
    loader = DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers=workers)
    batches = list(loader)
    for number in (0, 3, 7):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeedlineWarning)
            assert torch.equal(loader.replay(batch=number), batches[number])
            sample = batches[number][-1]
            assert torch.equal(loader.replay(index=int(sample[0])), sample)
    with pytest.warns(FeedlineWarning, match="batches before batch 7"):
        loader.replay(batch=7)


def test_without_workers_the_random_numbers_of_torch_are_not_known_and_a_warning_says_so() -> None:
    loader = DataLoader(Drawn(), batch_size=4)
    list(loader)
    with pytest.warns(FeedlineWarning, match="may differ"):
        assert loader.replay(index=9)[0] == 9


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", [None, "raise", "too many", "skip"])
def test_an_error_of_a_torch_loader_ends_with_the_line_to_type(workers: int, policy: str | None) -> None:
    faults = {
        None: None,
        "raise": fl.FaultPolicy("raise"),
        "too many": fl.FaultPolicy("skip", limit=0),
        "skip": fl.FaultPolicy("skip"),
    }[policy]
    torch.manual_seed(3)
    loader = DataLoader(
        Bad(), batch_size=4, shuffle=True, num_workers=workers, seeding="sample", faults=faults
    )
    if policy == "skip":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeedlineWarning)
            list(loader)
        with pytest.raises(ValueError, match="a bad sample"):
            loader.replay(index=11)
        return
    with pytest.raises((ValueError, TooManyFaultsError)) as raised:
        list(loader)
    with pytest.raises(ValueError, match="a bad sample") as again:
        typed(raised.value, loader)
    assert again.traceback[-1].name == "__getitem__"
    # Another process has the seed from the message.
    other = DataLoader(Drawn(), batch_size=4, shuffle=True, seeding="sample")
    assert typed(raised.value, other)[0] == 11


def test_a_run_that_is_continued_can_be_replayed() -> None:
    torch.manual_seed(3)
    loader = DataLoader(Drawn(), batch_size=4, shuffle=True, seeding="sample")
    running = iter(loader)
    batches = [next(running) for _ in range(3)]
    state = loader.state_dict()
    batches += list(running)
    torch.manual_seed(4)
    again = DataLoader(Drawn(), batch_size=4, shuffle=True, seeding="sample")
    again.load_state_dict(state)
    next(iter(again))
    for number, batch in enumerate(batches):
        assert torch.equal(again.replay(batch=number, epoch=0), batch)


def test_ranks_replay_their_own_batches() -> None:
    data = Drawn()
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=1, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler, seeding="sample")
    sampler.set_epoch(5)
    batches = list(loader)
    sampler.set_epoch(6)
    assert torch.equal(loader.replay(batch=2), batches[2])
    assert sampler.epoch == 6


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def test_what_cannot_be_made_again_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgumentError, match="an iterable data set"):
        DataLoader(Stream(), batch_size=2).replay(batch=1)
    loader = DataLoader(Drawn(), batch_size=4, seeding="sample")
    with pytest.raises(InvalidArgumentError, match="has not begun epoch 3"):
        loader.replay(index=2, epoch=3)
    with pytest.raises(InvalidArgumentError, match="give either batch= or index="):
        loader.replay()


# ---- the command line ----

TRAIN = """
import feedline as fl
import numpy as np
import os

def check(sample):
    if int(sample["x"]) in (3, 5) and not (int(sample["x"]) == 3 and "FIXED" in os.environ):
        raise ValueError(f"sample {sample['x']} is bad")
    return sample

def make_loader():
    pipeline = fl.arrays({"x": np.arange(8)}).map(check).batch(2)
    return pipeline.loader(workers=1, faults=fl.FaultPolicy("skip", limit=None, quarantine="bad.jsonl"))

def wrong():
    return 7

if __name__ == "__main__":
    list(make_loader())
"""


def command(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.timeout(900)
def test_a_quarantine_file_is_replayed_with_the_code_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert command(tmp_path, "train.py").returncode == 0
    replay = ("-m", "feedline", "replay", "bad.jsonl")
    alone = command(tmp_path, *replay)
    assert alone.returncode == 2, alone.stdout
    assert "ValueError was raised by your code, which needs --loader" in alone.stdout

    again = command(tmp_path, *replay, "--loader", "train:make_loader")
    assert again.returncode == 1, again.stderr
    assert "sample 3 of epoch 0: still bad: ValueError: sample 3 is bad" in again.stdout
    assert again.stdout.endswith("2 of 2 samples still bad\n")
    assert "in check" in again.stderr

    fixed = command(tmp_path, *replay, "--loader=train.py:make_loader", "--index", "3", FIXED="1")
    assert (fixed.returncode, fixed.stdout) == (
        0,
        "sample 3 of epoch 0: good now\n0 of 1 sample still bad\n",
    )
    wrong = command(tmp_path, *replay, "--loader", "train:wrong")
    assert wrong.returncode == 2
    assert "returned 7, which has no replay()" in wrong.stderr
    debugged = command(tmp_path, *replay, "--loader", "train:make_loader", "--index", "5", "--pdb")
    # Its debugger stops in the function of the user; there is no input, so it ends.
    assert "-> raise ValueError" in debugged.stdout
