"""Warnings about open files: after a fork, workers share one offset, which silently gives wrong samples."""

from __future__ import annotations

import io
import socket
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline._workers.open_files import shared_files
from feedline.errors import SharedFileWarning
from feedline.torch import DataLoader
from torch.utils.data import ConcatDataset, Dataset, Subset


class Holding(Dataset[int]):
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.bin"
    path.write_bytes(bytes(100))
    return path


def test_an_open_file_in_a_data_set_gives_one_warning(file: Path) -> None:
    with file.open("rb") as opened:
        loader = DataLoader(Holding(file=opened), num_workers=2)
        with pytest.warns(SharedFileWarning, match="dataset.file is the open file") as caught:
            assert len(list(loader)) == 4
        (warning,) = caught
        assert str(file) in str(warning.message)
        assert "worker_init_fn" in str(warning.message)
        assert warning.filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)


def test_an_open_h5py_file_is_named_for_any_h5py_object_in_the_data_set(tmp_path: Path) -> None:
    # The environments of older torch versions lack h5py.
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "numbers.h5"
    with h5py.File(path, "w") as made:
        made.create_group("part").create_dataset("x", data=np.arange(4))
    with h5py.File(path, "r") as opened:
        for held in (opened, opened["part"], opened["part/x"]):
            loader = DataLoader(Holding(held=held), num_workers=2)
            with pytest.warns(SharedFileWarning, match="dataset.held is the open file") as caught:
                assert len(list(loader)) == 4
            (warning,) = caught
            assert str(path) in str(warning.message)
        # If only the file was closed, its objects cannot be read.
        left = opened["part/x"]
    assert shared_files(Holding(file=opened, left=left), "dataset") == []


def test_an_open_h5py_file_in_a_function_of_map_or_an_executor_is_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "numbers.h5", "w") as made:
        made["x"] = np.arange(8)
    with h5py.File(tmp_path / "numbers.h5", "r") as opened:
        rows = opened["x"]

        def read(sample: dict[str, Any]) -> dict[str, Any]:
            return {"x": len(rows)}

        with (
            pytest.warns(SharedFileWarning, match=r"rows is the open file .*numbers\.h5"),
            fl.arrays({"x": np.arange(4)}).map(read).batch(2).loader(workers=2) as loader,
        ):
            assert len(list(loader)) == 2
        with pytest.warns(SharedFileWarning, match=r"numbers\.h5"):
            fl.Executor(2, initializer=print, initargs=(rows,)).shutdown()


def test_there_is_no_warning_if_no_offset_is_shared(file: Path) -> None:
    with file.open("rb") as opened, warnings.catch_warnings():
        warnings.simplefilter("error")
        for workers in (0, 1):
            list(DataLoader(Holding(file=opened), num_workers=workers))
        opened.close()
        list(DataLoader(Holding(file=opened, path=str(file)), num_workers=2))


def test_files_are_found_wherever_a_data_set_keeps_them(file: Path, tmp_path: Path) -> None:
    archive, tar = tmp_path / "a.zip", tmp_path / "a.tar"
    zipfile.ZipFile(archive, "w").close()
    tarfile.open(tar, "w").close()
    with (
        file.open("rb") as raw,
        file.open() as text,
        zipfile.ZipFile(archive) as zipped,
        tarfile.open(tar) as t,
    ):
        bare = file.open("rb", buffering=0)
        held: dict[str, tuple[Any, str]] = {
            "dataset.file": (Holding(file=raw), str(file)),
            "dataset.text": (Holding(text=text), str(file)),
            "dataset.bare": (Holding(bare=bare), str(file)),
            "dataset.zip": (Holding(zip=zipped), str(archive)),
            "dataset.tar": (Holding(tar=t), str(tar)),
            "dataset.files['a'][1]": (Holding(files={"a": [0, raw]}), str(file)),
            "dataset.dataset.file": (Subset(Holding(file=raw), [0]), str(file)),
            "dataset.datasets[1].file": (ConcatDataset([Holding(), Holding(file=raw)]), str(file)),
            "dataset.read.opened": (Holding(read=reader(raw)), str(file)),
        }
        for where, (dataset, path) in held.items():
            assert shared_files(dataset, "dataset") == [(where, path)], where
        bare.close()


def reader(opened: Any) -> Any:
    return lambda place: opened.seek(place)


def test_objects_without_an_offset_give_no_warning(file: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    endless: list[Any] = []
    endless.append(endless)
    with ours, theirs, (tmp_path / "log").open("w") as log, ours.makefile("rb") as stream:
        held = [sys.stdout, sys.stderr, sys.stdin, ours, stream, log, io.BytesIO(b"1"), io.StringIO("1")]
        assert shared_files(Holding(held=held, endless=endless, path=file), "dataset") == []


def test_the_search_costs_the_same_for_any_size_of_a_data_set() -> None:
    class Part:
        looks = 0

        def __getattribute__(self, name: str) -> Any:
            Part.looks += 1
            return super().__getattribute__(name)

    looks = []
    for size in (100, 1000):
        Part.looks = 0
        parts = [[Part() for _ in range(100)] for _ in range(size)]
        assert shared_files(Holding(parts=parts), "dataset") == []
        looks.append(Part.looks)
    assert looks[0] == looks[1] > 0


def test_an_open_file_in_a_function_of_map_gives_one_warning(file: Path) -> None:
    with file.open("rb") as opened:

        def read(sample: dict[str, Any]) -> dict[str, Any]:
            opened.tell()
            return sample

        loader = fl.arrays({"x": np.arange(8)}).map(read).batch(2).loader(workers=2)
        with pytest.warns(SharedFileWarning, match="read.opened is the open file") as caught:
            assert len(list(loader)) == 4
        assert len(caught) == 1
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
        loader.close()


_opened: Any = None


def _place(_: int) -> int:
    return 0 if _opened is None else int(_opened.tell())


def test_an_open_file_in_the_module_of_a_called_function_gives_one_warning(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with file.open("rb") as opened, fl.Executor(workers=2) as executor:
        monkeypatch.setattr(sys.modules[__name__], "_opened", opened)
        with pytest.warns(SharedFileWarning, match="_opened is the open file") as caught:
            assert list(executor.map(_place, range(4))) == [0] * 4
        assert len(caught) == 1
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert executor.submit(_place, 1).result() == 0


def test_an_open_file_among_the_arguments_of_an_initializer_gives_a_warning(file: Path) -> None:
    with file.open("rb") as opened:
        with pytest.warns(SharedFileWarning, match=r"initargs\[0\] is the open file"):
            executor = fl.Executor(workers=2, initializer=id, initargs=(opened,))
        with executor:
            assert executor.submit(abs, -1).result() == 1
