"""Calls the functions of a pipeline for samples or for a batch, in a worker process or a thread."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline._mapped.functions import Context, Randomness, Step
from feedline._mapped.samples import SampleColumns
from feedline._mapped.trees import Allocate, Layout, Run, joined, runs_of, spec_of, to_arrays
from feedline._workers.retries import BAD, PendingFault, Retries
from feedline._workers.sources import folders_of
from feedline.faults import FaultPolicy

__all__ = ["FunctionResult", "FunctionRunner", "FunctionTask", "Plan", "Watcher"]

# Takes the place of a sample that a filter has removed.
_LEFT_OUT: Any = object()
# To copy these one by one would take most of the time that a small sample takes.
_IMMUTABLE = frozenset(
    {int, float, bool, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_}
)


@dataclass
class Plan:
    """The functions and settings of a loader, which do not change while it runs."""

    steps: list[Step]
    layout: Layout
    kinds: dict[str, str]
    seed: int
    faults: FaultPolicy | None

    def __post_init__(self) -> None:
        self.of_samples = [step for step in self.steps if step.kind != "map_batch"]
        self.of_batches = [step for step in self.steps if step.kind == "map_batch"]
        self.listed = [name for name, kind in self.kinds.items() if kind == "listed"]
        self.filters = any(step.kind == "filter" for step in self.steps)
        # A worker that cannot read its first sample must know whether the folder of the source existed
        # before.
        self.folders = frozenset().union(*(folders_of(step.function) for step in self.steps))
        # For retries in the worker. Without a policy of the user, as in a torch loader, the function's own
        # error is raised at once: there is no waiting for a source.
        self.policy = self.faults or FaultPolicy(patience=0.0)
        self.may_retry = self.policy.retry > 0 or self.policy.by_type is not None or self.policy.patience > 0


@dataclass
class FunctionTask:
    """Samples, or a batch, for which functions are called."""

    epoch: int
    # The samples' indices in the source and positions in the run.
    indices: list[int]
    positions: list[int]
    # Whether the content is the columns of samples; otherwise it is a batch.
    is_of_samples: bool
    content: Any
    # Whether the samples are exactly one batch, so that the batch functions can be called at once.
    is_whole: bool = False
    # Offsets of samples that must not be computed again.
    dead: frozenset[int] = frozenset()


@dataclass
class FunctionResult:
    """The result of a task."""

    # Good samples in order, in runs of one shape; or the batch itself.
    runs: list[Run] = field(default_factory=list)
    batch: Any = None
    is_batch: bool = False
    # The offsets of good samples, if not all are good.
    good: list[int] | None = None
    left_out: list[int] = field(default_factory=list)
    bad: list[PendingFault] = field(default_factory=list)
    # The structure, shapes and types of the samples of a batch.
    spec: Any = None

    def is_of_samples(self, bad: PendingFault, count: int) -> bool:
        """Whether a sample function failed, in a task of `count` samples, and not a batch function."""
        return not self.is_batch or bad.offset < count


class Watcher:
    """Observes the progress of a runner, and allocates its results. This one ignores the progress."""

    def reach(self, offset: int) -> None:
        """The functions are called for a sample."""

    def reach_batch(self, offset: int) -> None:
        """The functions are called for the batch; its offset is after the last sample."""

    def finished(self, samples: int) -> None:
        """The functions were called for all samples."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Allocates memory for a column."""
        return np.empty(shape, dtype)


