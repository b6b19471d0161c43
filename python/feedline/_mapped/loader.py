"""The loader of a pipeline with Python functions."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline import _native
from feedline._account import OVERDUE
from feedline._config import call_as_json
from feedline._mapped.epoch import MappedEpoch
from feedline._mapped.functions import steps_of
from feedline._mapped.processes import Workers
from feedline._mapped.run_functions import Plan
from feedline._mapped.this_thread import ThisThread
from feedline._mapped.threads import Threads
from feedline._mapped.trees import Layout
from feedline._replay import Recipe
from feedline._workers.deadline import deadline_config
from feedline._workers.death import Death
from feedline._workers.tuning import Tuning
from feedline._workers.worker_count import tuned_workers
from feedline._workers.worker_pool import Handle
from feedline.events import Event
from feedline.faults import FaultPolicy
from feedline.loader import Loader, numpy_columns

__all__ = ["MappedLoader"]


class MappedLoader(Loader):
    """A loader whose samples and batches go through Python functions, in worker processes or threads.

    Workers start with the first epoch and stay until the loader is closed.
    """

    def __init__(
        self,
        native: _native.Loader,
        config: str,
        classes: list[str],
        on_event: Callable[[Event], object] | None,
        calls: tuple[dict[str, Any], ...],
        faults: FaultPolicy | None,
        mp_context: str,
        deadline: float | str | None,
        recipe: Recipe | None = None,
        *,
        is_replay: bool = False,
    ) -> None:
        """With `is_replay`, functions are called in the thread that iterates."""
        super().__init__(native, config, classes, on_event, recipe)
        batch = next(call for call in calls if call["call"] == "batch")
        settings = next(call for call in calls if call["call"] == "loader")
        steps = steps_of(calls)
        kinds = dict(native.fields)
        pad = batch.get("pad", False)
        padding = 0 if isinstance(pad, bool) else pad
        layout = Layout(pad is not False and pad is not None, kinds, padding)
        self._plan = Plan(steps, layout, kinds, native.seed_and_rank[0], faults)
        self._size = int(batch["size"])
        workers = settings.get("workers", "auto")
        in_threads = any(call.get("threads") is True for call in calls)
        self._tuning: Tuning | None = None
        if workers != "auto":
            count = int(workers)
        elif in_threads:
            count = _native.processors()
        else:
            self._tuning = Tuning(*tuned_workers())
            count = self._tuning.most
        self.count = count
        self._numbers = itertools.count()
        self._current: weakref.ref[MappedEpoch[Any]] | None = None
        self._backend: Workers | Threads | ThisThread
        if is_replay:
            self._tuning, self.count = None, 1
            self._backend = ThisThread(self._plan, seeds_all=not in_threads)
            return
        if in_threads:
            self._backend = Threads(self._plan, count, self._events)
            return
        rules = _native.Policy((faults or FaultPolicy()).config())
        retries = (
            rules.rule(OVERDUE, None).retry if rules.retry_after(OVERDUE, None, 1, [0]) is not None else 0
        )
        worker_config = {
            "call": "loader",
            "workers": count,
            "depth": 2,
            "max_deaths": settings.get("max_deaths", "auto"),
            "suspect_after": 2,
            **deadline_config(deadline, retries),
            "stall": settings.get("stall") or None,
            "max_worker_memory": settings.get("max_worker_memory"),
            "memory": settings.get("memory", "auto"),
            "has_inbox": True,
        }
        _native.check_workers(call_as_json(worker_config))
        self._backend = Workers(
            self._plan,
            worker_config,
            self._events,
            fresh=mp_context != "fork",
            location=native.location,
            tuning=self._tuning,
        )

    @property
    def _ahead(self) -> int:
        """How many parts and batches are made ahead of the consumer."""
        return 2 * (self.count if self._tuning is None else self._tuning.running) + 1

    @property
    def deaths(self) -> list[Death]:
        return self._backend.deaths

    @property
    def workers(self) -> list[Handle]:
        return self._backend.workers

    def _epoch(self, make: Callable[[Any], Any]) -> Any:
        current = None if self._current is None else self._current()
        if current is not None:
            current.close()
        # Workers start before the native threads: a fork copies locks that a thread may hold.
        self._native.check_open()
        self._backend.start()
        self._backend.forget()
        native = self._native.epoch()
        self._backend.wake_by(native)
        self._events.notify()
        epoch: MappedEpoch[Any] = MappedEpoch(self, native, _same if make is numpy_columns else _tensors)
        self._current = weakref.ref(epoch)
        return epoch

    def close(self) -> None:
        """Ends the running epoch, all threads and all workers. The loader cannot be used again."""
        current = None if self._current is None else self._current()
        if current is not None:
            current.close()
        self._backend.close()
        super().close()


def _same(batch: Any) -> Any:
    return batch


def _tensors(batch: Any) -> Any:
    """The batch with its numeric arrays as torch tensors on the same memory."""
    import torch

    if isinstance(batch, dict):
        return {name: _tensors(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [_tensors(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biufc":
        return torch.from_numpy(batch)
    return batch
