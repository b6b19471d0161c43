"""A loader gives its batches epoch by epoch, as dicts of NumPy arrays on the memory they were made in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from feedline import _native
from feedline._native import BytesList
from feedline._notices import Notices
from feedline._numpy import array_on
from feedline._workers.death import Death
from feedline._workers.worker_pool import Handle
from feedline.errors import CheckpointMismatchError
from feedline.events import Event, notify
from feedline.report import Report

if TYPE_CHECKING:
    from feedline.torch import Batches

__all__ = ["BytesList", "Epoch", "Loader", "numpy_columns"]

Sequence.register(BytesList)

Batch = TypeVar("Batch")
Columns = list[tuple[str, "_native.Tensor | BytesList | list[str]"]]


def numpy_columns(columns: Columns) -> dict[str, Any]:
    """As NumPy arrays, on the memory they were made in."""
    return {name: array_on(value) if isinstance(value, _native.Tensor) else value for name, value in columns}


class Loader:
    """Iterating over it starts the next epoch. Made by `Pipeline.loader()`.

    A loader has one epoch at a time: starting another ends the one before. `close()`, the end of a `with`
    block or garbage collection end its threads; arrays that are still in use stay valid.
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
        self._on_event = on_event
        self._notices = Notices()
        self.classes = classes

    def __iter__(self) -> Epoch[dict[str, Any]]:
        return self._epoch(numpy_columns)

    def _epoch(self, make: Callable[[Columns], Batch]) -> Epoch[Batch]:
        native = self._native.epoch()
        self._notify()
        return Epoch(self, native, make)

    def _notify(self) -> None:
        """Logs what has happened since the last time, and calls the user's function."""
        if self._native.has_events:
            notify(self._native.take_events(), self._on_event, self._notices)

    def __len__(self) -> int:
        """Batches of an epoch without faults."""
        return len(self._native)

    def torch(self) -> Batches:
        """The same batches as torch tensors, on the same memory."""
        from feedline.torch import Batches

        return Batches(self)

    def report(self) -> Report:
        """What has happened so far: delivered, skipped, retried, waited, slowest, busiest stage."""
        return Report._parse(self._native.report_json(), self._native.report_text())

    def checkpoint(self) -> str:
        """Where this run stands, after the last batch that was taken: a short text."""
        return self._native.checkpoint()

    def resume(self, checkpoint: str) -> None:
        """Makes the next epoch go on after a checkpoint, with the very batches that would have come."""
        try:
            self._native.resume(checkpoint)
        except UnicodeEncodeError as reason:
            # Half of a pair of UTF-16, which no checkpoint has.
            raise CheckpointMismatchError.explained(f"this is not a checkpoint: {reason}") from None

    @property
    def decided(self) -> dict[str, int]:
        """What was decided from settings and machine: threads, readers, files, prefetch, memory."""
        return self._native.decided

    @property
    def deaths(self) -> list[Death]:
        """All deaths of worker processes, in which functions of Python run."""
        return []

    @property
    def workers(self) -> list[Handle]:
        """The worker processes, each as `multiprocessing.Process` would show it; none before the first
        epoch."""
        return []

    def close(self) -> None:
        """Ends the running epoch and all threads. The loader cannot be used again."""
        self._native.close()
        self._notify()

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

    A batch belongs to the epoch until `next()` returns it: if a signal handler raises meanwhile (Ctrl-C),
    the next call delivers it.
    """

    def __init__(self, loader: Loader, native: _native.Epoch, make: Callable[[Columns], Batch]) -> None:
        # Keeps the loader alive: it owns the threads.
        self._loader = loader
        self._native = native
        self._make = make
        # A batch that was taken and not delivered yet.
        self._taken: Columns | None = None
        self._is_over = False
        # Called when the batch that was made last is the consumer's.
        self._confirm: Callable[[], None] = native.confirm

    if TYPE_CHECKING:

        def __next__(self) -> Batch: ...

    def _produce(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if self._taken is None:
            self._taken = self._take()
        self._is_over = self._taken is None
        # What was taken stays, should a warning be an error.
        self._loader._notices.issue()
        columns, self._taken = self._taken, None
        if columns is None:
            raise StopIteration
        return self._make(columns)

    def _take(self) -> Columns | None:
        """The next batch; None at the end."""
        try:
            # True: nothing yet, but there is something to tell.
            while (columns := self._native.next()) is True:
                self._loader._notify()
                self._loader._notices.issue()
        finally:
            self._loader._notify()
        if columns is None:
            self._native.close()
        return columns

    def close(self) -> None:
        """Ends its threads."""
        self._native.close()
        self._loader._notify()
