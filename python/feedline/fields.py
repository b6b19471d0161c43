"""What can be asked of a record: the fields of `parse()`.

fl.tfrecord("train-*.tfrecord").parse({
    "image_raw": fl.bytes_(),
    "label": fl.int64(),
    "box": fl.float32(shape=[None, 4]),
    "weight": fl.float32(default=1.0),
})
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline._arguments import suggests
from feedline._config import plain
from feedline._described import described
from feedline.errors import InvalidArgumentError

__all__ = ["Field", "bytes_", "float32", "int64", "json_", "npy", "parse_words", "sequence", "text"]

Shape = Sequence[int | None]


@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """What stands under a name of a record; made by `bytes_`, `int64` and the like."""

    call: str
    of: str
    shape: tuple[int | None, ...] = ()
    default: Any = None
    key: str | None = None
    dtype: str | None = None
    is_sequence: bool = False

    def __repr__(self) -> str:
        arguments = [] if self.dtype is None else [repr(self.dtype)]
        if self.shape:
            arguments.append(f"shape={list(self.shape)!r}")
        if self.default is not None:
            arguments.append(f"default={self.default!r}")
        if self.key is not None:
            arguments.append(f"key={self.key!r}")
        made = f"fl.{self.call}({', '.join(arguments)})"
        return f"fl.sequence({made})" if self.is_sequence else made

    def _config(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = {"name": name, "of": self.of}
        if self.shape:
            config["shape"] = list(self.shape)
        if self.default is not None:
            config["default"] = _as_json(self)
        if self.key is not None:
            config["key"] = self.key
        if self.dtype is not None:
            config["dtype"] = self.dtype
        if self.is_sequence:
            config["sequence"] = True
        return config


@suggests
def bytes_(
    shape: Shape = (), default: bytes | Sequence[bytes] | None = None, key: str | None = None
) -> Field:
    """Bytes as they are: a list with one for each sample; with a shape some for each, and their counts.

    Args:
        shape: of the values of a sample: [] is one, [3] is three, [None] any number.
        default: what stands there where a record has none; without it that is a fault. [] for no values.
        key: the name in the record, where that is another than in the batch.
    """
    return _made("bytes_", "bytes", shape, default, key)


@suggests
def text(shape: Shape = (), default: str | Sequence[str] | None = None, key: str | None = None) -> Field:
    """Bytes that must be UTF-8. See `bytes_` for the arguments."""
    return _made("text", "text", shape, default, key)


@suggests
def json_(default: Any = None, key: str | None = None) -> Field:
    """What JSON says, of a tar or of a line: any value. See `bytes_` for the arguments."""
    return _made("json_", "json", (), default, key)


@suggests
def int64(shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """Whole numbers, as an array of the batch.

    Args:
        shape: of one sample: [] is one number, [2, 3] six of them, [None, 4] any number of groups of four.
        default: what stands there where a record has none: a number for all values, or all of them. [] for no
            groups.
        key: the name in the record, where that is another than in the batch.
    """
    return _made("int64", "int64", shape, default, key)


@suggests
def float32(shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """Real numbers, as an array of the batch. See `int64` for the arguments."""
    return _made("float32", "float32", shape, default, key)


@suggests
def npy(dtype: Any, shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """An array in NumPy's own format, of a tar, whose numbers must be of this type. See `int64`."""
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"npy: dtype must be the name of a type, got {described(dtype)}") from None
    if np.dtype(dtype).kind not in "biuf" or np.dtype(dtype).itemsize > 8:
        raise InvalidArgumentError(f"npy: dtype must be a type of plain numbers, got {described(dtype)}")
    return _made("npy", "npy", shape, default, key, name)


@suggests
def sequence(field: Field) -> Field:
    """The list of features of that name in a tf.train.SequenceExample, of which each step is such a field."""
    if not isinstance(field, Field):
        raise InvalidArgumentError(f"sequence: give a field such as fl.int64(), got {described(field)}")
    if field.is_sequence:
        raise InvalidArgumentError(f"sequence: {field!r} is a sequence already")
    if field.shape[:1] == (None,):
        raise InvalidArgumentError(
            f"sequence: each step must have a shape without None, got {described(field)}"
        )
    if field.of in ("json", "npy"):
        raise InvalidArgumentError(
            f"sequence: a step must be bytes_, text, int64 or float32, got {described(field)}"
        )
    made = replace(field, is_sequence=True)
    if made.default is not None:
        _as_json(made)
    return made


