"""A loader delivers batches epoch by epoch, as dicts of NumPy arrays, without copying them."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from feedline import _native
from feedline._described import described
from feedline._event_log import EventLog
from feedline._native import BytesList, NoBatch
from feedline._numpy import array_on
from feedline._replay import Recipe, checked, one_of
from feedline._workers.death import Death
from feedline._workers.worker_pool import Handle
from feedline.errors import StateMismatchError
from feedline.events import Event
from feedline.report import Report

if TYPE_CHECKING:
    from feedline.torch import Batches

__all__ = ["BytesList", "Epoch", "Loader", "numpy_columns"]

Sequence.register(BytesList)

Batch = TypeVar("Batch")
Columns = list[tuple[str, "_native.Tensor | BytesList | list[str]"]]


def numpy_columns(columns: Columns) -> dict[str, Any]:
    """The columns of a batch as NumPy arrays on the same memory."""
    return {name: array_on(value) if isinstance(value, _native.Tensor) else value for name, value in columns}


class Loader:
    """Iterating over a loader starts its next epoch. Created by `Pipeline.loader()`.

    A loader runs one epoch at a time: starting another ends the one before. `close()`, the end of a `with`
    block or garbage collection ends its threads; arrays that are still in use stay valid.
    """

    def __init__(
        self,
        native: _native.Loader,
        config: str,
        classes: list[str],
        on_event: Callable[[Event], object] | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        """`recipe` is what `replay` needs."""
        self._native = native
        self._recipe = recipe
        self._config = config
        self._events = EventLog(native.ledger, on_event)
        self.classes = classes

    def __iter__(self) -> Epoch[dict[str, Any]]:
        return self._epoch(numpy_columns)

    def _epoch(self, make: Callable[[Columns], Batch]) -> Epoch[Batch]:
        native = self._native.epoch()
        self._events.notify()
        return Epoch(self, native, make)

    def __len__(self) -> int:
        """The number of batches in an epoch without faults."""
        return len(self._native)

    def torch(self) -> Batches:
        """The same batches as torch tensors, on the same memory."""
        from feedline.torch import Batches

        return Batches(self)

    def report(self) -> Report:
        """The counts so far (delivered, skipped, retried), the time waited, the slowest samples, and the
        busiest stage."""
        return Report._parse(self._native.report_json(), self._native.report_text())

    def state_dict(self) -> dict[str, Any]:
        """The state of this run after the last batch that you got: a small dict of numbers, strings and
        lists, which can be saved as JSON or with a model."""
        state: dict[str, Any] = json.loads(self._native.state())
        return state

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Continues from a state: the next epoch delivers exactly the batches that were left.

        Args:
            state: what `state_dict` returned, on this number of ranks or another; or a list of the states of
                all ranks, which is needed if samples may be skipped or filtered and the number of ranks
                changes in the middle of an epoch.
            strict: whether a state of other data or settings is refused.
        """
        self._native.load_states(_state_json(state), bool(strict))

    def replay(self, batch: int | None = None, *, index: int | None = None, epoch: int | None = None) -> Any:
        """Makes a batch or a sample again, in this thread and with the same random numbers, so that you can
        follow it in a debugger. The run itself does not change.

        A bad sample raises its error here, whatever the policy is. Functions are called directly.

        Args:
            batch: the number of a batch in its epoch, from 0. It has the samples of an epoch in which none is
                skipped. With filters, buckets or compressed shards, the batches before it are made too.
            index: the index of a sample in the source. The result is the sample as functions of samples made
                it; None if a filter left it out.
            epoch: the epoch, from 0; by default the one that runs or was begun last.
        """
        one_of(batch, index)
        self._native.check_open()
        assert self._recipe is not None, "a loader that replays is not shown to users"
        number = self._native.newest_epoch if epoch is None else checked("epoch", epoch)
        if batch is not None:
            return self._recipe.batch(self._native, checked("batch", batch), number)
        return self._recipe.sample(self._native, checked("index", index), number)

    @property
    def batches_left(self) -> int:
        """The number of batches that are left of the epoch that runs or comes next; an upper bound if
        samples may be skipped or filtered."""
        return self._native.batches_left

    @property
    def decided(self) -> dict[str, int]:
        """The numbers that were derived from the settings and the machine: threads, readers, files, prefetch,
        memory."""
        return self._native.decided

    @property
    def deaths(self) -> list[Death]:
        """All deaths of the worker processes that run Python functions."""
        return []

    @property
    def workers(self) -> list[Handle]:
        """The worker processes, with the attributes of a `multiprocessing.Process`; none before the first
        epoch."""
        return []

    def close(self) -> None:
        """Ends the running epoch and all threads. The loader cannot be used again."""
        self._native.close()
        self._events.notify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<feedline.Loader of {len(self)} batches: {self._config}>"


def _state_json(state: object) -> str:
    """A state, or a list of states, as JSON. Libraries that save states may return numbers of NumPy."""
    plain: object
    if isinstance(state, Mapping):
        plain = dict(state)
    elif isinstance(state, (list, tuple)) and all(isinstance(one, Mapping) for one in state):
        plain = [dict(one) for one in state]
    else:
        raise StateMismatchError.explained(
            f"this is not a state of a loader: it must be a dict or a list of dicts, got {described(state)}",
            "give what loader.state_dict() returned; parse saved text with json.loads(text)",
        )
    try:
        text = json.dumps(plain, default=operator.index, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as reason:
        raise StateMismatchError.explained(f"this is not a state of a loader: {reason}") from None
    return text


class Epoch(_native.BatchIterator, Generic[Batch]):
    """The batches of one epoch.

    A batch belongs to the epoch until `next()` returns it: if a signal handler raises before that (Ctrl-C),
    the next call delivers the batch.
    """

    def __init__(self, loader: Loader, native: _native.Epoch, make: Callable[[Columns], Batch]) -> None:
        # Keeps the loader alive: it owns the threads.
        self._loader = loader
        self._native = native
        self._make = make
        # A batch that was taken from the native loader and is not delivered yet.
        self._taken: Columns | None = None
        self._is_over = False
        # Called once the consumer has the last batch.
        self._confirm: Callable[[], None] = native.confirm

    if TYPE_CHECKING:

        def __next__(self) -> Batch: ...

    def _produce(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if self._taken is None:
            self._taken = self._take()
        self._is_over = self._taken is None
        # The batch stays in `_taken` if this raises a warning as an error.
        self._loader._events.notices.issue()
        columns, self._taken = self._taken, None
        if columns is None:
            raise StopIteration
        return self._make(columns)

    def _take(self) -> Columns | None:
        """The next batch; None at the end."""
        try:
            while (taken := self._native.next()) == NoBatch.Events:
                self._loader._events.notify()
                self._loader._events.notices.issue()
        finally:
            self._loader._events.notify()
        if isinstance(taken, NoBatch):
            self._native.close()
            return None
        return taken

    def close(self) -> None:
        """Ends the threads of the epoch."""
        self._native.close()
        self._loader._events.notify()
