"""Warnings with default settings: skipping is visible on every front, and loses nothing."""

from __future__ import annotations

import errno
import os
import time
import urllib.error
import warnings
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline import errors
from feedline.errors import (
    FeedlineWarning,
    SampleSkippedWarning,
    SourceUnavailableWarning,
    WorkerDiedWarning,
    WorkerStalledWarning,
)
from feedline.torch import DataLoader
from torch.utils.data import Dataset

LENGTH = 40
FRONTS = ("torch with workers", "torch without workers", "executor", "map", "map in threads")


class Error(Exception):
    """The default exception of a bad sample."""


def fail(index: int) -> None:
    raise Error(f"sample {index} is bad")


class Make:
    """Makes a sample from an index; fails at some."""

    def __init__(self, bad: set[int], fail: Callable[[int], None] = fail) -> None:
        self.bad = bad
        self.fail = fail

    def __call__(self, index: int) -> int:
        if index in self.bad:
            self.fail(index)
        return index


class Samples(Dataset[int]):
    def __init__(self, make: Make, length: int = LENGTH) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self.make(index)


class Mapped:
    def __init__(self, make: Make) -> None:
        self.make = make

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.asarray(self.make(int(sample["x"])))}


def run(front: str, make: Make, policy: fl.FaultPolicy, length: int = LENGTH) -> Iterator[int]:
    """The samples of one epoch of a front."""
    if front == "executor":
        with fl.Executor(2, faults=policy) as pool:
            # A skipped call has a placeholder.
            yield from (one for one in pool.map(make, range(length)) if isinstance(one, int))
    elif front.startswith("torch"):
        workers = 2 if front == "torch with workers" else 0
        loader = DataLoader(Samples(make, length), batch_size=4, num_workers=workers, faults=policy)
        for batch in loader:
            yield from batch.tolist()
    else:
        pipeline = fl.arrays({"x": np.arange(length)}).map(Mapped(make), threads=front == "map in threads")
        with pipeline.batch(4).loader(faults=policy, workers=2) as mapped:
            for numbers in mapped:
                yield from numbers["x"].tolist()


def seen(run: Callable[[], object]) -> list[warnings.WarningMessage]:
    """The warnings of Feedline."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [one for one in caught if issubclass(one.category, FeedlineWarning)]


@pytest.mark.parametrize("front", FRONTS)
def test_the_first_skip_is_shown_with_sample_and_cause_and_a_summary_at_the_end(front: str) -> None:
    found: list[int] = []
    reported = seen(lambda: found.extend(run(front, Make({7, 21, 30}), fl.FaultPolicy("skip"))))

    assert sorted(found) == [index for index in range(LENGTH) if index not in (7, 21, 30)]
    first, last = (str(one.message) for one in reported)
    assert [one.category for one in reported] == [SampleSkippedWarning] * 2
    assert {one.filename for one in reported} == {__file__}
    assert "Error: sample 7 is bad" in first
    assert "3 of 40" in last
    assert "Error      3  such as" in last
    assert "report()" in last


def test_a_native_pipeline_shows_what_it_skips(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}" for index in range(8)]
    for path in paths:
        path.write_bytes(b"x")
    paths[5].unlink()
    loader = (
        fl.files(paths)
        .batch(4, index=True)
        .loader(faults=fl.FaultPolicy("skip", quarantine=tmp_path / "bad.jsonl"))
    )

    reported = seen(lambda: list(loader))

    first, last = (str(one.message) for one in reported)
    assert {one.filename for one in reported} == {__file__}
    assert "sample 5 failed in fetch: ReadError" in first
    assert str(paths[5]) in first
    assert "1 of 8 samples were skipped" in last
    assert f"all of them are in {tmp_path / 'bad.jsonl'}" in last


def test_after_the_first_skip_a_warning_comes_at_each_power_of_ten() -> None:
    policy = fl.FaultPolicy("replace", replacement=-1, limit=None)
    reported = seen(lambda: list(run("torch without workers", Make(set(range(120))), policy, 150)))

    assert [str(one.message).split(" ")[0] for one in reported] == ["replaced:", "10", "100", "epoch"]


def batches_of(front: str, make: Make) -> Any:
    """An iterator that can continue after it raised, unlike a generator."""
    policy = fl.FaultPolicy("skip", fill=False)
    if front == "executor":
        return fl.map(make, range(LENGTH), workers=2, faults=policy)
    if front.startswith("torch"):
        workers = 2 if front == "torch with workers" else 0
        return iter(DataLoader(Samples(make), batch_size=4, num_workers=workers, faults=policy))
    pipeline = fl.arrays({"x": np.arange(LENGTH)}).map(Mapped(make), threads=front == "map in threads")
    return iter(pipeline.batch(4).loader(faults=policy, workers=2))


@pytest.mark.parametrize("front", FRONTS)
def test_if_warnings_are_errors_no_sample_is_lost(front: str) -> None:
    batches = batches_of(front, Make({7, 8, 21}))
    found: list[int] = []
    raised: list[FeedlineWarning] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while True:
            try:
                batch = next(batches)
            except FeedlineWarning as warning:
                raised.append(warning.with_traceback(None))
            except StopIteration:
                break
            else:
                if isinstance(batch, (dict, torch.Tensor, int)):
                    found += np.ravel(batch["x"] if isinstance(batch, dict) else batch).tolist()

    assert sorted(found) == [index for index in range(LENGTH) if index not in (7, 8, 21)]
    # An executor works in a thread, in which an error would reach no caller.
    assert len(raised) == (0 if front == "executor" else 2)


@pytest.mark.parametrize("front", [front for front in FRONTS if front != "executor"])
def test_an_epoch_without_a_good_sample_is_an_error_that_names_the_causes(front: str) -> None:
    for limit in (0.5, None, 1000):
        policy = fl.FaultPolicy("skip", limit=limit)
        with pytest.raises(errors.TooManyFaultsError) as caught:
            list(run(front, Make(set(range(LENGTH))), policy))

        assert "Error" in str(caught.value)
        assert "such as sample" in str(caught.value)


@pytest.mark.parametrize("front", [front for front in FRONTS if front != "executor"])
def test_by_default_faults_in_more_than_half_of_the_samples_end_the_run(
    front: str,
) -> None:
    bad = set(range(1, LENGTH, 2)) | {0}
    with pytest.raises(errors.TooManyFaultsError) as caught:
        list(run(front, Make(bad), fl.FaultPolicy("skip")))

    assert "limit of 20 (0.5 of 40 samples, the default)" in str(caught.value)
    assert "FaultPolicy(limit=...)" in str(caught.value)
    half = set(range(1, LENGTH, 2))
    assert len(list(run(front, Make(half), fl.FaultPolicy("skip")))) == 20
    assert len(list(run(front, Make(bad), fl.FaultPolicy("skip", limit=None)))) == 19


# ---- shortages of the machine ----


def no_memory(_index: int) -> None:
    raise MemoryError


def no_tensor(_index: int) -> None:
    torch.empty(1 << 58)


def no_thread(_index: int) -> None:
    raise RuntimeError("can't start new thread")


def no_process(index: int) -> None:
    if index < 0:
        os.fork()
    # The error of fork at a limit of processes.
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


class NoRoom:
    """An error of the system."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, _index: int) -> None:
        raise OSError(self.number, os.strerror(self.number))


