"""The specs of the columns of a batch, which TensorFlow needs before the first batch is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from feedline import _native
from feedline._mapped.loader import MappedLoader
from feedline._numpy import array_on
from feedline.errors import InvalidArgumentError, ShapeMismatchError
from feedline.loader import Columns, Epoch, Loader, numpy_columns

__all__ = ["Table", "array_of"]

# The name of the only column if a batch is not a dict.
_ALL = ""
_HINT = "give the spec of a batch with element_spec=..., or the columns that you need with columns=[...]"


class Table:
    """The selected columns and their specs.

    If Python functions return the batches, the specs come from `element_spec`, or from one batch that is
    computed and inspected.
    """

    def __init__(self, loader: Loader, chosen: str | Sequence[str] | None, element_spec: Any) -> None:
        self._has_functions = isinstance(loader, MappedLoader)
        if isinstance(loader, MappedLoader):
            specs, ragged = _inspect(loader, chosen, element_spec)
            self._kinds = dict.fromkeys(specs, "tree")
        elif element_spec is not None:
            raise InvalidArgumentError.explained(
                "dataset: element_spec is already known",
                "leave it out: it is only for pipelines with Python functions",
            )
        else:
            described = {name: (kind, dtype, shape) for name, kind, dtype, shape in loader._native.columns}
            ragged = {name for name, (kind, _, _) in described.items() if kind in ("groups", "lists")}
            specs = {name: _spec(*description) for name, description in described.items()}
            self._kinds = {name: kind for name, (kind, _, _) in described.items()}
        counts = {_counts(name) for name in ragged}
        present = [name for name in specs if name not in counts]
        self._chosen = _ALL if present == [_ALL] and chosen is None else chosen
        names = present if self._chosen is None else _as_list(self._chosen)
        for name in names:
            if name not in present:
                shown = ", ".join(map(repr, present)) if present != [_ALL] else "no named columns"
                raise InvalidArgumentError.explained(
                    f"dataset: there is no column {name!r}; a batch has {shown}"
                )
        self._names = names
        self._ragged = ragged & set(names)
        self.flat = {
            part: specs[part]
            for name in names
            for part in [name, *([_counts(name)] if name in ragged else [])]
        }

    @property
    def is_reshaped(self) -> bool:
        """Whether elements differ from the flat columns."""
        return self._chosen is not None or bool(self._ragged)

    def epoch(self, loader: Loader) -> Epoch[dict[str, Any]]:
        """The next epoch, as `from_generator` takes it."""
        if not self._has_functions:
            return loader._epoch(self._arrays)
        epoch: Epoch[dict[str, Any]] = loader._epoch(numpy_columns)
        return _Converted(epoch, self._trees)

    def shaped(self, flat: dict[str, Any]) -> Any:
        """The element of the data set, from the flat columns of `from_generator`."""
        tensors = {name: flat[name] for name in self._names}
        for name in self._ragged:
            counts = flat[_counts(name)]
            tensors[name] = tf.RaggedTensor.from_row_lengths(flat[name], counts, validate=False)
        if self._chosen is None:
            return tensors
        if isinstance(self._chosen, str):
            return tensors[self._chosen]
        return tuple(tensors[name] for name in self._chosen)

    def _arrays(self, columns: Columns) -> dict[str, Any]:
        found = dict(columns)
        return {name: array_of(found[name], self._kinds[name]) for name in self.flat}

    def _trees(self, batch: Any) -> dict[str, Any]:
        found = batch if isinstance(batch, dict) else {_ALL: batch}
        columns = {}
        for name, spec in self.flat.items():
            if name not in found:
                raise InvalidArgumentError.explained(
                    f"a batch has no column {name!r}; it has {list(found)}", _HINT
                )
            columns[name] = _tree(found[name], name, spec)
        return columns


class _Converted(Epoch[dict[str, Any]]):
    """An epoch whose batches are converted."""

    def __init__(self, epoch: Epoch[Any], convert: Callable[[Any], dict[str, Any]]) -> None:
        self._epoch = epoch
        self._convert = convert

    def _produce(self) -> dict[str, Any]:
        batch = self._epoch._produce()
        self._confirm = self._epoch._confirm
        return self._convert(batch)

    def close(self) -> None:
        self._epoch.close()


# ---- native columns ----


def array_of(value: Any, kind: str) -> Any:
    """A column as an array; numbers are not copied."""
    if kind in ("array", "groups"):
        return array_on(value)
    if kind == "json":
        value = [json.dumps(element) for element in value]
    return _strings(value)


def _strings(value: Any) -> Any:
    # Not np.array(value): NumPy would strip trailing zeros from bytes.
    listed = np.empty(len(value), object)
    listed[:] = value
    return listed


def _spec(kind: str, dtype: str | None, shape: list[int | None] | None) -> Any:
    return tf.TensorSpec(shape, tf.as_dtype(dtype) if kind in ("array", "groups") else tf.string)


def _counts(name: str) -> str:
    return f"{name}_lengths"


def _as_list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


# ---- results of functions ----


def _inspect(
    loader: MappedLoader, chosen: str | Sequence[str] | None, element_spec: Any
) -> tuple[dict[str, Any], set[str]]:
    """The specs of `element_spec`, or those of the first batch; and the columns of variable length."""
    plan = loader._plan
    joined = {name for name, kind in plan.kinds.items() if kind in ("variable", "lists")}
    if element_spec is not None:
        return (element_spec if isinstance(element_spec, dict) else {_ALL: element_spec}), set()
    state = loader.state_dict()
    epoch = loader._epoch(numpy_columns)
    try:
        batch = next(epoch, None)
    finally:
        epoch.close()
    # The first epoch must deliver this batch again.
    loader.load_state_dict(state)
    if batch is None:
        raise InvalidArgumentError.explained("dataset: an epoch has no batch to inspect", _HINT)
    found = batch if isinstance(batch, dict) else {_ALL: batch}
    wanted = set(found) if chosen is None or not isinstance(batch, dict) else set(_as_list(chosen))
    ragged = set()
    if not plan.layout.pad and not plan.of_batches:
        ragged = {name for name in joined if name in found and _counts(name) in found}
    wanted |= {_counts(name) for name in ragged & wanted}

    def spec(name: str, leaf: Any) -> Any:
        array = _leaf(leaf, name)
        inner = list(array.shape[1:])
        if plan.layout.pad and plan.kinds.get(name) != "fixed":
            inner = [None] * len(inner)
        shape = [None, *inner] if array.ndim else []
        return tf.TensorSpec(shape, tf.string if array.dtype.hasobject else tf.as_dtype(array.dtype))

    def each(name: str, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: each(f"{name}.{key}", part) for key, part in tree.items()}
        if isinstance(tree, tuple):
            return tuple(each(f"{name}[{number}]", part) for number, part in enumerate(tree))
        return spec(name, tree)

    return {name: each(name, tree) for name, tree in found.items() if name in wanted}, ragged


def _tree(tree: Any, name: str, spec: Any) -> Any:
    """The arrays of a part of a batch, which must match their spec."""
    if isinstance(spec, dict) and isinstance(tree, dict):
        return {key: _tree(tree.get(key), f"{name}.{key}", part) for key, part in spec.items()}
    if isinstance(spec, tuple) and isinstance(tree, tuple) and len(tree) == len(spec):
        pairs = enumerate(zip(tree, spec, strict=True))
        return tuple(_tree(part, f"{name}[{number}]", part_spec) for number, (part, part_spec) in pairs)
    if isinstance(spec, (dict, tuple)):
        raise ShapeMismatchError.explained(
            f"a batch has {type(tree).__name__} as {name!r}, not {spec}", _HINT
        )
    array = _leaf(tree, name)
    dtype = tf.string if array.dtype.hasobject else tf.as_dtype(array.dtype)
    if dtype != spec.dtype or not spec.shape.is_compatible_with(array.shape):
        raise ShapeMismatchError.explained(
            f"a batch has {dtype.name} of {array.shape} as {name!r}, not {spec.dtype.name} of {spec.shape}",
            "allow what differs with element_spec=..., such as tf.TensorSpec([None, None], tf.float32)",
        )
    return array


def _leaf(value: Any, name: str) -> Any:
    """Numbers as an array, bytes and text as an array of objects."""
    if isinstance(value, _native.BytesList):
        return _strings(value.tolist())
    if isinstance(value, list):
        if not all(isinstance(element, (bytes, str)) for element in value):
            kinds = sorted({type(element).__name__ for element in value})
            raise InvalidArgumentError.explained(
                f"dataset: {name!r} is a list of {', '.join(kinds)}, which cannot be a tensor", _HINT
            )
        return _strings(value)
    array = np.asarray(value)
    if array.dtype.kind in "SUO":
        return array.astype(object)
    if array.dtype.kind not in "biufc":
        raise InvalidArgumentError.explained(
            f"dataset: {name!r} is an array of {array.dtype}, which cannot be a tensor", _HINT
        )
    return array
