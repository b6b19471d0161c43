"""TensorFlow: the batches of a loader as a `tf.data.Dataset`, also for the replicas of a strategy.

Imported only by those who have TensorFlow.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from feedline.errors import BadSetting, FeedlineError
from feedline.loader import Columns, Epoch, Loader
from feedline.pipeline import Pipeline

__all__ = ["dataset", "distributed", "unwrapped"]

# The last errors that were raised into TensorFlow, which keeps only their text.
_raised: deque[FeedlineError] = deque(maxlen=16)


def dataset(
    source: Loader | Pipeline,
    columns: str | Sequence[str] | None = None,
    *,
    input_context: Any = None,
    by: Literal["auto", "shard", "record"] = "auto",
    **settings: Any,
) -> Any:
    """The batches as a `tf.data.Dataset`; each iteration over it is the next epoch.

    An element is a dict of tensors. Arrays are the memory that the batch was made in; lists of bytes or text
    are `tf.string`, and what differs in length from sample to sample is a `tf.RaggedTensor`, unless
    `batch(pad=True)` has made it equal.

    Args:
        source: a loader, or a pipeline of which one is made.
        columns: some names, for tuples of these columns as `model.fit` takes them, or one name, for its
            tensors alone.
        input_context: for `strategy.distribute_datasets_from_function`. Each replica gets a shard of its
            own, and the batch size of the pipeline is that of all replicas together. Needs a pipeline.
        by: what is dealt out to replicas, as in `Pipeline.shard`. "auto" is whole shards where there are
            enough of them and the order has no take, skip, concat or mix, which count samples of all shards.
        settings: of `Pipeline.loader`, where a pipeline is given; for all replicas of this process together.
    """
    if isinstance(source, Pipeline):
        loaders = _loaders(source, input_context, by, settings)
    elif not isinstance(source, Loader):
        raise BadSetting(f"dataset: give a loader or a pipeline, got {type(source).__name__}")
    elif input_context is not None or settings:
        given = ", ".join([*(["input_context"] if input_context is not None else []), *settings])
        raise BadSetting.explained(
            f"dataset: {given} cannot change a loader that is made already",
            "give the pipeline, without loader() at its end",
        )
    else:
        loaders = [source]
    table = _Table(loaders[0], columns)
    turns = _Turns(loaders, table)
    made = tf.data.Dataset.from_generator(turns, output_signature=table.flat)
    if turns.length is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(turns.length))
    made = made.map(table.shaped) if table.is_reshaped else made
    if any(loader._native.is_shard for loader in loaders):
        # TensorFlow would take a part of this part.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        made = made.with_options(options)
    return made


def distributed(
    strategy: Any,
    pipeline: Pipeline,
    columns: str | Sequence[str] | None = None,
    *,
    by: Literal["auto", "shard", "record"] = "auto",
    **settings: Any,
) -> Any:
    """A pipeline over the replicas of a `tf.distribute.Strategy`: each gets a shard of its own.

    The batch size of the pipeline is that of all replicas together. Every sample comes once; a replica that
    has no more, while others have, gets empty batches. See `dataset` for the arguments.
    """

    def of_worker(context: Any) -> Any:
        return dataset(pipeline, columns, input_context=context, by=by, **settings)

    return strategy.distribute_datasets_from_function(of_worker)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raises errors of Feedline as what they are, with `index`, `path` and `hint`, where TensorFlow has made
    its own of them: `with feedline.tensorflow.unwrapped(): model.fit(...)`."""
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error)
        for original in reversed(_raised):
            if str(original) in text:
                raise original from error
        raise