SHORTAGES: list[tuple[Callable[[int], None], type[Exception], str, str]] = [
    (no_memory, MemoryError, "short of memory", "OutOfMemoryError"),
    (no_tensor, RuntimeError, "short of memory", "MemoryError"),
    (no_thread, RuntimeError, "short of threads", "OutOfThreadsError"),
    (NoRoom(errno.ENOMEM), OSError, "short of memory", "OutOfMemoryError"),
    (NoRoom(errno.EMFILE), OSError, "short of descriptors", "TooManyOpenFilesError"),
    (no_process, BlockingIOError, "short of threads or processes", "OutOfThreadsError"),
    (NoRoom(errno.EAGAIN), BlockingIOError, "", "BlockingIOError"),
]


# A worker that is short of something ends, and a fresh one raises.
@pytest.mark.filterwarnings("ignore::feedline.errors.WorkerDiedWarning")
@pytest.mark.filterwarnings("ignore::feedline.errors.ResourceShortageWarning")
@pytest.mark.parametrize("front", FRONTS)
def test_a_shortage_of_the_machine_is_not_skipped_unless_by_type_names_it(front: str) -> None:
    for failure, kind, said, name in SHORTAGES:
        for policy in (
            fl.FaultPolicy("skip", by_type={OSError: "skip", RuntimeError: "skip"}),
            fl.FaultPolicy("replace", replacement=-1),
        ):
            if policy.action == "replace" and front.startswith("map"):
                continue
            with pytest.raises(kind) as caught:
                list(run(front, Make({5}, failure), policy, 8))
            text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
            assert said in text, (front, failure)
            assert "hint:" in text or not said
        if name == "MemoryError":
            # Python's class also matches the error of torch's allocator.
            assert (
                len(list(run(front, Make({5}, failure), fl.FaultPolicy(by_type={MemoryError: "skip"}), 8)))
                == 7
            )
        else:
            assert len(list(run(front, Make({5}, failure), fl.FaultPolicy(by_type={name: "skip"}), 8))) == 7


# ---- exceptions with other base classes ----


class Mixin:
    """Not an exception."""


class MixedError(Mixin, ValueError):
    """Has a base class that is not an exception."""


