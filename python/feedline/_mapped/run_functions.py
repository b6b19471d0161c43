"""Calls the functions of a pipeline for the samples of a part or for a batch; in a worker or in a thread."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline._mapped.functions import Context, Draws, Step
from feedline._mapped.samples import Samples
from feedline._mapped.trees import Layout, Room, Run, joined, laid, runs_of, spec_of
from feedline._workers.retries import BAD, PendingFault, Retries
from feedline._workers.sources import folders_of
from feedline.faults import FaultPolicy

__all__ = ["FunctionRunner", "Job", "Made", "Plan", "Watcher"]

# In the place of a sample that a filter has left out.
_LEFT_OUT: Any = object()


@dataclass
class Plan:
    """All that is fixed for a loader."""

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
        # A worker whose first sample cannot be read must know that its folder was there.
        self.folders = frozenset().union(*(folders_of(step.function) for step in self.steps))
        # What is done about faults where they are met. Without a policy a source is not waited for, as in a
        # torch loader: the function's own error is raised.
        self.policy = self.faults or FaultPolicy(patience=0.0)
        self.may_retry = self.policy.retry > 0 or self.policy.by_type is not None or self.policy.patience > 0


@dataclass
class Job:
    """Samples for which functions are to be called, or a batch."""

    epoch: int
    # Of the source, and of the run.
    indices: list[int]
    positions: list[int]
    # Whether it is of samples, side by side in columns; or else a batch.
    is_of_samples: bool
    content: Any
    # Whether the samples are known to be a batch as they are, so that its functions can follow at once.
    is_whole: bool = False
    # Samples that are not retried.
    dead: frozenset[int] = frozenset()


@dataclass
class Made:
    """What came of a job."""

    # Good samples in order, in runs of one shape; or else the batch itself.
    runs: list[Run] = field(default_factory=list)
    batch: Any = None
    is_batch: bool = False
    # The positions of good samples, if not all are.
    good: list[int] | None = None
    left_out: list[int] = field(default_factory=list)
    bad: list[PendingFault] = field(default_factory=list)
    # What the samples of a batch are made of.
    spec: Any = None

    def is_of_samples(self, bad: PendingFault, count: int) -> bool:
        """Whether a function of samples has failed, in a job of that many, and not one of the batch."""
        return not self.is_batch or bad.position < count


class Watcher:
    """Who hears how far a doer is; here nobody."""

    def reach(self, position: int) -> None:
        """A sample begins."""

    def reach_batch(self, position: int) -> None:
        """The batch begins; its position is behind the last sample."""

    def made(self, samples: int) -> None:
        """The samples are made."""

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory for a column."""
        return np.empty(shape, dtype)


class FunctionRunner:
    """Does jobs, one at a time."""

    def __init__(self, plan: Plan, retries: Retries, watcher: Watcher, *, seeds_all: bool) -> None:
        self._plan = plan
        self._retries = retries
        self._watcher = watcher
        wants_global = any("random" not in step.wants for step in plan.steps)
        self._draws = Draws(plan.seed, seeds_all=seeds_all and wants_global)
        self._room: Room = watcher.room

    def do(self, job: Job, again: Callable[[], Any]) -> Made:
        """`again` gives the content of the job as it was, whatever functions have done to its arrays."""
        try:
            if job.is_of_samples:
                return self._samples(job, again)
            return self._batch(job, job.content, lambda: copy.deepcopy(again()))
        finally:
            self._retries.take()

    def alone(self, job: Job, position: int) -> None:
        """Calls the functions for one sample."""
        self._sample(job, self._taken_apart(job, job.content)[position], position)

    def _taken_apart(self, job: Job, columns: dict[str, Any]) -> Samples:
        return Samples(columns, self._plan.kinds, len(job.indices))

    def _samples(self, job: Job, again: Callable[[], Any]) -> Made:
        samples = self._taken_apart(job, job.content)
        made: list[Any] = []
        good: list[int] = []
        left_out: list[int] = []
        original: list[Samples] = []

        def once_more(position: int) -> Any:
            if not original:
                original.append(self._taken_apart(job, again()))
            return self._sample(job, copy.deepcopy(original[0][position]), position)

        for position in range(samples.count):
            if position in job.dead:
                continue
            self._watcher.reach(position)
            try:
                sample = self._sample(job, samples[position], position)
            except (Exception, SystemExit) as raised:
                make = functools.partial(once_more, position)
                sample = self._retries.again(raised, make, position, job.positions[position])
            if sample is _LEFT_OUT:
                left_out.append(position)
            elif sample is not BAD:
                made.append(sample)
                good.append(position)
        self._watcher.made(len(good))
        runs = runs_of(made, self._plan.layout, self._room)
        is_all = len(good) == samples.count
        bad = self._retries.take()
        if job.is_whole and is_all and len(runs) == 1 and self._plan.of_batches:
            spec = spec_of(runs[0], self._plan.layout)
            batch = joined(runs, self._plan.layout)
            kept = copy.deepcopy(batch) if self._plan.may_retry else batch
            whole = self._batch(job, batch, lambda: copy.deepcopy(kept))
            whole.bad = bad + whole.bad
            whole.spec = spec
            return whole
        return Made(runs, good=None if is_all else good, left_out=left_out, bad=bad)

    def _sample(self, job: Job, sample: Any, position: int) -> Any:
        context = Context(job.epoch, job.indices[position], job.positions[position])
        self._draws.begin(context.position)
        given = {name: sample[name] for name in self._plan.listed}
        for step in self._plan.of_samples:
            came = step.call(sample, context, self._draws)
            if step.kind == "filter":
                if not _is_true(came, step.name):
                    return _LEFT_OUT
            elif came is None:
                raise TypeError(f"{step.name} returned None for a sample: it must return the sample")
            else:
                sample = came
        return laid(sample, given)

    def _batch(self, job: Job, batch: Any, again: Callable[[], Any]) -> Made:
        position = len(job.indices)
        self._watcher.reach_batch(position)
        try:
            made = self._call_for(job, batch)
        except (Exception, SystemExit) as raised:
            made = self._retries.again(
                raised, lambda: self._call_for(job, again()), position, job.positions[0]
            )
        self._watcher.made(position)
        return Made(batch=None if made is BAD else made, is_batch=True, bad=self._retries.take())

    def _call_for(self, job: Job, batch: Any) -> Any:
        indices = np.array(job.indices, dtype=np.int64)
        context = Context(job.epoch, indices, job.positions[0])
        self._draws.begin(context.position, of_batch=True)
        for step in self._plan.of_batches:
            batch = step.call(batch, context, self._draws)
            if batch is None:
                raise TypeError(f"{step.name} returned None for a batch: it must return the batch")
        return batch


def _is_true(came: Any, name: str) -> bool:
    """Whether a filter keeps a sample; an array of several values is neither true nor false."""
    try:
        return bool(came)
    except (ValueError, RuntimeError):
        shape = getattr(came, "shape", None)
        if shape is None:
            raise
        message = f"{name} returned an array of shape {tuple(shape)}: a filter must return True or False"
        raise TypeError(message) from None
