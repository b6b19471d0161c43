"""Reads the samples that a quarantine file names, and checks that it belongs to the same data set."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from feedline import _native
from feedline._described import described
from feedline._torch.samples import Samples
from feedline.errors import InvalidArgumentError

__all__ = ["excluded"]


def excluded(file: str, samples: Samples) -> list[Any]:
    """The indices in a quarantine file, or in all files of a folder. Rejects a file of another data set: by
    index, by the path of a sample, or, if there is no path, by the name of the data set."""
    lines = _native.quarantined(file)
    for line in lines:
        index = line["index"]
        _check_range(file, index, samples)
        ours, theirs = samples.path(index), line.get("path")
        if ours is not None and theirs is not None:
            if PurePath(ours).name != PurePath(theirs).name:
                raise _mismatch(file, f"sample {described(index)} was {theirs!r}, and is {ours!r} here")
            continue
        was = line.get("dataset")
        if was is not None and samples.name is not None and _counted(was) != _counted(samples.name):
            raise _mismatch(file, f"it is of another data set: {was}, and this is {samples.name}")
    return [line["index"] for line in lines]


def _counted(name: str) -> tuple[str, ...]:
    """The parts of a name that must match: the number of samples, and the checksum of a subset's indices. Not
    the class: it may have been renamed or wrapped."""
    found = re.search(r" of (\d+) samples( \(\w+\))?", name)
    return () if found is None else found.groups(default="")


def _check_range(file: str, index: Any, samples: Samples) -> None:
    count = samples.count
    if count is None or not isinstance(index, int) or isinstance(index, bool):
        return
    if not -count <= index < count:
        raise _mismatch(file, f"there is no sample {index}: the data set has {count}")


def _mismatch(file: str, message: str) -> InvalidArgumentError:
    return InvalidArgumentError.explained(
        f"exclude={file!r}: {message}",
        "use the quarantine file of a run over the same data set",
        path=file,
    )
