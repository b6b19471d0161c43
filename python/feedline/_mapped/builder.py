"""What a pipeline offers for functions of Python."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from feedline._arguments import suggests_all
from feedline._described import described
from feedline._mapped.functions import Named, named
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
    the same sample of the same epoch in whichever worker, and one named `context`, with `epoch`, `index` and
    `position`.
    """

    __slots__ = ()

    def map(self, function: Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Has a function of Python make each sample: it gets a dict of arrays, and returns one.

        It runs in worker processes, after all native steps and before `batch`, which stacks what it returns.
        Anything that can be pickled may be returned: arrays, numbers and tensors are stacked, also in dicts
        and tuples, everything else comes as a list. The arrays that it gets may be changed in place.

        Args:
            function: of one sample; see `Functions` for what else it may ask for.
            threads: run it in threads of this process instead: for functions that release the GIL.
        """
        return self._with_function("map", function, threads)

    def filter(self, keep: Predicate | Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Keeps the samples that are so: `filter((fl.col("label") < 5) & (fl.length("tokens") >= 16))`.

        The others move up, so that batches stay full. What is filtered out is no fault, and is counted as
        `filtered` in the report. `len(loader)` is then an upper bound, and ranks may have different numbers
        of samples. Calls for the order come before.

        Args:
            keep: a predicate of fields of the batch ("label", those of `parse`, and "index" for the index of
                a sample), for which nothing is decoded; or a function of one sample, as for `map`, that
                returns what is true for those to be kept.
            threads: as for `map`.
        """
        if isinstance(keep, Predicate):
            made: Pipeline = self._with("filter", predicate=keep._config, threads=threads or None)  # type: ignore[attr-defined]
            return made
        return self._with_function("filter", keep, threads)

    def map_batch(self, function: Callable[..., Any], *, threads: bool = False) -> Pipeline:
        """Has a function of Python make each batch: it gets a dict of arrays whose first axis counts the
        samples, and returns whatever is to be delivered.

        Args:
            function: of one batch; of its `context`, `index` has the indices of all samples.
            threads: as for `map`.
        """
        return self._with_function("map_batch", function, threads)

    def _with_function(self, call: str, function: Any, threads: Any) -> Pipeline:
        if not isinstance(threads, bool):
            raise InvalidArgumentError.explained(
                f"{call}: threads must be True or False, got {described(threads)}"
            )
        made: Pipeline = self._with(call, function=named(call, function), threads=threads or None)  # type: ignore[attr-defined]
        return made


def has_functions(calls: tuple[dict[str, Any], ...]) -> bool:
    """Whether anything is to be done by functions."""
    return any(isinstance(call.get("function"), Named) for call in calls)


def start_method(mp_context: Any, call: str = "loader") -> str:
    """How worker processes come to be, by name."""
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
