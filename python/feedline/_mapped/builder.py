"""The methods of a pipeline that take Python functions."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedline._arguments import suggests_all
from feedline._described import described
from feedline._mapped.functions import NamedFunction, named
from feedline.errors import InvalidArgumentError
from feedline.predicates import Predicate

if TYPE_CHECKING:
    from feedline.pipeline import Pipeline

__all__ = ["Functions", "has_functions", "start_method"]

Sample = Mapping[str, Any]


@suggests_all()
class Functions:
    """The methods of a pipeline that take functions.

    A function may have an argument named `random`, a `numpy.random.Generator` that gives the same numbers for
    the same sample of the same epoch in every worker, and one named `context`, with `epoch`, `index` and
    `position`.
    """

    __slots__ = ()

    def map(self, function: Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Applies a Python function to each sample: it takes a dict of arrays and returns the new sample.

        It runs in worker processes, after all native steps and before `batch`, which stacks the results.
        It may return anything that can be pickled: arrays, numbers and tensors are stacked, also in dicts
        and tuples, everything else becomes a list. It may change the arrays in place.

        Args:
            function: takes one sample; see `Functions` for its optional arguments.
            threads: run it in threads of this process instead: for functions that release the GIL.
        """
        return self._with_function("map", function, threads)

    def filter(self, keep: Predicate | Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Keeps the samples that match: `filter((fl.col("label") < 5) & (fl.length("tokens") >= 16))`.

        Later samples move up, so that batches stay full. Samples that are filtered out are not faults; the
        report counts them as `filtered`. `len(loader)` is then an upper bound, and ranks may have different
        numbers of samples. Calls that decide the order come before this one.

        Args:
            keep: a predicate on fields of the batch ("label", those of `parse`, and "index" for the index of
                a sample), which is evaluated before decoding; or a function of one sample, as for `map`, that
                returns true for the samples to keep.
            threads: as for `map`.
        """
        if isinstance(keep, Predicate):
            pipeline: Pipeline = self._with("filter", predicate=keep._config, threads=threads or None)  # type: ignore[attr-defined]
            return pipeline
        return self._with_function("filter", keep, threads)

    def map_batch(self, function: Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Applies a Python function to each batch: it takes a dict of arrays whose first axis counts the
        samples, and returns the batch to deliver.

        Args:
            function: takes one batch; `context.index` has the indices of all samples.
            threads: as for `map`.
        """
        return self._with_function("map_batch", function, threads)

    def _with_function(self, call: str, function: Any, threads: Any) -> Pipeline:
        if not isinstance(threads, bool):
            raise InvalidArgumentError.explained(
                f"{call}: threads must be True or False, got {described(threads)}"
            )
        pipeline: Pipeline = self._with(call, function=named(call, function), threads=threads or None)  # type: ignore[attr-defined]
        return pipeline


def has_functions(calls: Sequence[dict[str, Any]]) -> bool:
    """Whether a pipeline has Python functions."""
    return any(isinstance(call.get("function"), NamedFunction) for call in calls)


def start_method(mp_context: Any, call: str = "loader") -> str:
    """The name of the method that starts worker processes."""
    try:
        if mp_context is None or isinstance(mp_context, str):
            mp_context = multiprocessing.get_context(mp_context)
        method: str = mp_context.get_start_method()
    except (AttributeError, ValueError):
        message = (
            f"{call}: mp_context must be a multiprocessing context or its name, got {described(mp_context)}"
        )
        raise InvalidArgumentError.explained(message, 'use "fork", "spawn" or "forkserver"') from None
    return method