def _loaders(pipeline: Pipeline, context: Any, by: str, settings: dict[str, Any]) -> list[Loader]:
    """One, or one for each replica that this process feeds."""
    if context is None:
        return [pipeline.loader(**settings)]
    world, here = context.num_replicas_in_sync, context.num_replicas_in_sync // context.num_input_pipelines
    if here * context.num_input_pipelines != world:
        raise BadSetting(
            f"dataset: {world} replicas cannot be divided among {context.num_input_pipelines} input pipelines"
        )
    first = context.input_pipeline_id * here
    parts = [pipeline._replica(rank, world, by) for rank in range(first, first + here)]
    if here == 1:
        return [parts[0].loader(**settings)]
    with pipeline.loader(**settings) as whole:
        shares = {name: max(1, number // here) for name, number in whole.decided.items()}
    return [part.loader(**{**settings, **shares}) for part in parts]


class _Table:
    """The columns that were asked for, as TensorFlow must know them before the first batch."""

    def __init__(self, loader: Loader, chosen: str | Sequence[str] | None) -> None:
        described = {name: (kind, dtype, shape) for name, kind, dtype, shape in loader._native.columns}
        self._ragged = {name for name, (kind, _, _) in described.items() if kind in ("groups", "lists")}
        self._chosen = chosen
        counts = {_counts(name) for name in self._ragged}
        names = [name for name in described if name not in counts]
        if chosen is not None:
            names = [chosen] if isinstance(chosen, str) else list(chosen)
        for name in names:
            if name not in described or name in counts:
                there = ", ".join(repr(name) for name in described if name not in counts)
                raise BadSetting(f"dataset: there is no column {name!r}; a batch has {there}")
        flat = [part for name in names for part in (name, _counts(name))[: 1 + (name in self._ragged)]]
        self._names = names
        self._kinds = {name: described[name][0] for name in flat}
        self.flat = {name: _spec(*described[name]) for name in flat}

    @property
    def is_reshaped(self) -> bool:
        """Whether elements are something else than the columns as they come."""
        return self._chosen is not None or bool(self._ragged & set(self._names))

    def arrays(self, columns: Columns) -> dict[str, Any]:
        """The columns of a batch, as `from_generator` takes them."""
        found = dict(columns)
        return {name: _array(found[name], kind) for name, kind in self._kinds.items()}

    def shaped(self, flat: dict[str, Any]) -> Any:
        """The element, from what `from_generator` gave."""
        tensors = {name: flat[name] for name in self._names}
        for name in self._ragged & tensors.keys():
            counts = flat[_counts(name)]
            tensors[name] = tf.RaggedTensor.from_row_lengths(flat[name], counts, validate=False)
        if self._chosen is None:
            return tensors
        if isinstance(self._chosen, str):
            return tensors[self._chosen]
        return tuple(tensors[name] for name in self._chosen)


class _Turns:
    """Starts the next epoch of some loaders at each call, and takes their batches in turns: TensorFlow gives
    one element after another to its replicas."""

    def __init__(self, loaders: list[Loader], table: _Table) -> None:
        self._loaders = loaders
        self._table = table
        # Batches of one size cannot be empty: then there are as many as the shortest loader has.
        self._may_be_empty = all(loader._native.rows is None for loader in loaders)
        end = max if self._may_be_empty else min
        is_exact = all(loader._native.has_exact_len for loader in loaders)
        self.length = end(map(len, loaders)) * len(loaders) if is_exact else None

    def __call__(self) -> Iterator[dict[str, Any]]:
        epochs = [loader._epoch(self._table.arrays) for loader in self._loaders]
        count = 0
        try:
            for batch in epochs[0] if len(epochs) == 1 else self._in_turns(epochs):
                yield batch
                count += 1
        except FeedlineError as error:
            _raised.append(error)
            raise
        finally:
            for epoch in epochs:
                epoch.close()
        if self.length is not None and count < self.length:
            short = BadSetting.explained(
                f"the epoch ended after {count} of {self.length} batches: it has gone on after a checkpoint",
                "call loader.resume() before feedline.tensorflow.dataset(loader)",
            )
            _raised.append(short)
            raise short

    def _in_turns(self, epochs: list[Epoch[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        while True:
            batches = [next(epoch, None) for epoch in epochs]
            present = [batch for batch in batches if batch is not None]
            if not present or (len(present) < len(batches) and not self._may_be_empty):
                return
            nothing = {name: column[:0] for name, column in present[0].items()}
            for batch in batches:
                yield nothing if batch is None else batch


def _spec(kind: str, dtype: str | None, shape: list[int | None] | None) -> Any:
    if kind in ("array", "groups"):
        return tf.TensorSpec(shape, tf.as_dtype(dtype))
    return tf.TensorSpec(shape, tf.string)


def _array(value: Any, kind: str) -> Any:
    if kind in ("array", "groups"):
        return np.from_dlpack(value)
    if kind == "json":
        value = [json.dumps(one) for one in value]
    # Filled afterwards: NumPy would cut zeros off the ends of bytes that it takes for text.
    listed = np.empty(len(value), object)
    listed[:] = value
    return listed


def _counts(name: str) -> str:
    return f"{name}_lengths"
