"""Sources that go away: the run waits for them, reports it at once, and skips nothing because of it."""

from __future__ import annotations

import errno
import functools
import os
import time
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
import torch
from feedline._workers.sources import NamedFolders, Sources, folders_of
from feedline.errors import SourceUnavailableError
from feedline.torch import DataLoader

LENGTH = 40
AT = 21


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """A file for each sample, in a folder that is moved away when one sample is read."""

    def __init__(self, folder: Path, *, moves: bool = True) -> None:
        self.folder = folder
        self.moves = moves

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(read(self.folder, index, moves=self.moves))


def read(folder: Path, index: int, *, moves: bool = True) -> int:
    if moves and index == AT and not (folder.parent / "moved").exists():
        (folder.parent / "moved").touch()
        folder.rename(folder.parent / "away")
    return int((folder / f"{index}").read_text())


class Reader:
    """The same for an executor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int) -> int:
        return read(self.folder, index)


class Witness:
    """An event callback that brings the folder back when it is reported unavailable."""

    def __init__(self, folder: Path, *, brings_back: bool = True) -> None:
        self.folder = folder
        self.brings_back = brings_back
        self.reported: list[str] = []

    def __call__(self, event: fl.Event) -> None:
        if event.name.startswith("source"):
            self.reported.append(event.name)
            assert event.details["root"] == str(self.folder)
        if event.name == "source_unavailable" and self.brings_back:
            (self.folder.parent / "away").rename(self.folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mount"
    folder.mkdir()
    for index in range(LENGTH):
        (folder / f"{index}").write_text(f"{index}")
    return folder


def policy(**more: Any) -> fl.FaultPolicy:
    return fl.FaultPolicy("skip", **more)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_folder_that_goes_away_is_waited_for_and_nothing_is_skipped(folder: Path, workers: int) -> None:
    witness = Witness(folder)
    # Shorter than the wait, which is not a hang.
    deadline = 0.45 if workers else None
    loader = DataLoader(
        Files(folder), batch_size=4, num_workers=workers, faults=policy(), on_event=witness, deadline=deadline
    )

    samples = [int(sample) for batch in loader for sample in batch]

    assert samples == list(range(LENGTH))
    assert loader.report().skipped == 0
    # Reported once, however many workers found it unavailable; and waiting is not a hang.
    assert witness.reported[0] == "source_unavailable"
    assert witness.reported[-1] == "source_recovered"
    assert (witness.reported.count("source_unavailable"), witness.reported.count("source_recovered")) == (
        1,
        1,
    )
    assert "source_probed" in witness.reported
    assert not loader.deaths


def test_an_executor_waits_for_a_folder_too(folder: Path) -> None:
    witness = Witness(folder)
    with fl.Executor(2, faults=policy(), on_event=witness) as pool:
        assert list(pool.map(Reader(folder), range(LENGTH))) == list(range(LENGTH))

    assert witness.reported[0] == "source_unavailable"
    assert witness.reported[-1] == "source_recovered"


def first_read(folder: Path, name: str) -> int:
    """Reads a file of a folder that is moved away just before; the process has opened no file in it."""
    if not (folder.parent / "moved").exists():
        (folder.parent / "moved").mkdir()
        folder.rename(folder.parent / "away")
    return int((folder / name).read_text())


def read_file(path: Path | str) -> int:
    return first_read(Path(path).parent, Path(path).name)


def read_files(paths: list[str]) -> int:
    return read_file(paths[0])


@pytest.mark.parametrize("named_by", ["path", "text", "list", "keyword", "function"])
def test_a_worker_of_an_executor_waits_for_a_folder_that_its_first_call_names(
    folder: Path, named_by: str
) -> None:
    witness = Witness(folder)
    with fl.Executor(1, faults=policy(), on_event=witness) as pool:
        future = {
            "path": lambda: pool.submit(read_file, folder / "3"),
            "text": lambda: pool.submit(read_file, str(folder / "3")),
            "list": lambda: pool.submit(read_files, [str(folder / "3")]),
            "keyword": lambda: pool.submit(read_file, path=folder / "3"),
            "function": lambda: pool.submit(functools.partial(first_read, folder), "3"),
        }[named_by]()
        assert future.result(60) == 3
        assert pool.report().skipped == 0

    assert (witness.reported[0], witness.reported[-1]) == ("source_unavailable", "source_recovered")


class Strange(str):
    """Its own code would fail."""

    __slots__ = ()

    def __contains__(self, part: object) -> bool:
        raise RuntimeError("asked")


def test_the_folders_that_arguments_name_are_looked_into_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    scandir = os.scandir

    def look(path: str) -> Any:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    folders = NamedFolders()

    for index in range(3):
        named = folders.of_arguments(
            (folder / f"{index}", index), {"path": str(folder), "none": Strange("/a/b")}
        )
        assert named == {str(folder)}
    assert folders.of_arguments((folder / "not" / "there", "a word"), {}) == set()

    assert looks.count(str(folder)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_stays_unavailable_ends_the_run_after_patience(folder: Path, workers: int) -> None:
    witness = Witness(folder, brings_back=False)
    faults = policy(patience=0.4)
    loader = DataLoader(Files(folder), batch_size=4, num_workers=workers, faults=faults, on_event=witness)

    with pytest.raises(SourceUnavailableError, match="has been unavailable for"):
        list(loader)

    assert witness.reported[0] == "source_unavailable"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_single_missing_file_is_a_fault_of_its_sample(folder: Path, workers: int) -> None:
    (folder / "7").unlink()
    witness = Witness(folder)
    loader = DataLoader(
        Files(folder, moves=False),
        batch_size=4,
        num_workers=workers,
        faults=policy(fill=False),
        on_event=witness,
    )

    samples = [int(sample) for batch in loader for sample in batch]

    assert samples == [index for index in range(LENGTH) if index != 7]
    (fault,) = loader.report().faults
    assert (fault.index, fault.path, fault.kind) == (7, str(folder / "7"), "FileNotFoundError")
    assert witness.reported == []


def test_a_file_that_is_back_before_the_check_is_retried_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    sources = Sources(100, time.sleep, None, [str(tmp_path)])
    raised = FileNotFoundError(errno.ENOENT, "no such file", str(path))

    assert sources.came_back(raised)
    assert not sources.came_back(raised), "the sample alone is bad"
    path.rename(tmp_path / "other")
    assert not sources.came_back(raised)


class Reads:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, sample: Any) -> Any:
        return sample


def test_folders_named_by_functions_count_as_known(tmp_path: Path) -> None:
    """A worker whose first sample cannot be read must know that its folder was there."""
    (tmp_path / "file").write_text("x")

    def around(folder: Any) -> Any:
        return lambda sample: (folder, sample)

    def read(folder: Path, sample: Any) -> Any:
        return folder, sample

    later: Any = None
    functions: list[Any] = [Reads(tmp_path), around(tmp_path), functools.partial(read, tmp_path)]
    for function in [*functions, around(functions[0])]:
        assert folders_of(function) == {str(tmp_path)}
    for function in (read, around(tmp_path / "not" / "there"), lambda sample: (later, sample), len, Reads):
        assert folders_of(function) == set()
