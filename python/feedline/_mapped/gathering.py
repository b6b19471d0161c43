"""Samples, as they come from functions, into batches: in order, whatever was left out between them.

What becomes of a fault is decided here by its class alone. Whether there were too many is judged later, batch
by batch, from the entries that each batch has: so nothing depends on when a result has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from feedline._mapped.trees import Layout, Run, spec_of
from feedline._workers.trouble import Trouble
from feedline.errors import NoReplacement

__all__ = ["Batch", "Entry", "Fault", "Gathering", "Row"]


@dataclass(slots=True)
class Row:
    """Which sample it is: its number in the run of this rank, and its ticket."""

    number: int
    position: int
    epoch: int
    index: int


@dataclass
class Fault:
    """A sample that could not be made, natively or by a function."""

    number: int
    index: int
    names: list[str]
    os_error: int | None
    # As JSON.
    line: str
    then: str
    # What a function has raised.
    trouble: Trouble | None = None
    # The index of the sample that the native pipeline has put in its place.
    by: int | None = None
    worker: int | None = None


@dataclass(slots=True)
class Entry:
    """What is to be judged or counted, in order."""

    what: Literal["good", "bad", "retried", "replaced", "repeated", "filtered"]
    count: int = 1
    fault: Fault | None = None
    by: int | None = None


@dataclass
class Batch:
    """Samples that are delivered together."""

    rows: list[Row]
    runs: list[Run]
    # The number behind the last sample that it accounts for.
    end: int
    # What came before it and in it.
    entries: list[Entry]
    result: Any = None
    is_ready: bool = False
    # What is wrong with all of it, or how often it was tried.
    bad: list[Fault] = field(default_factory=list)
    worker: int | None = None
    task: int = -1


class Gathering:
    """The batch that is being filled, and those that are complete."""

    def __init__(
        self,
        size: int,
        layout: Layout,
        plan_end: int,
        mismatch: Callable[[Row, str], Fault],
        *,
        drop_last: bool,
        stays: bool,
    ) -> None:
        """From `plan_end` on samples are repeated; `stays`: each stays in the batch that it would be in
        without faults; `mismatch` makes a fault of a sample that does not fit to the others."""
        self._size = size
        self._layout = layout
        self._plan_end = plan_end
        self._mismatch = mismatch
        self._drop_last = drop_last
        self._stays = stays
        self._rows: list[Row] = []
        self._runs: list[Run] = []
        self._spec: Any = None
        # Faults in whose places the next good sample stands, and the last good one.
        self._owed: deque[Fault] = deque()
        self._last: tuple[Run, Row] | None = None
        self.entries: list[Entry] = []
        self.complete: deque[Batch] = deque()
        self.dropped = 0
        # Behind a fault that ends the run nothing counts.
        self.is_stopped = False

    @property
    def is_empty(self) -> bool:
        return not (self._rows or self._owed)

    def good(self, run: Run, rows: list[Row]) -> None:
        """Samples that were made."""
        spec = spec_of(run, self._layout)
        start = 0
        while start < run.count and not self.is_stopped:
            if self._rows and spec != self._spec:
                self._misfit(rows[start], spec)
                start += 1
            elif self._owed:
                fault = self._owed.popleft()
                self.entries.append(Entry("replaced", fault=fault, by=rows[start].index))
                self._put(run.rows(start, start + 1), [rows[start]], spec, fault.number + 1)
            else:
                stop = min(run.count, start + self._size - len(self._rows))
                self._count(rows[start:stop])
                self._put(run.rows(start, stop), rows[start:stop], spec, rows[stop - 1].number + 1)
                start = stop
        if run.count:
            self._last = (run.rows(run.count - 1, run.count), rows[-1])

    def _count(self, rows: list[Row]) -> None:
        # In order, so mostly the last one tells of all.
        is_planned = rows[-1].number < self._plan_end
        planned = len(rows) if is_planned else sum(row.number < self._plan_end for row in rows)
        for what, count in (("good", planned), ("repeated", len(rows) - planned)):
            if count:
                self.entries.append(Entry(what, count))  # type: ignore[arg-type]

    def _put(self, run: Run, rows: list[Row], spec: Any, end: int) -> None:
        self._spec = spec
        self._runs.append(run)
        self._rows += rows
        if len(self._rows) == self._size:
            self._completed(end)

    def _completed(self, end: int) -> Batch:
        batch = Batch(self._rows, self._runs, end, self.entries)
        self._rows, self._runs, self.entries = [], [], []
        self.complete.append(batch)
        return batch

    def _misfit(self, row: Row, spec: Any) -> None:
        differs = _difference(self._spec, spec)
        message = f"sample {row.index} does not fit to sample {self._rows[0].index} of its batch: {differs}"
        self.fault(self._mismatch(row, message))

    def fault(self, fault: Fault) -> None:
        """A sample that was not made."""
        if fault.number >= self._plan_end or self.is_stopped:
            # One that was to be repeated: it was judged when it was its turn.
            return
        self.entries.append(Entry("bad", fault=fault))
        if fault.then == "raise":
            self.is_stopped = True
        elif fault.then == "replace" and fault.by is None:
            self._owed.append(fault)

    def note(self, entry: Entry) -> None:
        """What changes nothing."""
        if not self.is_stopped:
            self.entries.append(entry)

    def whole(self, rows: list[Row]) -> Batch:
        """Samples that were made into a batch together, while nothing was gathered."""
        self._count(rows)
        self._rows = rows
        return self._completed(rows[-1].number + 1)

    def part_ends(self, begin: int, end: int) -> None:
        """All samples that would be in one batch without faults have come."""
        if not self._stays or not self._rows:
            return
        if self._drop_last and end - begin < self._size:
            self._drop()
        else:
            self._completed(end)

    def finish(self, end: int) -> None:
        """No more samples come."""
        while self._owed and not self.is_stopped:
            fault = self._owed.popleft()
            if self._last is None or (self._rows and spec_of(self._last[0], self._layout) != self._spec):
                message = f"no sample follows that could take the place of sample {fault.index}"
                raise NoReplacement.explained(message, index=fault.index)
            run, row = self._last
            self.entries.append(Entry("replaced", fault=fault, by=row.index))
            self._put(run, [row], spec_of(run, self._layout), fault.number + 1)
        if self._rows and not self.is_stopped:
            if self._drop_last:
                self._drop()
            else:
                self._completed(end)

    def _drop(self) -> None:
        self.dropped += len(self._rows)
        self._rows, self._runs = [], []


def _difference(ours: Any, theirs: Any) -> str:
    """What is not alike in two specs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if set(ours) != set(theirs):
            return f"its fields are {_listed(theirs)}, not {_listed(ours)}"
        name = next((name for name in ours if ours[name] != theirs[name]), None)
        if name is not None:
            return f"{name} is {_shown(theirs[name])}, not {_shown(ours[name])}"
    return f"it is {_shown(theirs)}, not {_shown(ours)}"


def _listed(names: dict[Any, Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _shown(spec: Any) -> str:
    if isinstance(spec, dict):
        return "a dict"
    if spec[:1] == ("array",):
        return f"an array of {spec[1].lstrip('<|=')} with shape {list(spec[2])}"
    if spec[:1] == ("ragged",):
        return f"an array of {spec[1].lstrip('<|=')} with {spec[2]} axes"
    return "a list" if spec == ("lists",) else "no array" if spec == ("thing",) else "a tuple"
