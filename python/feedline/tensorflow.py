"""TensorFlow: the batches of a loader as a `tf.data.Dataset`, also for the replicas of a strategy.

Importing it requires TensorFlow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, Literal

import tensorflow as tf

from feedline._mapped.loader import MappedLoader
from feedline._tensorflow.table import Table
from feedline.errors import InvalidArgumentError
from feedline.loader import Epoch, Loader
from feedline.pipeline import Pipeline

__all__ = ["dataset", "distributed", "unwrapped"]

# The last errors that were raised into TensorFlow, which keeps only their text. Copies without a traceback,
# because its frames would keep loaders alive.
_raised: deque[Exception] = deque(maxlen=16)


def dataset(
    source: Loader | Pipeline,
    columns: str | Sequence[str] | None = None,
    *,
    element_spec: Any = None,
    input_context: Any = None,
    by: Literal["auto", "shard", "record"] = "auto",
    **settings: Any,
) -> Any:
    """The batches as a `tf.data.Dataset`; each iteration over it is the next epoch.

    An element is a dict of tensors. Arrays are not copied; lists of bytes or text become `tf.string`, and
    fields of variable length become a `tf.RaggedTensor`, unless `batch(pad=True)` pads them.

    Args:
        source: a loader, or a pipeline, for which a loader is created.
        columns: several names, for tuples of these columns as `model.fit` takes them, or one name, for single
            tensors.
        element_spec: the spec of batches that a Python function returns: `tf.TensorSpec`s in a dict or a
            tuple, with the structure of a batch. By default one batch is computed and inspected, and computed
            again in its epoch.
        input_context: for `strategy.distribute_datasets_from_function`. Each replica gets a shard of its
            own, and the batch size of the pipeline is that of all replicas together. Requires a pipeline.
        by: what is distributed to replicas, as in `Pipeline.shard`. "auto" is whole shards if there are
            enough of them and the order has no take, skip, concat or mix, which count samples of all shards.
        settings: the arguments of `Pipeline.loader`, if a pipeline is given; for all replicas of this process
            together.
    """
    if isinstance(source, Pipeline):
        loaders = _loaders(source, input_context, by, settings)
    elif not isinstance(source, Loader):
        raise InvalidArgumentError(f"dataset: give a loader or a pipeline, got {type(source).__name__}")
    elif input_context is not None or settings:
        given = ", ".join([*(["input_context"] if input_context is not None else []), *settings])
        raise InvalidArgumentError.explained(
            f"dataset: {given} cannot change a loader that already exists",
            "give the pipeline, without loader() at its end",
        )
    else:
        loaders = [source]
    table = Table(loaders[0], columns, element_spec)
    turns = _Turns(loaders, table)
    result = tf.data.Dataset.from_generator(turns, output_signature=table.flat)
    if turns.length is not None:
        result = result.apply(tf.data.experimental.assert_cardinality(turns.length))
    result = result.map(table.shaped) if table.is_reshaped else result
    if any(loader._native.is_shard for loader in loaders):
        # TensorFlow would shard this shard again.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        result = result.with_options(options)
    return result


def distributed(
    strategy: Any,
    pipeline: Pipeline,
    columns: str | Sequence[str] | None = None,
    *,
    element_spec: Any = None,
    by: Literal["auto", "shard", "record"] = "auto",
    **settings: Any,
) -> Any:
    """Distributes a pipeline to the replicas of a `tf.distribute.Strategy`: each gets a shard of its own.

    The batch size of the pipeline is that of all replicas together. Every sample is delivered once; a replica
    that has no more samples while others do gets empty batches. See `dataset` for the arguments.
    """

    def of_worker(context: Any) -> Any:
        return dataset(pipeline, columns, element_spec=element_spec, input_context=context, by=by, **settings)

    return strategy.distribute_datasets_from_function(of_worker)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raises the original error of a loader, with `index`, `path` and `hint`, in place of the TensorFlow
    error that wraps it: `with feedline.tensorflow.unwrapped(): model.fit(...)`."""
    try:
        yield
    except tf.errors.OpError as error:
        text = str(error)
        for original in reversed(_raised):
            if f"{type(original).__name__}: {original}" in text:
                raise original from error
        raise


def _loaders(pipeline: Pipeline, context: Any, by: str, settings: dict[str, Any]) -> list[Loader]:
    """One loader, or one for each replica that this process feeds."""
    if context is None:
        return [pipeline.loader(**settings)]
    world, here = context.num_replicas_in_sync, context.num_replicas_in_sync // context.num_input_pipelines
    if here * context.num_input_pipelines != world:
        raise InvalidArgumentError(
            f"dataset: {world} replicas cannot be divided among {context.num_input_pipelines} input pipelines"
        )
    first = context.input_pipeline_id * here
    parts = [pipeline._replica(rank, world, by) for rank in range(first, first + here)]
    if here == 1:
        return [parts[0].loader(**settings)]
    with pipeline.loader(**settings) as whole:
        shares = {name: max(1, number // here) for name, number in whole.decided.items()}
        if isinstance(whole, MappedLoader):
            shares["workers"] = max(1, whole.count // here)
    return [part.loader(**{**settings, **shares}) for part in parts]


class _Turns:
    """Starts the next epoch of several loaders at each call, and takes their batches in turns: TensorFlow
    gives one element after another to its replicas."""

    def __init__(self, loaders: list[Loader], table: Table) -> None:
        self._loaders = loaders
        self._table = table
        # Batches of a fixed size cannot be empty, so the epoch ends with the shortest loader.
        self._may_be_empty = all(loader._native.rows is None for loader in loaders)
        end = max if self._may_be_empty else min
        is_exact = all(loader._native.has_exact_len and not _filters(loader) for loader in loaders)
        self.length = end(map(len, loaders)) * len(loaders) if is_exact else None

    def __call__(self) -> Iterator[dict[str, Any]]:
        epochs = [self._table.epoch(loader) for loader in self._loaders]
        count = 0
        try:
            for batch in epochs[0] if len(epochs) == 1 else self._in_turns(epochs):
                yield batch
                count += 1
        except Exception as error:
            _note(error)
            raise
        finally:
            for epoch in epochs:
                epoch.close()
        if self.length is not None and count < self.length:
            short = InvalidArgumentError.explained(
                f"the epoch ended after {count} of {self.length} batches: it was resumed from a state",
                "call loader.load_state_dict() before feedline.tensorflow.dataset(loader)",
            )
            _note(short)
            raise short

    def _in_turns(self, epochs: list[Epoch[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        while True:
            batches = [next(epoch, None) for epoch in epochs]
            present = [batch for batch in batches if batch is not None]
            if not present or (len(present) < len(batches) and not self._may_be_empty):
                return
            empty = tf.nest.map_structure(lambda column: column[:0], present[0])
            for batch in batches:
                yield empty if batch is None else batch


def _filters(loader: Loader) -> bool:
    return isinstance(loader, MappedLoader) and loader._plan.filters


def _note(error: Exception) -> None:
    # A user's exception may refuse to be copied; TensorFlow shows its text anyway.
    with suppress(Exception):
        _raised.append(copy(error))
