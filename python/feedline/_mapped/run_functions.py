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

__all__ = ["FunctionRunner", "Job", "JobResult", "Plan", "Watcher"]

# Takes the place of a sample that a filter has removed.
_LEFT_OUT: Any = object()


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
class Job:
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
class JobResult:
    """The result of a job."""

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
        """Whether a sample function failed, in a job of `count` samples, and not a batch function."""
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
    """Runs jobs, one at a time."""

    def __init__(self, plan: Plan, retries: Retries, watcher: Watcher, *, seeds_all: bool) -> None:
        self._plan = plan
        self._retries = retries
        self._watcher = watcher
        wants_global = any("random" not in step.wants for step in plan.steps)
        self._randomness = Randomness(plan.seed, seeds_all=seeds_all and wants_global)
        self._allocate: Allocate = watcher.allocate

    def run(self, job: Job, again: Callable[[], Any]) -> JobResult:
        """Runs a job. `again` returns its original content, which functions may have changed in place."""
        try:
            if job.is_of_samples:
                return self._samples(job, again)
            return self._batch(job, job.content, lambda: copy.deepcopy(again()))
        finally:
            self._retries.take()

    def run_sample(self, job: Job, offset: int) -> None:
        """Calls the functions for one sample."""
        self._sample(job, self._columns(job, job.content)[offset], offset)

    def _columns(self, job: Job, columns: dict[str, Any]) -> SampleColumns:
        return SampleColumns(columns, self._plan.kinds, len(job.indices))

    def _samples(self, job: Job, again: Callable[[], Any]) -> JobResult:
        samples = self._columns(job, job.content)
        results: list[Any] = []
        good: list[int] = []
        left_out: list[int] = []
        original: list[SampleColumns] = []

        def retry(offset: int) -> Any:
            if not original:
                original.append(self._columns(job, again()))
            return self._sample(job, copy.deepcopy(original[0][offset]), offset)

        for offset in range(samples.count):
            if offset in job.dead:
                continue
            self._watcher.reach(offset)
            try:
                sample = self._sample(job, samples[offset], offset)
            except (Exception, SystemExit) as raised:
                attempt = functools.partial(retry, offset)
                sample = self._retries.again(raised, attempt, offset, job.positions[offset])
            if sample is _LEFT_OUT:
                left_out.append(offset)
            elif sample is not BAD:
                results.append(sample)
                good.append(offset)
        self._watcher.finished(len(good))
        runs = runs_of(results, self._plan.layout, self._allocate)
        is_all = len(good) == samples.count
        bad = self._retries.take()
        if job.is_whole and is_all and len(runs) == 1 and self._plan.of_batches:
            spec = spec_of(runs[0], self._plan.layout)
            batch = joined(runs, self._plan.layout)
            original_batch = copy.deepcopy(batch) if self._plan.may_retry else batch
            whole = self._batch(job, batch, lambda: copy.deepcopy(original_batch))
            whole.bad = bad + whole.bad
            whole.spec = spec
            return whole
        return JobResult(runs, good=None if is_all else good, left_out=left_out, bad=bad)

    def _sample(self, job: Job, sample: Any, offset: int) -> Any:
        context = Context(job.epoch, job.indices[offset], job.positions[offset])
        self._randomness.begin(context.position)
        given = {name: sample[name] for name in self._plan.listed}
        for step in self._plan.of_samples:
            result = step.call(sample, context, self._randomness)
            if step.kind == "filter":
                if not _is_true(result, step.name):
                    return _LEFT_OUT
            elif result is None:
                raise TypeError(f"{step.name} returned None for a sample: it must return the sample")
            else:
                sample = result
        return to_arrays(sample, given)

    def _batch(self, job: Job, batch: Any, again: Callable[[], Any]) -> JobResult:
        offset = len(job.indices)
        self._watcher.reach_batch(offset)
        try:
            result = self._call_batch_functions(job, batch)
        except (Exception, SystemExit) as raised:
            result = self._retries.again(
                raised, lambda: self._call_batch_functions(job, again()), offset, job.positions[0]
            )
        self._watcher.finished(offset)
        return JobResult(batch=None if result is BAD else result, is_batch=True, bad=self._retries.take())

    def _call_batch_functions(self, job: Job, batch: Any) -> Any:
        indices = np.array(job.indices, dtype=np.int64)
        context = Context(job.epoch, indices, job.positions[0])
        self._randomness.begin(context.position, of_batch=True)
        for step in self._plan.of_batches:
            batch = step.call(batch, context, self._randomness)
            if batch is None:
                raise TypeError(f"{step.name} returned None for a batch: it must return the batch")
        return batch


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