class FunctionRunner:
    """Runs tasks, one at a time."""

    def __init__(
        self, plan: Plan, retries: Retries, watcher: Watcher, *, seeds_all: bool, copies: bool = False
    ) -> None:
        """With `copies`, functions get copies of what a task contains, so that it stays as it was."""
        self._plan = plan
        self._copies = copies
        self._retries = retries
        self._watcher = watcher
        wants_global = any("random" not in step.wants for step in plan.steps)
        self._randomness = Randomness(plan.seed, seeds_all=seeds_all and wants_global)
        self._allocate: Allocate = watcher.allocate

    def run(self, task: FunctionTask, again: Callable[[], Any]) -> FunctionResult:
        """Runs a task. `again` returns its original content, which functions may have changed in place."""
        try:
            if task.is_of_samples:
                return self._samples(task, again)
            content = copied(task.content) if self._copies else task.content
            return self._batch(task, content, lambda: copy.deepcopy(again()))
        finally:
            self._retries.take()

    def run_sample(self, task: FunctionTask, offset: int) -> None:
        """Calls the functions for one sample."""
        self._sample(task, self._columns(task, task.content)[offset], offset)

    def _columns(self, task: FunctionTask, columns: dict[str, Any]) -> SampleColumns:
        return SampleColumns(columns, self._plan.kinds, len(task.indices))

    def _samples(self, task: FunctionTask, again: Callable[[], Any]) -> FunctionResult:
        samples = self._columns(task, task.content)
        results: list[Any] = []
        good: list[int] = []
        left_out: list[int] = []
        original: list[SampleColumns] = []

        def retry(offset: int) -> Any:
            if not original:
                original.append(self._columns(task, again()))
            return self._sample(task, copy.deepcopy(original[0][offset]), offset)

        for offset in range(samples.count):
            if offset in task.dead:
                continue
            self._watcher.reach(offset)
            try:
                given = samples[offset]
                sample = self._sample(task, copied(given) if self._copies else given, offset)
            except (Exception, SystemExit) as raised:
                attempt = functools.partial(retry, offset)
                sample = self._retries.again(raised, attempt, offset, task.positions[offset])
            if sample is _LEFT_OUT:
                left_out.append(offset)
            elif sample is not BAD:
                results.append(sample)
                good.append(offset)
        self._watcher.finished(len(good))
        runs = runs_of(results, self._plan.layout, self._allocate)
        is_all = len(good) == samples.count
        bad = self._retries.take()
        if task.is_whole and is_all and len(runs) == 1 and self._plan.of_batches:
            spec = spec_of(runs[0], self._plan.layout)
            batch = joined(runs, self._plan.layout)
            original_batch = copy.deepcopy(batch) if self._plan.may_retry else batch
            whole = self._batch(task, batch, lambda: copy.deepcopy(original_batch))
            whole.bad = bad + whole.bad
            whole.spec = spec
            return whole
        return FunctionResult(runs, good=None if is_all else good, left_out=left_out, bad=bad)

    def _sample(self, task: FunctionTask, sample: Any, offset: int) -> Any:
        position = task.positions[offset]
        self._randomness.begin(position)
        given = {name: sample[name] for name in self._plan.listed}
        for step in self._plan.of_samples:
            if step.wants:
                context = Context(task.epoch, task.indices[offset], position)
                result = step.call(sample, context, self._randomness)
            else:
                result = step.function(sample)
            if step.kind == "filter":
                if not _is_true(result, step.name):
                    return _LEFT_OUT
            elif result is None:
                raise TypeError(f"{step.name} returned None for a sample: it must return the sample")
            else:
                sample = result
        return to_arrays(sample, given)

    def _batch(self, task: FunctionTask, batch: Any, again: Callable[[], Any]) -> FunctionResult:
        offset = len(task.indices)
        self._watcher.reach_batch(offset)
        try:
            result = self._call_batch_functions(task, batch)
        except (Exception, SystemExit) as raised:
            result = self._retries.again(
                raised, lambda: self._call_batch_functions(task, again()), offset, task.positions[0]
            )
        self._watcher.finished(offset)
        return FunctionResult(
            batch=None if result is BAD else result, is_batch=True, bad=self._retries.take()
        )

    def _call_batch_functions(self, task: FunctionTask, batch: Any) -> Any:
        indices = np.array(task.indices, dtype=np.int64)
        context = Context(task.epoch, indices, task.positions[0])
        self._randomness.begin(context.position, of_batch=True)
        for step in self._plan.of_batches:
            batch = step.call(batch, context, self._randomness)
            if batch is None:
                raise TypeError(f"{step.name} returned None for a batch: it must return the batch")
        return batch


def copied(content: Any) -> Any:
    """The fields of a sample, or the columns of a batch, on memory of their own."""
    if type(content) is not dict:
        return copy.deepcopy(content)
    return {name: _copied_value(value) for name, value in content.items()}


def _copied_value(value: Any) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    return copy.deepcopy(value)


def _is_true(result: Any, name: str) -> bool:
    """Whether a filter keeps a sample. Raises for an array of several values, which is neither true nor
    false."""
    try:
        return bool(result)
    except (ValueError, RuntimeError):
        shape = getattr(result, "shape", None)
        if shape is None:
            raise
        message = f"{name} returned an array of shape {tuple(shape)}: a filter must return True or False"
        raise TypeError(message) from None
