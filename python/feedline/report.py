"""Reports on a run, as objects, text and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["CallReport", "Fault", "Report", "Resource", "Slow"]


@dataclass(frozen=True)
class Fault:
    """A sample that could not be loaded, or a call that failed: for a call, `index` is the call as text, and
    `call` has its function and, if JSON can represent them, its arguments."""

    index: Any
    path: str | None
    stage: str
    kind: str
    reason: str
    epoch: int
    times: int
    offset: int | None = None
    record: int | None = None
    traceback: str | None = None
    attempts: int = 1
    worker: int | None = None
    call: dict[str, Any] | None = None


@dataclass(frozen=True)
class Slow:
    """A sample or a call that took long."""

    index: Any
    seconds: float
    worker: int | None
    stage: str


@dataclass(frozen=True)
class Resource:
    """How much of a resource was in use at most, and its budget: what may be in use. All loaders of a process
    share memory and files: `process_peak` and `process_budget` are those of all of them together."""

    peak: int
    budget: int
    process_peak: int | None = None
    process_budget: int | None = None


@dataclass(frozen=True)
class Report:
    """Counts and faults of a loader's epochs; delivered - repeated + skipped + pending = expected.

    `pending` counts samples that are not delivered: of an epoch that is running or was abandoned. `repeated`
    counts samples that were delivered a second time, so that every rank has the same number. Samples that are
    `excluded`, `dropped` or `filtered` are not expected. `cache_hits` counts samples that a cache had, and
    `cache_misses` those that it did not have. `resources` has the peak of each resource, and its budget.
    """

    epochs: int
    completed: int
    expected: int
    delivered: int
    skipped: int
    replaced: int
    retried: int
    quarantined: int
    repeated: int
    excluded: int
    dropped: int
    filtered: int
    pending: int
    batches: int
    faults: tuple[Fault, ...]
    workers_lost: dict[str, int]
    deaths: tuple[str, ...]
    renewed: tuple[str, ...]
    slowest: tuple[Slow, ...]
    seconds_waited: float
    seconds: float
    busiest: str | None
    busy: dict[str, float]
    cache_hits: int
    cache_misses: int
    cache_corrupt: int
    resources: dict[str, Resource]
    notes: tuple[str, ...]
    text: str

    @classmethod
    def _parse(cls, native: str, text: str) -> Report:
        return cls(**_fields(native), text=text)

    def to_json(self) -> str:
        """All of it but the text."""
        return _json(self)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CallReport:
    """Counts and faults of an executor's calls; returned + failed + skipped + excluded + cancelled +
    pending = submitted.

    Attributes:
        submitted: all calls.
        returned: calls that have a result; for `replaced` calls it is the replacement of the policy.
        failed: calls whose future has their exception.
        skipped: calls that the policy skipped.
        excluded: calls that were not made because `exclude` names them.
        cancelled: calls that were cancelled, or have no result because another call of their chunk failed or
            the pool broke.
        pending: calls that are waiting or running.
        retried: how often a call was retried after it had raised.
        quarantined: faults written to the quarantine file.
        faults: calls that failed, were skipped or replaced.
        workers_lost: deaths of workers by cause; `deaths` has the first of them as text.
        renewed: workers that were replaced on purpose, with the reason.
        slowest: the calls that took longest.
        resources: the peak of each resource, and its budget.
        notes: other occurrences.
    """

    submitted: int
    returned: int
    failed: int
    skipped: int
    excluded: int
    cancelled: int
    pending: int
    replaced: int
    retried: int
    quarantined: int
    faults: tuple[Fault, ...]
    workers_lost: dict[str, int]
    deaths: tuple[str, ...]
    renewed: tuple[str, ...]
    slowest: tuple[Slow, ...]
    resources: dict[str, Resource]
    notes: tuple[str, ...]
    text: str

    @classmethod
    def _parse(cls, native: str, text: str) -> CallReport:
        return cls(**_fields(native), text=text)

    def to_json(self) -> str:
        """All of it but the text."""
        return _json(self)

    def __str__(self) -> str:
        return self.text


def _fields(native: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(native)
    fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
    fields["slowest"] = tuple(Slow(**slow) for slow in fields["slowest"])
    fields["resources"] = {name: Resource(**peak) for name, peak in fields["resources"].items()}
    for name in ("notes", "deaths", "renewed"):
        fields[name] = tuple(fields[name])
    return fields


def _json(report: Report | CallReport) -> str:
    fields = {name: value for name, value in report.__dict__.items() if name != "text"}
    fields["faults"] = [fault.__dict__ for fault in report.faults]
    fields["slowest"] = [slow.__dict__ for slow in report.slowest]
    fields["resources"] = {name: resource.__dict__ for name, resource in report.resources.items()}
    return json.dumps(fields)
