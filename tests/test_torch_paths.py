"""Faults name the file of a sample if the data set knows it; other data sets' quarantines are refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from feedline import FaultPolicy
from feedline._torch.samples import Samples
from feedline.errors import InvalidArgumentError, TooManyFaultsError, WorkerDiedWarning
from feedline.torch import DataLoader
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset


class Folder(Dataset[Any]):
    """Like torchvision's ImageFolder: `samples` holds (path, class)."""

    def __init__(self, count: int = 8, bad: int | None = 5, name: str = "data") -> None:
        self.samples = [(f"{name}/{index}.jpg", 0) for index in range(count)]
        self.bad = bad
        self.kills = False

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("bad label")
        return index


class Plain(Dataset[Any]):
    """Knows no files."""

    def __init__(self, count: int = 8, bad: int | None = 5, **held: Any) -> None:
        self.count, self.bad = count, bad
        self.__dict__.update(held)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError("bad label")
        return index


class Hooked(Plain):
    def path_of(self, index: int) -> str:
        return f"hook/{index}"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_file(workers: int) -> None:
    dataset: Any = ConcatDataset([Folder(4, bad=None), Subset(Folder(8), [1, 5, 2])])
    with pytest.raises(ValueError, match="bad label") as raised:
        list(DataLoader(dataset, batch_size=2, num_workers=workers))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "at sample 5 (data/5.jpg), offset 1 of batch 2" in text
    if workers:
        assert getattr(raised.value, "path", None) == "data/5.jpg"


@pytest.mark.parametrize("workers", [0, 1])
def test_faults_reports_and_quarantine_lines_name_the_file(workers: int, tmp_path: Path) -> None:
    quarantine = tmp_path / "bad.jsonl"
    policy = FaultPolicy("skip", quarantine=quarantine)
    loader = DataLoader(Folder(), batch_size=2, num_workers=workers, faults=policy)
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3, 4, 7, 6]
    (line,) = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert (line["index"], line["path"]) == (5, "data/5.jpg")
    assert line["dataset"] == "Folder of 8 samples"
    assert "data/5.jpg" in str(loader.report())
    with pytest.raises(TooManyFaultsError) as raised:
        list(DataLoader(Folder(), num_workers=workers, faults=FaultPolicy("skip", limit=0)))
    assert raised.value.path == "data/5.jpg"


def test_a_death_names_the_file() -> None:
    dataset = Folder()
    dataset.kills = True
    loader = DataLoader(dataset, batch_size=2, num_workers=1, faults=FaultPolicy("skip"))
    with pytest.warns(WorkerDiedWarning, match=r"at sample 5 \(data/5.jpg\)"):
        list(loader)
    assert loader.deaths[0].path == "data/5.jpg"
    assert loader.deaths[0].to_dict()["path"] == "data/5.jpg"


class Refuses:
    def __len__(self) -> int:
        raise OSError("no")

    def __getitem__(self, index: int) -> str:
        raise OSError("no")


class Properties(Plain):
    @property
    def samples(self) -> list[str]:
        raise AssertionError("it may read the whole data set")


def test_files_are_found_where_data_sets_keep_them() -> None:
    paths = [f"x/{index}.png" for index in range(8)]
    found = {
        "a list of names": (Plain(paths=paths), "x/5.png"),
        "paths": (Plain(files=[Path(path) for path in paths]), "x/5.png"),
        "bytes": (Plain(image_paths=[os.fsencode(path) for path in paths]), "x/5.png"),
        "dicts": (Plain(samples=[{"path": path, "label": 1} for path in paths]), "x/5.png"),
        "a hook": (Hooked(paths=paths), "hook/5"),
        "of another length": (Plain(paths=paths[:7]), None),
        "texts": (Plain(samples=[("great movie.", 1)] * 8), None),
        "numbers": (Plain(samples=list(range(8))), None),
        "text": (Plain(paths="12345678"), None),
        "refuses": (Plain(paths=Refuses()), None),
        "properties": (Properties(), None),
        "tensors": (TensorDataset(torch.arange(8)), None),
        "a long name": (Plain(paths=["y" * 5000 + ".png"] * 8), "..." + "y" * 1017 + ".png"),
    }
    for name, (dataset, path) in found.items():
        assert Samples(dataset).path(5) == path, name
    for index in (99, -99, "five", None, 1.5):
        assert Samples(Plain(paths=paths)).path(index) is None


def test_a_quarantine_file_of_another_data_set_is_refused(tmp_path: Path) -> None:
    def written_for(dataset: Any) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        list(DataLoader(dataset, faults=FaultPolicy("skip", quarantine=path)))
        return path

    folder, plain, half = (
        written_for(Folder()),
        written_for(Plain()),
        written_for(Subset(Plain(), [1, 5, 7])),
    )
    refused = [
        (folder, Folder(name="other"), None),
        (folder, Folder(5), "there is no sample 5: the data set has 5"),
        (folder, Subset(Folder(), [0, 1, 2, 3, 4, 6]), "sample 5 was 'data/5.jpg', and is 'data/6.jpg' here"),
        (plain, Plain(9), "Plain of 8 samples, and this is Plain of 9 samples"),
        (plain, TensorDataset(torch.arange(9)), "Plain of 8 samples, and this is TensorDataset of 9 samples"),
        (half, Subset(Plain(), [2, 5, 7]), "another data set"),
        (half, Plain(3, bad=None), "Subset of 3 samples"),
    ]
    for file, dataset, said in refused:
        if said is None:
            # The same files in another folder are the same data set.
            assert len(list(DataLoader(dataset, exclude=file))) == 7
            continue
        with pytest.raises(InvalidArgumentError) as raised:
            DataLoader(dataset, exclude=file)
        assert said in str(raised.value)
        assert str(file) in str(raised.value)
    taken: list[tuple[Path, Any]] = [
        (folder, Folder()),
        (plain, Plain()),
        (half, Subset(Plain(), [1, 5, 7])),
        # A class that was renamed, or wraps the other.
        (plain, Hooked()),
    ]
    for file, dataset in taken:
        assert len(list(DataLoader(dataset, exclude=file))) == len(dataset) - 1
    # Lines of another program without details of the data set are accepted.
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"index": 5, "kind": "CorruptImageError"}\n')
    assert len(list(DataLoader(Plain(), exclude=bare))) == 7
