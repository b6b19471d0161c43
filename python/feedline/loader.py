"""A loader delivers batches epoch by epoch, as dicts of NumPy arrays, without copying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from feedline import _native
from feedline._event_log import EventLog
from feedline._native import BytesList
from feedline._numpy import array_on
from feedline._workers.death import Death
from feedline._workers.worker_pool import Handle
from feedline.errors import CheckpointMismatchError
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
    ) -> None:
        self._native = native
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

    def checkpoint(self) -> str:
        """The state of this run after the last delivered batch, as a short text."""
        return self._native.checkpoint()

    def resume(self, checkpoint: str) -> None:
        """Continues after a checkpoint: the next epoch delivers exactly the batches that were left."""
        try:
            self._native.resume(checkpoint)
        except UnicodeEncodeError as reason:
            # A lone surrogate, which no checkpoint contains.
            raise CheckpointMismatchError.explained(f"this is not a checkpoint: {reason}") from None

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
            # True: there are events, but no batch yet.
            while (columns := self._native.next()) is True:
                self._loader._events.notify()
                self._loader._events.notices.issue()
        finally:
            self._loader._events.notify()
        if columns is None:
            self._native.close()
        return columns

    def close(self) -> None:
        """Ends the threads of the epoch."""
        self._native.close()
        self._loader._events.notify()
