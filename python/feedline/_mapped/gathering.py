"""Samples, as they come from functions, into batches: in order, whatever was left out between them.

Which samples fit together is decided when a batch has as many as it should have: what most of them are made
of is the rule, and the others are faults; if two groups are of the same size, the next sample decides. It
depends on the samples since the last batch alone, so that a resumed run decides alike.

What becomes of a fault is decided here by its class alone. Whether there were too many is judged later, batch
by batch, from the entries that each batch has: so nothing depends on when a result has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from feedline._mapped.trees import Layout, Run, spec_of
from feedline._workers.trouble import Trouble
from feedline.errors import NoReplacementError

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
    action: str
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


@dataclass(slots=True)
class _Piece:
    """Samples of one spec, side by side, in the batch that is being filled."""

    run: Run
    rows: list[Row]
    spec: Any
    # The number behind what is accounted for, if the batch is complete with this piece.
    end: int
    # The fault in whose place this sample stands.
    owed: Fault | None = None


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
        self._pieces: list[_Piece] = []
        self._count = 0
        # What came since the batch was begun, until it is decided what its samples must be made of.
        self._undecided: list[_Piece | Entry] = []
        self._bad = 0
        self._spec: Any = None
        # Faults in whose places the next good sample stands, and the last good one.
        self._owed: deque[Fault] = deque()
        self._last: _Piece | None = None
        # The highest number of a sample that was put into a batch.
        self._reached = -1
        self.entries: list[Entry] = []
        self.complete: deque[Batch] = deque()
        self.dropped = 0
        # Behind a fault that ends the run nothing counts.
        self.is_stopped = False

    @property
    def is_empty(self) -> bool:
        return not (self._pieces or self._owed)

    def good(self, run: Run, rows: list[Row]) -> None:
        """Samples that were made."""
        spec = spec_of(run, self._layout)
        start = 0
        while start < run.count and not self.is_stopped:
            if self._spec is not None and spec != self._spec:
                self._misfit(rows[start], spec)
                start += 1
            elif self._owed:
                fault = self._owed.popleft()
                end = max(fault.number, self._reached) + 1
                self._put(_Piece(run.rows(start, start + 1), [rows[start]], spec, end, fault))
            else:
                stop = min(run.count, start + max(1, self._size - self._count))
                self._reached = max(self._reached, rows[stop - 1].number)
                self._put(_Piece(run.rows(start, stop), rows[start:stop], spec, rows[stop - 1].number + 1))
                start = stop

    def _put(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._count += len(piece.rows)
        if self._spec is None:
            self._undecided.append(piece)
        else:
            self._account(piece)
        if self._count >= self._size:
            self.decide(may_wait=self._count < 2 * self._size)
            if self._spec is not None and self._count == self._size:
                self._completed(piece.end)

    def decide(self, *, may_wait: bool = False) -> None:
        """Finds what most samples of the batch are made of; the others are faults. If two specs are as
        frequent, more samples are waited for, or else the earlier one is the rule."""
        if self._spec is not None or not self._pieces:
            return
        specs: list[tuple[Any, int]] = []
        for piece in self._pieces:
            known = next((at for at, (spec, _) in enumerate(specs) if spec == piece.spec), None)
            if known is None:
                specs.append((piece.spec, len(piece.rows)))
            else:
                specs[known] = (piece.spec, specs[known][1] + len(piece.rows))
        spec, most = max(specs, key=lambda counted: counted[1])
        if may_wait and sum(count == most for _, count in specs) > 1:
            return
        self._spec = spec
        undecided, self._undecided, self._bad = self._undecided, [], 0
        self._pieces = [piece for piece in self._pieces if piece.spec == self._spec]
        self._count = sum(len(piece.rows) for piece in self._pieces)
        for entry in undecided:
            if self.is_stopped:
                break
            if isinstance(entry, Entry):
                self.entries.append(entry)
                self.is_stopped = _ends_the_run(entry)
            elif entry.spec == self._spec:
                self._account(entry)
            elif entry.owed is not None:
                # It does not fit either: the next one is tried in that place.
                self._owed.append(entry.owed)
            else:
                for row in entry.rows:
                    self._misfit(row, entry.spec)
        self._owed = deque(sorted(self._owed, key=lambda fault: fault.number))

    def _account(self, piece: _Piece) -> None:
        """Writes down samples of a batch that fit together."""
        self._last = piece
        rows = piece.rows
        if piece.owed is not None:
            self.entries.append(Entry("replaced", fault=piece.owed, by=rows[0].index))
            return
        self._count_good(rows)

    def _count_good(self, rows: list[Row]) -> None:
        # In order, so mostly the last one tells of all.
        is_planned = rows[-1].number < self._plan_end
        planned = len(rows) if is_planned else sum(row.number < self._plan_end for row in rows)
        for what, count in (("good", planned), ("repeated", len(rows) - planned)):
            if count:
                self.entries.append(Entry(what, count))  # type: ignore[arg-type]

    def _completed(self, end: int, rows: list[Row] | None = None) -> Batch:
        if rows is None:
            rows = [row for piece in self._pieces for row in piece.rows]
        batch = Batch(rows, [piece.run for piece in self._pieces], end, self.entries)
        self.entries = []
        self._begin()
        self.complete.append(batch)
        return batch

    def _begin(self) -> None:
        self._pieces, self._count, self._spec = [], 0, None

    def _misfit(self, row: Row, spec: Any) -> None:
        if self.is_stopped:
            return
        differs = difference(self._spec, spec)
        first = self._pieces[0].rows[0]
        message = f"sample {row.index} does not fit to sample {first.index} of its batch: {differs}"
        self.fault(self._mismatch(row, message))

    def fault(self, fault: Fault) -> None:
        """A sample that was not made."""
        if fault.number >= self._plan_end or self.is_stopped:
            # One that was to be repeated: it was judged when it was its turn.
            return
        self._log(Entry("bad", fault=fault))
        if fault.action == "raise":
            self.decide()
            self.is_stopped = True
        elif fault.action == "replace" and fault.by is None:
            self._owed.append(fault)
        self._bad += 1
        if self._bad >= self._size:
            # The judge must not wait for a batch that may never be full.
            self.decide()

    def note(self, entry: Entry) -> None:
        """What changes nothing."""
        if not self.is_stopped:
            self._log(entry)

    def _log(self, entry: Entry) -> None:
        if self._pieces and self._spec is None:
            self._undecided.append(entry)
        else:
            self._bad = 0
            self.entries.append(entry)

    def whole(self, rows: list[Row]) -> Batch:
        """Samples that were made into a batch together, while nothing was gathered."""
        self._count_good(rows)
        self._reached = rows[-1].number
        return self._completed(rows[-1].number + 1, rows)

    def part_ends(self, begin: int, end: int) -> None:
        """All samples that would be in one batch without faults have come."""
        if not self._stays or not self._pieces:
            return
        self.decide()
        if self._drop_last and end - begin < self._size:
            self._drop()
        else:
            self._completed(end)

    def finish(self, end: int) -> None:
        """No more samples come."""
        self.decide()
        while self._owed and not self.is_stopped:
            fault = self._owed.popleft()
            last = self._last
            if last is None or (self._spec is not None and last.spec != self._spec):
                message = f"no sample follows that could take the place of sample {fault.index}"
                raise NoReplacementError.explained(message, index=fault.index)
            run = last.run.rows(last.run.count - 1, last.run.count)
            reached = max(fault.number, self._reached) + 1
            self._put(_Piece(run, last.rows[-1:], last.spec, reached, fault))
            self.decide()
        if self._pieces and not self.is_stopped:
            if self._drop_last:
                self._drop()
            else:
                self._completed(end)

    def _drop(self) -> None:
        self.dropped += self._count
        self._begin()


def _ends_the_run(entry: Entry) -> bool:
    return entry.what == "bad" and entry.fault is not None and entry.fault.action == "raise"


def difference(ours: Any, theirs: Any, place: str = "") -> str:
    """What is not alike in two specs, of samples or of their parts."""
    name = place or "it"
    if isinstance(ours, dict) and isinstance(theirs, dict):
        missing = [key for key in ours if key not in theirs]
        extra = [key for key in theirs if key not in ours]
        if missing or extra:
            said = [f"{word} {_listed(keys)}" for word, keys in (("lacks", missing), ("has", extra)) if keys]
            return f"{name} {' and '.join(said)}"
        for key in ours:
            if ours[key] != theirs[key]:
                return difference(ours[key], theirs[key], f"{place}[{key!r}]" if place else str(key))
    if _is_tuple(ours) and _is_tuple(theirs) and len(ours) == len(theirs):
        for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            if our != their:
                return difference(our, their, f"{place}[{number}]")
    return f"{name} is {_shown(theirs)}, not {_shown(ours)}"


def _listed(names: list[Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _is_tuple(spec: Any) -> bool:
    """Whether it is the spec of a tuple; that of a leaf begins with its name."""
    return isinstance(spec, tuple) and not (spec and isinstance(spec[0], str))


def _shown(spec: Any) -> str:
    if isinstance(spec, dict):
        return f"a dict with {_listed(list(spec))}" if spec else "an empty dict"
    if _is_tuple(spec):
        return f"a tuple of {len(spec)}"
    kind, *more = spec
    if kind == "array" and more[1] == ():
        return f"a number of {np.dtype(more[0]).name}"
    if kind == "array":
        return f"an array of {np.dtype(more[0]).name} with shape {list(more[1])}"
    if kind == "ragged":
        inner = "" if more[2] is None else f" and shape {['any', *more[2]]}".replace("'", "")
        return f"an array of {np.dtype(more[0]).name} with {more[1]} axes{inner}"
    return _LEAVES[kind]


_LEAVES = {
    "number": "a number of int64 or float64",
    "lists": "a list",
    "values": "a value that is no array",
    "thing": "no array and no number",
}
