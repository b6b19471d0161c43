"""Sources of records: TFRecord, tar, JSON lines, CSV, and files of numbers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feedline import _native
from feedline._arguments import suggests
from feedline._code import warn_user
from feedline._described import described, one_line
from feedline._paths import Paths, listed, local_path, path_text, shown
from feedline.errors import EmptyShardWarning, InvalidArgumentError, InvalidSourceError
from feedline.pipeline import Pipeline

__all__ = ["csv", "example_schema", "jsonl", "tar", "tfrecord", "tokens"]

Index = Literal["auto", "beside"] | str | bytes | os.PathLike[str] | None

# Progress is shown if building indices takes longer than this many seconds.
_SILENT = 1.0


@suggests
def tfrecord(
    paths: Paths,
    *,
    check: bool = True,
    index: Index = "auto",
    manifest: str | bytes | os.PathLike[str] | None = None,
) -> Pipeline:
    """The records of TFRecord files.

    Without `parse()`, batches have "bytes".

    Args:
        paths: the shards: a path, a pattern such as "data/*.tfrecord", braces such as
            "shard-{000..009}.tfrecord", or a list of these. The files of a pattern are sorted.
        check: verify the checksum of each record's data. Checksums of lengths are always verified.
        index: where the index of each shard, the offsets of its records, is stored: "auto" for a cache folder
            (FEEDLINE_CACHE, or feedline in the user's cache folder), "beside" for a file beside each shard, a
            folder, or None for nowhere. An index is rebuilt when the size or time of its shard has changed.
        manifest: a JSON file with the number of records and bytes that each shard must have, as
            `feedline index --manifest` writes it; a shard that differs is a fault.
    """
    return _records("tfrecord", paths, check=check, index=index, manifest=manifest)


@suggests
def example_schema(path: str | bytes | os.PathLike[str], records: int = 100) -> str:
    """Reads the first records of a TFRecord file and returns the call of `parse()` for them.

    print(fl.example_schema("train-00000.tfrecord"))
    """
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        raise InvalidArgumentError(
            f"example_schema: records must be a whole number from 1, got {described(records)}"
        )
    schema = _native.example_schema(local_path(path, "example_schema"), records)
    # Names of fields come from the file, and may contain control characters.
    return "\n".join(map(one_line, schema.split("\n")))


@suggests
def tar(
    paths: Paths, *, index: Index = "auto", manifest: str | bytes | os.PathLike[str] | None = None
) -> Pipeline:
    """The samples of tar files in the WebDataset convention: members with the same key are one sample.

    Fields are named by their extensions. Without `parse()`, every sample must have the fields of the first:
    .cls, .id and .index as int64, .txt as text, .json as a JSON value, .npy as an array, others as bytes.
    Pickles are never read. See `tfrecord` for the arguments.
    """
    return _records("tar", paths, index=index, manifest=manifest)


@suggests
def jsonl(
    paths: Paths, *, index: Index = "auto", manifest: str | bytes | os.PathLike[str] | None = None
) -> Pipeline:
    """The lines of JSON lines files. Without `parse()`, every line must have the fields of the first. See
    `tfrecord` for the arguments."""
    return _records("jsonl", paths, index=index, manifest=manifest)


@suggests
def csv(
    paths: Paths,
    *,
    delimiter: str = ",",
    index: Index = "auto",
    manifest: str | bytes | os.PathLike[str] | None = None,
) -> Pipeline:
    """The rows of CSV files, whose first line names the columns. Without `parse()`, every column is text. See
    `tfrecord` for the other arguments."""
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii():
        raise InvalidArgumentError(f"csv: delimiter must be one ASCII character, got {described(delimiter)}")
    return _records("csv", paths, delimiter=delimiter, index=index, manifest=manifest)


@suggests
def tokens(
    paths: Paths, dtype: Any = None, length: int | None = None, *, stride: int | None = None
) -> Pipeline:
    """Windows of files that contain only numbers, or of .npy files with one axis.

    Batches have "tokens", of shape (batch, length). Windows are read directly into the batch.

    Args:
        paths: the files; a window never spans two files.
        dtype: the type of the numbers; an .npy file has it in its header.
        length: the number of numbers in a window.
        stride: the distance from the start of a window to that of the next; `length` by default.
    """
    if length is None and isinstance(dtype, int) and not isinstance(dtype, bool):
        number = described(dtype)
        raise InvalidArgumentError.explained(
            f"tokens: dtype must be the name of a type, got {number}",
            f'name both: tokens({shown(paths)}, "uint16", {number}), or length={number} for .npy files',
        )
    length = _count("length", length)
    stride = length if stride is None else _count("stride", stride)
    name = None if dtype is None else _dtype(dtype)
    files = []
    for path in listed("tokens", paths):
        start, count, known = _numbers_of(path)
        if known is not None and name is not None and known != name:
            raise InvalidSourceError.explained(
                f"tokens: {path!r} holds {known}, not {name}", "leave dtype out"
            )
        name = known or name
        if name is None:
            raise InvalidArgumentError(
                f'tokens: {path!r} does not say its type: give dtype, such as "uint16"'
            )
        files.append((path, start, count))
    if name is None or not files:
        raise InvalidSourceError("tokens: the list of files is empty")
    origin = f"tokens({shown(paths)}, {name!r}, {length})"
    return Pipeline(_native.Source.numbers(files, name, length, stride), origin)


def _count(name: str, count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**63:
        raise InvalidArgumentError(f"tokens: {name} must be a whole number from 1, got {described(count)}")
    return count


def _dtype(dtype: Any) -> str:
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"tokens: dtype must be the name of a type, got {described(dtype)}"
        ) from None
    if known.byteorder == ">":
        raise InvalidArgumentError.explained(
            f"tokens: only little-endian numbers are read, got {described(dtype)}",
            'write the file again: array.astype(array.dtype.newbyteorder("<")).tofile(path)',
        )
    return str(known.name)


def _numbers_of(path: str) -> tuple[int, int | None, str | None]:
    """The offset of the first number in a file; for an .npy file also the count and the type."""
    try:
        with Path(path).open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                return 0, None, None
            file.seek(0)
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version[0] == 1
                else np.lib.format.read_array_header_2_0
            )
            shape, _fortran, dtype = read(file)
            start = file.tell()
    except OSError as error:
        raise InvalidSourceError.explained(f"opening the file: {error}", "check the path") from None
    except Exception as error:
        # NumPy evaluates the header as code: a corrupt one raises whatever its parsers do.
        raise InvalidSourceError.explained(
            f"tokens: {path!r} is not a valid .npy file: {error}", "write it with numpy.save"
        ) from None
    if len(shape) != 1 or not 0 <= shape[0] < 2**63 or dtype.hasobject or not dtype.isnative:
        raise InvalidSourceError.explained(
            f"tokens: {path!r} holds {dtype} of shape {shape}", "save one axis of numbers, such as uint16"
        )
    return start, int(shape[0]), dtype.name


def _records(container: str, paths: Paths, **settings: Any) -> Pipeline:
    files = listed(container, paths)
    check, delimiter = settings.get("check", True), settings.get("delimiter", ",")
    if not isinstance(check, bool):
        raise InvalidArgumentError(f"{container}: check must be True or False, got {described(check)}")
    manifest = settings["manifest"]
    source = _native.Source.records(
        container,
        files,
        check=check,
        keep=_index_folder(container, settings["index"]),
        manifest=None if manifest is None else local_path(manifest, container),
        delimiter=delimiter,
        on_progress=_Progress(),
    )
    empty = [os.fspath(path) for path in source.empty_shards]
    if empty:
        count = "1 shard has" if len(empty) == 1 else f"{len(empty)} shards have"
        text = f"{container}: {count} no records, of {len(files)}: {', '.join(empty[:3])}"
        text += ", ..." if len(empty) > 3 else ""
        warn_user(text, EmptyShardWarning)
    return Pipeline(source, f"{container}({shown(paths)})")


def _index_folder(call: str, index: Index) -> str:
    if index is None:
        return ""
    if isinstance(index, str) and index == "auto":
        folder = os.environ.get("FEEDLINE_CACHE")
        if folder:
            return folder
        home = os.environ.get("XDG_CACHE_HOME")
        try:
            return os.fspath((Path(home) if home else Path.home() / ".cache") / "feedline")
        except RuntimeError:  # The user has no home folder.
            return ""
    if not isinstance(index, (str, bytes, os.PathLike)) or not os.fspath(index):
        raise InvalidArgumentError(
            f'{call}: index must be "auto", "beside", a folder or None, got {described(index)}'
        )
    return path_text(index, call)


class _Progress:
    """Shows on a terminal how many shards are indexed, if that takes long."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._has_reported = False

    def __call__(self, shards: int, of: int, size: int) -> None:
        if time.monotonic() - self._start < _SILENT or not sys.stderr.isatty():
            return
        self._has_reported = True
        rate = size / (time.monotonic() - self._start) / 2**20
        text = f"feedline: indexing shards {shards}/{of}, {size / 2**30:.1f} GiB, {rate:.0f} MiB/s"
        sys.stderr.write(f"\r{text:<78}")
        sys.stderr.flush()

    def __del__(self) -> None:
        if self._has_reported:
            sys.stderr.write("\n")
