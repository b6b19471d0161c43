"""Copies the large tensors of samples into their batch as soon as each sample is made. Otherwise a worker
would hold a batch twice: as samples, and as the batch that torch's default collation makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import _utils

from feedline._torch.tensors import tensor_in_arena

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from feedline import _native

__all__ = ["BatchRows"]

# Smaller tensors are copied when the batch is collated: for them, a copy of its own costs more than it saves.
_LARGE_BYTES = 64 << 10
# How many bytes of a column wait until they are copied together.
_PENDING_BYTES = 4 << 20


class BatchRows:
    """The columns of the batch that a worker makes at present."""

    def __init__(self, connection: _native.WorkerConnection, collate_fn: Callable[[Any], Any]) -> None:
        self._connection = connection
        self._columns: list[_Column] = []
        # Whether the samples of the last batch had large parts. If not, the next batch is made without this
        # class: it costs too much for small samples.
        self.is_useful = True
        # What torch's collation does with tensors and arrays is known, but not if the user has changed it.
        table = _utils.collate.default_collate_fn_map
        is_default = collate_fn is _utils.collate.default_collate
        self._takes_tensors = is_default and table.get(torch.Tensor) is _utils.collate.collate_tensor_fn
        self._takes_arrays = (
            self._takes_tensors and table.get(np.ndarray) is _utils.collate.collate_numpy_array_fn
        )

    def look(self, samples: list[Any]) -> None:
        """Looks at a batch that was made without rows: the next one may need them."""
        self.is_useful = self._takes_tensors and any(_kind(part) for _, part in _parts(samples[0]))

    def collect(self, samples: list[Any], get: Callable[[Any], Any], walk: Iterable[Any], count: int) -> None:
        """Appends the sample of each index of `walk`, `count` in all. If one raises, `samples` has those
        before it, as they were made."""
        self._columns = []
        indices = iter(walk)
        for index in indices:
            samples.append(get(index))
            break
        self.is_useful = bool(samples) and self._begin(samples, count)
        try:
            for index in indices:
                sample = get(index)
                placed = self._place(sample) if self._columns else None
                if placed is None:
                    self._give_up(samples)
                samples.append(sample if placed is None else placed)
            for column in self._columns:
                column.flush()
        except BaseException:
            self._give_up(samples)
            raise

    def batch_of(self, tensors: Any) -> torch.Tensor | None:
        """The batch of these tensors, if they are the rows of a column, each in its place."""
        for column in self._columns:
            if len(tensors) == len(column.out) and all(map(_is, tensors, column.rows)):
                return column.out
        return None

    def release(self) -> None:
        """Forgets the batch. Its memory can be lent to the trainer only if nothing here refers to it."""
        self._columns = []

    def _begin(self, samples: list[Any], count: int) -> bool:
        """Makes columns for the large parts of the first sample, and places it. False if there are none."""
        if not self._takes_tensors or count < 2:
            return False
        first = samples[0]
        for key, value in _parts(first):
            kind = _kind(value)
            if kind is None or (kind is np.ndarray and not self._takes_arrays):
                continue
            column = _Column.like(self._connection, key, value, count)
            if column is not None:
                self._columns.append(column)
        if self._columns:
            samples[0] = self._place(first)
        return bool(self._columns)

    def _place(self, sample: Any) -> Any:
        """The sample with its large parts in the batch; None if it is not like the first one. The containers
        of the data set are never changed: it may keep them."""
        parts = dict(_parts(sample))
        if not all(column.takes(parts.get(column.key)) for column in self._columns):
            return None
        placed = [(column.key, column.add(parts[column.key])) for column in self._columns]
        if placed[0][0] is _WHOLE:
            return placed[0][1]
        copied = dict(sample) if type(sample) is dict else list(sample)
        for key, row in placed:
            copied[key] = row
        return tuple(copied) if type(sample) is tuple else copied

    def _give_up(self, samples: list[Any]) -> None:
        """Turns rows into what the data set returned: tensors and arrays of their own."""
        columns, self._columns = self._columns, []
        if not columns:
            return
        for column in columns:
            column.flush()
        for number, sample in enumerate(samples):
            for column in columns:
                if column.key is _WHOLE:
                    samples[number] = sample = column.original(number)
                    continue
                copied = list(sample) if type(sample) is tuple else sample
                copied[column.key] = column.original(number)
                samples[number] = sample = tuple(copied) if type(sample) is tuple else copied


# The key of a sample that is itself a tensor.
_WHOLE: Any = object()


def _parts(sample: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a sample that may have a column."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return enumerate(sample)
    if kind is dict:
        return sample.items()  # type: ignore[no-any-return]
    return [(_WHOLE, sample)]


def _is(one: Any, other: Any) -> bool:
    return one is other


def _kind(value: Any) -> type | None:
    """Its type, if it is a large array whose memory can be copied as it is."""
    kind = type(value)
    if kind is torch.Tensor:
        is_plain = (
            value.layout is torch.strided
            and value.device.type == "cpu"
            and not (value.is_nested or value.is_quantized or value.requires_grad)
            and not (value.is_conj() or value.is_neg())
        )
        is_large = is_plain and value.numel() * value.element_size() >= _LARGE_BYTES
        return torch.Tensor if is_large else None
    if kind is np.ndarray and value.nbytes >= _LARGE_BYTES and value.dtype.isnative:
        return np.ndarray
    return None


class _Column:
    """A tensor of a batch, and the rows that are filled."""

    def __init__(self, key: Any, kind: type, dtype: Any, out: torch.Tensor) -> None:
        self.key = key
        self.out = out
        self.rows: list[torch.Tensor] = []
        self._kind = kind
        self._dtype = dtype
        self._shape = tuple(out.shape[1:])
        self._arrays = out.numpy() if kind is np.ndarray else None
        # All views at once: each takes microseconds if it is made alone.
        self._views = out.unbind(0)
        # The number of rows that are copied, and the values of the others: so many are copied together.
        self._copied = 0
        self._pending: list[torch.Tensor] = []
        self._most_pending = max(1, _PENDING_BYTES * len(out) // max(1, out.nbytes))

    @staticmethod
    def like(
        connection: _native.WorkerConnection, key: Any, value: torch.Tensor | np.ndarray, count: int
    ) -> _Column | None:
        """A column for values like this one; None if the arena has no memory for it."""
        if isinstance(value, np.ndarray):
            try:
                dtype = torch.from_numpy(np.empty(0, value.dtype)).dtype
            except TypeError:
                # Collating raises it, too.
                return None
        else:
            dtype = value.dtype
        out = tensor_in_arena(connection, count, dtype, value.shape)
        return None if out is None else _Column(key, type(value), value.dtype, out)

    def takes(self, value: Any) -> bool:
        # `_kind` refuses subclasses.
        return (
            _kind(value) is self._kind
            and bool(value.dtype == self._dtype)
            and tuple(value.shape) == self._shape
            and len(self.rows) < len(self.out)
        )

    def add(self, value: Any) -> torch.Tensor:
        """Copies a value into the next row."""
        number = len(self.rows)
        row = self._views[number]
        self.rows.append(row)
        if self._arrays is not None:
            self._arrays[number] = value
        elif value.is_contiguous():
            self._pending.append(value)
            if len(self._pending) >= self._most_pending:
                self.flush()
        else:
            self.flush()
            row.copy_(value)
            self._copied += 1
        return row

    def flush(self) -> None:
        """Copies what is not copied yet, as torch collates: one call for several values costs less, and
        `copy_` takes twice as long for large ones."""
        if self._pending:
            stop = self._copied + len(self._pending)
            torch.stack(self._pending, 0, out=self.out[self._copied : stop])
            self._copied, self._pending = stop, []

    def original(self, number: int) -> torch.Tensor | np.ndarray:
        """The value of a row, in memory of its own."""
        return self.rows[number].clone() if self._arrays is None else self._arrays[number].copy()
