"""What has happened, as an object, as text, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Fault", "Report", "Slow"]


@dataclass(frozen=True)
class Fault:
    """A sample that could not be made."""

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


@dataclass(frozen=True)
class Slow:
    """A sample that took long."""

    index: Any
    seconds: float
    worker: int | None
    stage: str


@dataclass(frozen=True)
class Report:
    """Everything that is known of a loader's epochs; delivered - repeated + skipped + pending = expected.

    `pending` counts samples that nobody asked for: of an epoch that is running or was left. `repeated` counts
    those that came a second time, so that every rank has as many as the others. What is `excluded`,
    `dropped` or `filtered` is not expected.
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
    retired: tuple[str, ...]
    slowest: tuple[Slow, ...]
    seconds_waited: float
    seconds: float
    busiest: str | None
    busy: dict[str, float]
    notes: tuple[str, ...]
    text: str

    @classmethod
    def _parse(cls, native: str, text: str) -> Report:
        fields: dict[str, Any] = json.loads(native)
        fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
        fields["slowest"] = tuple(Slow(**slow) for slow in fields["slowest"])
        for name in ("notes", "deaths", "retired"):
            fields[name] = tuple(fields[name])
        return cls(**fields, text=text)

    def to_json(self) -> str:
        """All of it but the text."""
        fields = {name: value for name, value in self.__dict__.items() if name != "text"}
        fields["faults"] = [fault.__dict__ for fault in self.faults]
        fields["slowest"] = [slow.__dict__ for slow in self.slowest]
        return json.dumps(fields)

    def __str__(self) -> str:
        return self.text