def parse_words(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of `parse()`, as the words that the core checks."""
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError(
            f'parse: give fields by name, such as {{"label": fl.int64()}}, got {described(fields)}'
        )
    config = []
    for name, field in fields.items():
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"parse: a field must have a name, got {described(name)}")
        if not isinstance(field, Field):
            raise InvalidArgumentError(
                f"parse: {name!r} must be a field such as fl.int64(), got {described(field)}"
            )
        config.append(field._config(name))
    return config


def _made(call: str, of: str, shape: Shape, default: Any, key: str | None, dtype: str | None = None) -> Field:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, (Sequence, np.ndarray)):
        raise InvalidArgumentError(
            f"{call}: shape must be a list such as [], [3] or [None, 4], got {described(shape)}"
        )
    axes = tuple(plain(axis) for axis in shape)
    for number, axis in enumerate(axes):
        if axis is None and number == 0:
            continue
        if not isinstance(axis, int) or isinstance(axis, bool) or axis < 1:
            wanted = "whole numbers from 1, of which the first may be None"
            raise InvalidArgumentError(f"{call}: shape must be {wanted}, got {described(list(axes))}")
    if key is not None and not isinstance(key, str):
        raise InvalidArgumentError(f"{call}: key must be the name in the record, got {described(key)}")
    field = Field(call, of, axes, plain(default), key, dtype)
    if default is not None and not _may_become_a_sequence(field):
        _as_json(field)
    return field


def _may_become_a_sequence(field: Field) -> bool:
    # A sequence may have no steps where one value must be there: sequence() looks again, and so does parse().
    return field.default == [] and field.of not in ("json", "npy")


def _as_json(field: Field) -> Any:
    default = field.default
    inner = field.shape[1:] if field.shape[:1] == (None,) else field.shape
    is_fixed = inner == field.shape and not field.is_sequence
    if field.of == "json":
        return _plain_json(field)
    if field.of in ("bytes", "text"):
        kind = bytes if field.of == "bytes" else str
        if is_fixed and isinstance(default, kind):
            return default.decode("latin-1") if isinstance(default, bytes) else default
        if not is_fixed and default == []:
            return []
        wanted = kind.__name__ if is_fixed else "[]"
        raise InvalidArgumentError(f"{field.call}: default must be {wanted}, got {described(default)}")
    array = _numbers(field)
    try:
        if not is_fixed:
            if array.ndim == 0:
                raise ValueError
            return _listed(array.reshape(-1, *(axis for axis in inner if axis is not None)))
        if array.ndim == 0:
            return _listed(array)
        return _listed(np.broadcast_to(array, [axis for axis in inner if axis is not None]))
    except ValueError:
        shape = list(inner) if is_fixed else [None, *inner]
        wanted = f"numbers of shape {shape}" + (", or one for all" if is_fixed else ", such as []")
        raise InvalidArgumentError(
            f"{field.call}: default must be {wanted}, got {described(default)}"
        ) from None


def _numbers(field: Field) -> np.ndarray[Any, Any]:
    name = field.dtype or field.of
    dtype = np.dtype(name)
    try:
        given = np.asarray(field.default)
    except ValueError:
        given = np.asarray(None)
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    fits = given.size == 0 or given.dtype.kind in kinds
    if fits and dtype.kind in "iu" and given.size:
        limits = np.iinfo(dtype)
        fits = int(given.min()) >= limits.min and int(given.max()) <= limits.max
    if not fits:
        raise InvalidArgumentError(f"{field.call}: default must be of {name}, got {described(field.default)}")
    return given


def _listed(array: np.ndarray[Any, Any]) -> Any:
    """A number, or numbers one behind another; those that JSON does not have as words."""

    def word(number: Any) -> Any:
        if isinstance(number, float) and not math.isfinite(number):
            return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
        return number

    if array.ndim == 0:
        return word(array.item())
    return [word(number) for number in array.reshape(-1).tolist()]


def _plain_json(field: Field) -> Any:
    try:
        return json.loads(json.dumps(field.default, allow_nan=False))
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{field.call}: default must be what JSON can say, got {described(field.default)}"
        ) from None