def mixed(index: int) -> None:
    raise MixedError(index)


def http(index: int) -> None:
    raise urllib.error.HTTPError(f"http://localhost/{index}", 404, "not found", Message(), None)


@pytest.mark.parametrize("front", FRONTS)
def test_an_exception_with_another_base_class_is_a_fault_like_any_other(front: str) -> None:
    for failure in (mixed, http):
        assert len(list(run(front, Make({5}, failure), fl.FaultPolicy("skip"), 8))) == 7


# ---- sources ----


def gone(index: int) -> None:
    Path(f"/nowhere/at/all/{index}").read_bytes()


def transient(index: int) -> None:
    raise OSError(errno.EIO, "bad sector", f"/nowhere/at/all/{index}")


@pytest.mark.parametrize("front", FRONTS)
def test_a_run_does_not_wait_for_a_folder_that_never_existed(front: str) -> None:
    for failure in (gone, transient):
        policy = fl.FaultPolicy("skip", retry=3, backoff=0.001)
        assert len(list(run(front, Make({5}, failure), policy, 8))) == 7


class Vanishes:
    """Reads a file for each sample, from a folder that is moved away at one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int) -> int:
        marker = self.folder.parent / "moved"
        if index == 21 and not marker.exists():
            marker.touch()
            self.folder.rename(self.folder.parent / "away")
        return int((self.folder / f"{index}").read_text())


@pytest.mark.parametrize("front", FRONTS)
def test_a_source_that_goes_away_is_announced_at_once_and_when_it_is_back(front: str, tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    for index in range(LENGTH):
        (folder / f"{index}").write_text(f"{index}")
    shown: list[str] = []
    lines: list[str] = []

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        if issubclass(category, SourceUnavailableWarning):
            shown.append(str(message))
            lines.append(filename)
            if len(shown) == 1:
                # The folder comes back only after the warning.
                (tmp_path / "away").rename(folder)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        found = list(run(front, Vanishes(folder), fl.FaultPolicy("skip", patience=100)))  # type: ignore[arg-type]

    assert sorted(found) == list(range(LENGTH))
    away, back = shown
    assert away.startswith(f"{folder} is unavailable, reading pauses for at most 100 s: ")
    assert "FaultPolicy(patience=...)" in away
    assert back.startswith(f"{folder} is back after")
    assert set(lines) == {__file__}


# ---- deaths ----


def kill(_index: int) -> None:
    os._exit(3)


@pytest.mark.parametrize("front", ["torch with workers", "executor", "map"])
def test_a_sample_that_kills_is_shown_in_short_and_then_in_one_line(front: str) -> None:
    reported = seen(lambda: list(run(front, Make({5}, kill), fl.FaultPolicy("skip"), 8)))

    deaths = [str(one.message) for one in reported if one.category is WorkerDiedWarning]
    assert {one.filename for one in reported} == {__file__}
    assert len(deaths[0].splitlines()) <= 4
    assert "it is replaced" in deaths[0]
    if front == "executor":
        # The error of the call lists all of its deaths.
        assert len(deaths) == 1
    else:
        assert [len(death.splitlines()) for death in deaths[1:]] == [1, 1]
        assert deaths[1].endswith("for the 2nd time")
    # The policy skips already, so the hint is not needed.
    assert not any('action="skip"' in death for death in deaths)


# ---- hangs ----


class Waits:
    """Waits at one sample until a file exists."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, index: int) -> None:
        while index == 5 and not self.gate.exists():
            time.sleep(0.01)


@pytest.mark.parametrize("front", ["torch", "executor", "map"])
def test_a_stall_names_the_sample_the_stack_and_the_deadline_that_would_end_it(
    front: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    shown: list[str] = []
    lines: list[str] = []

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        assert issubclass(category, WorkerStalledWarning)
        shown.append(str(message))
        lines.append(filename)
        gate.touch()

    make = Make({5}, Waits(gate))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        if front == "torch":
            list(DataLoader(Samples(make, 8), batch_size=4, num_workers=2, stall=0.3))
        elif front == "executor":
            with fl.Executor(2, stall=0.3) as pool:
                list(pool.map(make, range(8)))
        else:
            paths = [tmp_path / f"{index}" for index in range(8)]
            for path in paths:
                path.write_text(path.name)
            pipeline = fl.files(paths).map(lambda sample: {"x": np.asarray(make(int(sample["bytes"])))})
            with pipeline.batch(4).loader(workers=2, stall=0.3) as loader:
                list(loader)

    (text,) = shown
    assert lines == [__file__]
    assert ("Make(5)" if front == "executor" else "sample 5") in text
    assert "__call__() at" in text
    assert "with deadline=" in text
    if front == "map":
        assert str(tmp_path / "5") in text
