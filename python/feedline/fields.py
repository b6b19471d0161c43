"""The fields of a record, for `parse()`.

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

__all__ = ["Field", "bytes_", "float32", "int64", "json_", "npy", "parse_config", "sequence", "text"]

Shape = Sequence[int | None]


@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """The type and shape of one field of a record; created by `bytes_`, `int64` and so on."""

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
        text = f"fl.{self.call}({', '.join(arguments)})"
        return f"fl.sequence({text})" if self.is_sequence else text

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
    """Unchanged bytes: a list with one value for each sample; with a shape several values, and their counts.

    Args:
        shape: of the values of a sample: [] is one value, [3] three values, [None] any number of them.
        default: the value for records without this field, which are faults otherwise. [] for no values.
        key: the name of the field in the record, if it differs from the name in the batch.
    """
    return _field("bytes_", "bytes", shape, default, key)


@suggests
def text(shape: Shape = (), default: str | Sequence[str] | None = None, key: str | None = None) -> Field:
    """Bytes that must be UTF-8. See `bytes_` for the arguments."""
    return _field("text", "text", shape, default, key)


@suggests
def json_(default: Any = None, key: str | None = None) -> Field:
    """Any JSON value, from a tar file or a line. See `bytes_` for the arguments."""
    return _field("json_", "json", (), default, key)


@suggests
def int64(shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """Whole numbers, as one array for the batch.

    Args:
        shape: of one sample: [] is one number, [2, 3] six numbers, [None, 4] any number of groups of four.
        default: the numbers for records without this field: one number for all values, or an array of the
            shape. [] for no groups.
        key: the name of the field in the record, if it differs from the name in the batch.
    """
    return _field("int64", "int64", shape, default, key)


@suggests
def float32(shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """Floating point numbers, as one array for the batch. See `int64` for the arguments."""
    return _field("float32", "float32", shape, default, key)


@suggests
def npy(dtype: Any, shape: Shape = (), default: Any = None, key: str | None = None) -> Field:
    """An array of this type in NumPy's .npy format, from a tar file. See `int64` for the arguments."""
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"npy: dtype must be the name of a type, got {described(dtype)}") from None
    if np.dtype(dtype).kind not in "biuf" or np.dtype(dtype).itemsize > 8:
        raise InvalidArgumentError(f"npy: dtype must be a type of plain numbers, got {described(dtype)}")
    return _field("npy", "npy", shape, default, key, name)


@suggests
def sequence(field: Field) -> Field:
    """A feature list of a tf.train.SequenceExample, each step of which is such a field."""
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
    result = replace(field, is_sequence=True)
    if result.default is not None:
        _as_json(result)
    return result


def parse_config(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of `parse()` as plain data, which the core checks."""
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


def _field(
    call: str, of: str, shape: Shape, default: Any, key: str | None, dtype: str | None = None
) -> Field:
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
    # [] is a valid default for a sequence, though not for a single value: sequence() and parse() check it.
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
            return _as_numbers(array.reshape(-1, *(axis for axis in inner if axis is not None)))
        if array.ndim == 0:
            return _as_numbers(array)
        return _as_numbers(np.broadcast_to(array, [axis for axis in inner if axis is not None]))
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


def _as_numbers(array: np.ndarray[Any, Any]) -> Any:
    """A number, or a flat list of numbers; NaN and infinities, which JSON does not have, as text."""

    def as_json(number: Any) -> Any:
        if isinstance(number, float) and not math.isfinite(number):
            return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
        return number

    if array.ndim == 0:
        return as_json(array.item())
    return [as_json(number) for number in array.reshape(-1).tolist()]


def _plain_json(field: Field) -> Any:
    try:
        return json.loads(json.dumps(field.default, allow_nan=False))
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{field.call}: default must be a JSON value, got {described(field.default)}"
        ) from None
