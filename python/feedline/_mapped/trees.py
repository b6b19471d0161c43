"""Stacks the results of functions into runs of samples of one shape, and joins runs to batches.

A *tree* is a dict or tuple of trees, or a leaf. In a *run* of samples a leaf is an array whose first axis
counts the samples, a list, or `Ragged` for arrays of different shapes.

A field that the native pipeline delivers as a list of values (bytes, text, JSON) stays a list, even if a
function changes some of the values: see `Values`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidArgumentError

__all__ = ["Layout", "Lists", "Ragged", "Run", "Value", "Values", "joined", "runs_of", "spec_of", "to_arrays"]

# Allocates an array of a shape and type, which may be in shared memory.
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
_NUMBERS = (bool, int, float, complex, np.generic)


@dataclass(frozen=True)
class Layout:
    """How fields become columns. `kinds` has the fields of the native pipeline."""

    pad: bool = False
    kinds: dict[str, str] = field(default_factory=dict)
    # The number to pad with: for all fields, or by name.
    padding: float | dict[str, float] = 0

    def of(self, name: str, value: Any) -> str:
        """How a field is combined: "stacked", "ragged" or "lists"."""
        kind = self.kinds.get(name)
        if kind == "lists" and isinstance(value, list):
            return "lists"
        if not isinstance(value, np.ndarray) or value.ndim == 0 or kind == "fixed":
            return "stacked"
        if kind == "variable" or self.pad:
            return "ragged"
        return "stacked"

    def finish(self, name: str, ragged: Ragged) -> list[tuple[str, Any]]:
        """The columns of a field whose arrays have different shapes."""
        is_variable = self.kinds.get(name) == "variable"
        column = ragged.padded(name, self._padding(name)) if self.pad else ragged.joined()
        if is_variable:
            return [(name, column), (f"{name}_lengths", ragged.shapes[:, 0].copy())]
        return [(name, column), (f"{name}_shape", ragged.shapes)]

    def _padding(self, name: str) -> float:
        return self.padding.get(name, 0) if isinstance(self.padding, dict) else self.padding


@dataclass
class Ragged:
    """Concatenated arrays, and the shape of each."""

    flat: NDArray[Any]
    shapes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shapes)

    def ends(self) -> NDArray[np.int64]:
        """The end of each array in `flat`."""
        ends: NDArray[np.int64] = np.cumsum(np.prod(self.shapes, axis=1))
        return ends

    def rows(self, start: int, stop: int) -> Ragged:
        ends = self.ends()
        first = 0 if start == 0 else int(ends[start - 1])
        return Ragged(self.flat[first : int(ends[stop - 1])], self.shapes[start:stop])

    def padded(self, name: str, number: float) -> NDArray[Any]:
        largest = tuple(int(length) for length in self.shapes.max(axis=0))
        dtype = self.flat.dtype
        if not _fits(number, dtype):
            raise InvalidArgumentError.explained(
                f"batch: pad={number} does not fit {name!r}, which is {dtype}",
                'give each field its own number: pad={"tokens": -100}',
            )
        padded = np.full((len(self), *largest), number, dtype)
        start = 0
        for row, shape in zip(padded, self.shapes.tolist(), strict=True):
            count = int(np.prod(shape))
            row[tuple(slice(length) for length in shape)] = self.flat[start : start + count].reshape(shape)
            start += count
        return padded

    def joined(self) -> NDArray[Any]:
        return self.flat.reshape((-1, *self.shapes[0, 1:].tolist()))


def _fits(number: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return abs(number) <= float(np.finfo(dtype).max)
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return number == int(number) and int(limits.min) <= number <= int(limits.max)


@dataclass
class Run:
    """The tree of several samples with the same spec."""

    tree: Any
    count: int

    def rows(self, start: int, stop: int) -> Run:
        if (start, stop) == (0, self.count):
            return self
        return Run(_each(self.tree, lambda leaf: _rows(leaf, start, stop)), stop - start)


def _rows(leaf: Any, start: int, stop: int) -> Any:
    if isinstance(leaf, Ragged):
        return leaf.rows(start, stop)
    # A slice of a `Lists` or `Values` must have the same type.
    return type(leaf)(leaf[start:stop]) if isinstance(leaf, list) else leaf[start:stop]


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function to all leaves."""
    if isinstance(tree, dict):
        return {name: _each(part, change) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return _tuple(tree, [_each(part, change) for part in tree])
    return change(tree)


def _tuple(like: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


# ---- the structure of a sample ----


class Lists(list[Any]):
    """One list for each sample; the batch has one list of all their elements."""


class Values(list[Any]):
    """One value for each sample; the batch has a list of them. Numbers that a function returns in place of
    values are arrays without axes: if all values are numbers, they are stacked."""

    def column(self) -> Any:
        if all(isinstance(value, np.ndarray) for value in self):
            if len({_kind_of_number(value) for value in self}) == 1:
                return np.stack(self)
            return [value.item() for value in self]
        return [value.item() if isinstance(value, np.ndarray) else value for value in self]


@dataclass(slots=True)
class Value:
    """One element of `Values`."""

    value: Any


def _kind_of_number(array: NDArray[Any]) -> Any:
    """The same for Python's int and float, which may be mixed: JSON writes 1.0 as 1."""
    return "number" if _is_number(array.dtype, array.shape) else array.dtype


def _is_number(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    return shape == () and dtype in (np.dtype(np.int64), np.dtype(np.float64))


def to_arrays(sample: Any, given: dict[str, Any] | None = None) -> Any:
    """The result of a function with all numbers as arrays. `given` has the original values of the fields that
    the native pipeline delivers as lists."""
    if given and isinstance(sample, dict):
        return {
            name: _field_value(part, given[name]) if name in given else to_arrays(part)
            for name, part in sample.items()
        }
    if isinstance(sample, np.ndarray):
        return sample
    if isinstance(sample, dict):
        return {name: to_arrays(part) for name, part in sample.items()}
    if isinstance(sample, tuple):
        return _tuple(sample, [to_arrays(part) for part in sample])
    if isinstance(sample, _NUMBERS):
        array = np.asarray(sample)
        return sample if array.dtype.hasobject else array
    if _is_tensor(sample):
        return sample.detach().cpu().numpy()
    return sample


def _field_value(value: Any, given: Any) -> Any:
    """The value of a field that is a list: the original value, another one, or arrays."""
    if value is given:
        return Value(value)
    if _has_arrays(value):
        return to_arrays(value)
    return Value(to_arrays(value) if isinstance(value, _NUMBERS) else value)


def _has_arrays(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_arrays(part) for part in value.values())
    return isinstance(value, (np.ndarray, np.generic, tuple)) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _spec(sample: Any, layout: Layout) -> Any:
    """The structure, types and shapes of a sample; samples of one batch must have the same."""
    if isinstance(sample, dict):
        return {name: _spec_of_field(layout.of(name, part), part, layout) for name, part in sample.items()}
    if isinstance(sample, tuple):
        return tuple(_spec(part, _PLAIN) for part in sample)
    if isinstance(sample, np.ndarray):
        return _spec_of_array(sample.dtype, sample.shape)
    return ("values",) if isinstance(sample, Value) else ("thing",)


def _spec_of_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    return ("number",) if _is_number(dtype, shape) else ("array", dtype.str, shape)


def _spec_of_field(how: str, part: Any, layout: Layout) -> Any:
    if how == "lists":
        return ("lists",)
    if how != "ragged":
        return _spec(part, _PLAIN)
    return ("ragged", part.dtype.str, part.ndim, _inner(part.shape, layout))


def _inner(shape: Sequence[int], layout: Layout) -> tuple[int, ...] | None:
    """The axes that must be equal: without padding, arrays may differ only in their first axis."""
    return None if layout.pad else tuple(shape[1:])


_PLAIN = Layout()


def spec_of(run: Run, layout: Layout) -> Any:
    """The spec of the samples of a run."""
    if isinstance(run.tree, dict):
        return {name: _spec_of_leaf(part, layout) for name, part in run.tree.items()}
    return _spec_of_leaf(run.tree, layout)


def _spec_of_leaf(tree: Any, layout: Layout) -> Any:
    if isinstance(tree, dict):
        return {name: _spec_of_leaf(part, _PLAIN) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_spec_of_leaf(part, _PLAIN) for part in tree)
    if isinstance(tree, np.ndarray):
        return _spec_of_array(tree.dtype, tree.shape[1:])
    if isinstance(tree, Ragged):
        shape = [int(length) for length in tree.shapes[0]]
        return ("ragged", tree.flat.dtype.str, len(shape), _inner(shape, layout))
    if isinstance(tree, Values):
        return ("values",)
    return ("lists",) if isinstance(tree, Lists) else ("thing",)


# ---- runs and batches ----


def runs_of(samples: Sequence[Any], layout: Layout, allocate: Allocate = np.empty) -> list[Run]:
    """Stacks samples, in order, into as few runs as their specs allow."""
    runs: list[Run] = []
    start = 0
    specs = [_spec(sample, layout) for sample in samples]
    for stop in range(1, len(samples) + 1):
        if stop == len(samples) or specs[stop] != specs[start]:
            runs.append(Run(_stacked(samples[start:stop], layout, allocate), stop - start))
            start = stop
    return runs


def _stacked(samples: Sequence[Any], layout: Layout, allocate: Allocate) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {
            name: _column(layout.of(name, first[name]), [sample[name] for sample in samples], allocate)
            for name in first
        }
    return _column("stacked", samples, allocate)


def _column(how: str, values: Sequence[Any], allocate: Allocate) -> Any:
    first = values[0]
    if how == "lists":
        return Lists(values)
    if how == "ragged":
        shapes = np.array([value.shape for value in values], dtype=np.int64)
        flat = allocate((int(np.prod(shapes, axis=1).sum()),), first.dtype)
        np.concatenate([value.ravel() for value in values], out=flat)
        return Ragged(flat, shapes)
    if isinstance(first, dict):
        return {name: _column("stacked", [value[name] for value in values], allocate) for name in first}
    if isinstance(first, tuple):
        return _tuple(first, [_column("stacked", part, allocate) for part in zip(*values, strict=True)])
    if isinstance(first, Value):
        return Values(value.value for value in values)
    if not isinstance(first, np.ndarray):
        return list(values)
    if first.dtype.hasobject:
        return np.stack(values)
    # All have the same type, except that int and float may be mixed.
    dtype = np.result_type(*{value.dtype for value in values}) if first.ndim == 0 else first.dtype
    return np.stack(values, out=allocate((len(values), *first.shape), dtype))


def joined(runs: Sequence[Run], layout: Layout) -> Any:
    """Joins runs with the same spec to a batch. A single run is not copied."""
    tree = runs[0].tree if len(runs) == 1 else _join([run.tree for run in runs])
    if isinstance(tree, dict):
        return _finished(tree, layout)
    return tree


def _join(trees: Sequence[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {name: _join([tree[name] for tree in trees]) for name in first}
    if isinstance(first, tuple):
        return _tuple(first, [_join(part) for part in zip(*trees, strict=True)])
    if isinstance(first, np.ndarray):
        return np.concatenate(trees)
    if isinstance(first, Ragged):
        flat = np.concatenate([tree.flat for tree in trees])
        return Ragged(flat, np.concatenate([tree.shapes for tree in trees]))
    return type(first)(part for tree in trees for part in tree)


def _finished(tree: dict[Any, Any], layout: Layout) -> dict[Any, Any]:
    columns: dict[Any, Any] = {}
    named = layout.padding if isinstance(layout.padding, dict) else {}
    for name in named:
        if not isinstance(tree.get(name), Ragged):
            padded = ", ".join(str(key) for key, leaf in tree.items() if isinstance(leaf, Ragged))
            raise InvalidArgumentError.explained(
                f"batch: pad names {name!r}, and no field of that name is padded", f"padded are: {padded}"
            )
    for name, leaf in tree.items():
        parts = [(name, leaf.column() if isinstance(leaf, Values) else leaf)]
        if isinstance(leaf, Ragged):
            parts = layout.finish(name, leaf)
        elif isinstance(leaf, Lists):
            lengths = np.array([len(values) for values in leaf], dtype=np.int64)
            parts = [(name, [value for values in leaf for value in values]), (f"{name}_lengths", lengths)]
        for key, column in parts:
            if key in columns or (key != name and key in tree):
                raise InvalidArgumentError.explained(
                    f"a batch would have two fields named {key!r}", "return that field under another name"
                )
            columns[key] = column
    return columns
