"""What has happened, as an object, as text, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Fault", "Report"]


@dataclass(frozen=True)
class Fault:
    """A sample that could not be made."""

    index: int
    path: str | None
    stage: str
    kind: str
    reason: str
    epoch: int
    times: int


@dataclass(frozen=True)
class Report:
    """Everything that is known of a loader's epochs; delivered + skipped + pending = expected.

    `pending` counts samples that nobody asked for: of an epoch that is running or was left.
    """

    epochs: int
    completed: int
    expected: int
    delivered: int
    skipped: int
    replaced: int
    dropped: int
    pending: int
    batches: int
    faults: tuple[Fault, ...]
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
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields, text=text)

    def to_json(self) -> str:
        """All of it but the text."""
        fields = {name: value for name, value in self.__dict__.items() if name != "text"}
        fields["faults"] = [fault.__dict__ for fault in self.faults]
        return json.dumps(fields)

    def __str__(self) -> str:
        return self.text
