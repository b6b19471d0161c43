"""Information about the samples of a map-style data set: the file of each, and a name for the data set.

Data sets are user code: nothing here may raise, or take longer for a larger data set.
"""

from __future__ import annotations

import bisect
import inspect
import operator
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, Subset

__all__ = ["Samples", "path_in"]

# Attributes with the file of each sample, as torchvision's and users' data sets name them.
_SURE = (
    "imgs",
    "files",
    "paths",
    "image_paths",
    "img_paths",
    "file_paths",
    "filepaths",
    "image_files",
    "filenames",
    "file_names",
    "file_list",
    "_image_files",
    "_image_paths",
    "_files",
    "_paths",
)
# These may contain other text, so their elements must look like file names.
_UNSURE = ("samples", "images", "_samples", "_images", "data")
_KEYS = ("path", "file", "filename", "file_name", "image_path", "img_path", "filepath")
_FILE_NAME = re.compile(r"[^\n]{0,1024}\.\w{1,8}")
# A longer path is shown by its end, which distinguishes files.
_LONGEST = 1024
# How deep data sets may be nested, and how many indices of a subset its checksum covers.
_DEPTH = 8
_COMPARED = 1000


class Samples:
    """Information about the samples of one data set, found when it is first needed."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        # The list of the files of a data set, by the id of the data set.
        self._lists: dict[int, tuple[Any, bool] | None] = {}
        self._name: str | None = None

    def path(self, index: Any) -> str | None:
        """The file of a sample, if the data set has it."""
        try:
            found = self._path(self._dataset, index, _DEPTH)
        except Exception:
            return None
        return None if found is None else _bounded(found)

    def _path(self, dataset: Any, index: Any, depth: int) -> str | None:
        hook = getattr(dataset, "path_of", None)
        if callable(hook):
            return _as_path(hook(index), is_sure=True)
        if depth == 0:
            return None
        if isinstance(dataset, Subset):
            return self._path(dataset.dataset, dataset.indices[operator.index(index)], depth - 1)
        if isinstance(dataset, ConcatDataset):
            place = operator.index(index) % len(dataset)
            part = bisect.bisect_right(dataset.cumulative_sizes, place)
            place -= dataset.cumulative_sizes[part - 1] if part else 0
            return self._path(dataset.datasets[part], place, depth - 1)
        if id(dataset) not in self._lists:
            self._lists[id(dataset)] = _list_of_files(dataset)
        found = self._lists[id(dataset)]
        if found is None:
            return None
        files, is_sure = found
        return path_in(files[operator.index(index)], is_sure=is_sure)

    @property
    def count(self) -> int | None:
        """The number of samples, if it is known."""
        try:
            return len(self._dataset)
        except Exception:
            return None

    @property
    def name(self) -> str | None:
        """A name for the data set, which differs if its samples differ."""
        if self._name is None:
            try:
                self._name = _name(self._dataset, _DEPTH)
            except Exception:
                self._name = ""
        return self._name or None


def _list_of_files(dataset: Any) -> tuple[Any, bool] | None:
    """The attribute with one file for each sample, and whether its elements are certainly files."""
    count = len(dataset)
    for name in (*_SURE, *_UNSURE):
        is_sure = name in _SURE
        files = inspect.getattr_static(dataset, name, None)
        # Not a property, which may read the whole data set.
        if not hasattr(files, "__getitem__") or isinstance(files, (str, bytes, Mapping)):
            continue
        try:
            if len(files) == count and count and path_in(files[0], is_sure=is_sure) is not None:
                return files, is_sure
        except Exception:
            continue
    return None


def path_in(entry: Any, *, is_sure: bool) -> str | None:
    """The path in an entry of such a list: the entry itself, the first element of a tuple, or a field."""
    if isinstance(entry, Mapping):
        found = next((entry[key] for key in _KEYS if key in entry), None)
        return _as_path(found, is_sure=True)
    if isinstance(entry, (tuple, list)) and entry:
        entry = entry[0]
    return _as_path(entry, is_sure=is_sure)


def _as_path(entry: Any, *, is_sure: bool) -> str | None:
    if not isinstance(entry, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(entry)
    is_path = is_sure or isinstance(entry, os.PathLike) or _FILE_NAME.fullmatch(path) is not None
    return path if path and is_path else None


def _bounded(path: str) -> str:
    path = " ".join(path.splitlines())
    return path if len(path) <= _LONGEST else "..." + path[3 - _LONGEST :]


def _name(dataset: Any, depth: int) -> str:
    text = f"{type(dataset).__qualname__} of {len(dataset)} samples"
    if depth == 0:
        return text
    if isinstance(dataset, Subset):
        indices = dataset.indices
        step = max(1, len(indices) // _COMPARED)
        some = [int(indices[place]) for place in range(0, len(indices), step)]
        checksum = zlib.crc32(repr(some).encode())
        return f"{text} ({checksum:08x}) of {_name(dataset.dataset, depth - 1)}"
    if isinstance(dataset, ConcatDataset):
        parts = [_name(part, depth - 1) for part in dataset.datasets[:_DEPTH]]
        return f"{text}: {', '.join(parts)}"
    return text
