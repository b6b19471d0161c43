"""One epoch of a loader with functions: takes samples from the native pipeline, has functions called for
them elsewhere, and delivers batches in order."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from feedline import _native
from feedline._mapped.doing import Job, Made
from feedline._mapped.gathering import Batch, Entry, Fault, Gathering, Row
from feedline._mapped.judging import Judging, NativeError
from feedline._mapped.samples import Samples
from feedline._mapped.trees import joined
from feedline._numpy import array_on
from feedline._workers.crew import GaveUp, died
from feedline._workers.death import Death
from feedline._workers.trouble import Trouble
from feedline.errors import ClosedError, DeadlineExceededError, FeedlineError, FeedlineWarning

if TYPE_CHECKING:
    from feedline._mapped.loader import MappedLoader

__all__ = ["MappedEpoch"]

T = TypeVar("T")


@dataclass
class _Part:
    """Samples of the native pipeline, in order, and what functions have made of them."""

    rows: list[Row]
    begin: int
    end: int
    remarks: list[Any]
    task: int = -1
    job: Job | None = None
    made: Made | None = None
    worker: int | None = None
    # Samples that kill or hang, by position.
    lost: dict[int, Fault] = field(default_factory=dict)
    # The functions of the batch that it is kill or hang.
    batch_fault: Fault | None = None


class MappedEpoch(_native.BatchIterator, Generic[T]):
    """The batches of one epoch. A signal handler that raises (Ctrl-C) loses none of them."""

    def __init__(self, loader: MappedLoader, native: _native.Epoch, convert: Callable[[Any], T]) -> None:
        # Keeps the loader alive: it owns the workers.
        self._loader = loader
        self._native = native
        self._convert = convert
        self._place = loader._place
        self._plan = loader._plan
        self._judging = Judging(loader._native, self._plan.faults, self._place.where)
        start, plan_end, self._length, filling = native.numbers()
        self._fills = filling is not None
        self._filled = filling
        self._plan_end = plan_end
        self._due_end = max(start, plan_end)
        self._come = start
        self._stays = loader._stays
        self._gathering = Gathering(
            loader._size,
            self._plan.layout,
            plan_end,
            self._judging.mismatch,
            drop_last=loader._drop_last,
            stays=self._stays,
        )
        # A batch that was made and not delivered yet, and what is called when it is.
        self._held: list[tuple[T, Callable[[], None]]] = []
        self._confirm: Callable[[], None] | None = None
        self._parts: deque[_Part] = deque()
        self._batches: deque[Batch] = deque()
        # Who waits for which task.
        self._tasks: dict[int, _Part | Batch] = {}
        # Whether parts are batches as they are, because nothing was left out so far.
        self._is_aligned = not self._plan.filters
        self._has_ended = False
        self._is_finished = False
        self._is_over = False
        self._error: BaseException | None = None
        # In a row, of those that were to be repeated.
        self._barren = 0

    if TYPE_CHECKING:

        def __next__(self) -> T: ...

    def _produce(self) -> T:
        if not self._held and not self._is_over:
            self._held += self._next()
        # What was made stays, should a warning be an error.
        self._loader._notices.issue()
        if self._held:
            batch, self._confirm = self._held.pop()
            return batch
        raise StopIteration

    def _next(self) -> list[tuple[T, Callable[[], None]]]:
        """The next batch; none at the end."""
        began = time.perf_counter()
        try:
            while True:
                batch = self._due()
                if batch is not None:
                    return [self._deliver(batch, time.perf_counter() - began)]
                if self._is_finished:
                    self._end()
                    return []
                self._work()
        except (FeedlineWarning, _native.Interrupted):
            # Nothing was taken: the next call goes on.
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._loader._tell()

    def close(self) -> None:
        """Leaves the epoch."""
        if not self._is_over:
            self._is_over = True
            self._place.forget()
            self._parts.clear()
            self._batches.clear()
            self._tasks.clear()
            self._native.close()
            self._loader._tell()

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            self.close()

    # ---- in order ----

    def _due(self) -> Batch | None:
        """The batch that must be delivered now, if it is there; all that comes before it is judged."""
        self._gather()
        while self._batches:
            batch = self._batches[0]
            if not batch.is_ready:
                return None
            self._batches.popleft()
            self._judge(batch.entries)
            if self._judging.batch(batch):
                return batch
        # Nothing stands before these.
        entries, self._gathering.entries = self._gathering.entries, []
        self._judge(entries)
        return None

    def _judge(self, entries: list[Entry]) -> None:
        try:
            self._judging.judge(entries)
        except NativeError:
            self._raise_native()

    def _raise_native(self) -> NoReturn:
        """The native pipeline has an error to raise, and nothing else."""
        while self._error is None:
            self._take(waits=True)
        raise self._error

    def _gather(self) -> None:
        """Puts what functions have made into batches, as far as it is known in order."""
        while self._parts and self._parts[0].made is not None and not self._gathering.is_stopped:
            part = self._parts[0]
            if part.made is not None and part.made.is_batch and not self._gathering.is_empty:
                # Something before it was left out: its samples stand in other batches.
                self._is_aligned = False
                self._submit_part(part)
                return
            self._parts.popleft()
            self._put(part, part.made)
            self._send_batches()

    def _put(self, part: _Part, made: Made | None) -> None:
        assert made is not None
        faults = [self._judging.remarked(remark) for remark in part.remarks]
        faults += part.lost.values()
        count = len(part.rows)
        of_batch = [] if part.batch_fault is None else [part.batch_fault]
        for bad in made.bad:
            row = part.rows[min(bad.position, count - 1)]
            fault = self._judging.bad(bad, row, part.worker)
            if made.is_batch and bad.position == count:
                of_batch.append(fault)
            elif fault.action:
                faults.append(fault)
            else:
                self._gathering.note(Entry("retried", fault=fault))
        if made.is_batch:
            for fault in faults:
                self._gathering.fault(fault)
            batch = self._gathering.whole(part.rows)
            self._made(batch, made.batch, of_batch, part.worker)
            return
        if faults or made.left_out or count < part.end - part.begin:
            self._is_aligned = self._is_aligned and self._stays
        if made.left_out:
            self._gathering.note(Entry("filtered", len(made.left_out)))
        good = part.rows if made.good is None else [part.rows[position] for position in made.good]
        self._put_in_order(made, good, sorted(faults, key=lambda fault: fault.number))
        repeated = sum(row.number >= self._plan_end for row in good) if part.end > self._plan_end else 0
        self._barren = 0 if repeated else self._barren + part.end - max(part.begin, self._plan_end)
        self._gathering.part_ends(part.begin, part.end)

    def _put_in_order(self, made: Made, good: list[Row], faults: list[Fault]) -> None:
        waiting = deque(faults)
        done = 0
        for run in made.runs:
            start = 0
            while start < run.count:
                stop = run.count
                if waiting:
                    before = waiting[0].number
                    stop = start
                    while stop < run.count and good[done + stop].number < before:
                        stop += 1
                if stop > start:
                    self._gathering.good(run.rows(start, stop), good[done + start : done + stop])
                    start = stop
                if start < run.count:
                    self._gathering.fault(waiting.popleft())
            done += run.count
        for fault in waiting:
            self._gathering.fault(fault)

    def _send_batches(self) -> None:
        """Has functions called for batches that are complete."""
        while self._gathering.complete:
            batch = self._gathering.complete.popleft()
            self._batches.append(batch)
            if not batch.runs:
                continue
            columns = joined(batch.runs, self._plan.layout)
            batch.runs = []
            if not self._plan.of_batches:
                batch.result, batch.is_ready = columns, True
                continue
            self._submit(batch, self._job(batch.rows, columns, is_of_samples=False))

    def _made(self, batch: Batch, result: Any, bad: list[Fault], worker: int | None) -> None:
        batch.result, batch.bad, batch.worker, batch.is_ready = result, bad, worker, True

    def _deliver(self, batch: Batch, waited: float) -> tuple[T, Callable[[], None]]:
        standing = self._judging.ledger.standing()
        confirm = functools.partial(
            self._native.took, len(batch.rows), waited, batch.end, standing, self._filling(batch.end)
        )
        return self._convert(batch.result), confirm

    def _filling(self, end: int) -> tuple[int, int, int]:
        """Samples that were skipped, tried in their places, and repeated there, up to a number."""
        if self._filled is None:
            return 0, 0, 0
        skipped, _, repeated = self._filled
        tried = max(0, end - self._plan_end)
        return skipped + self._judging.skipped, tried, repeated + self._judging.repeated

    def _end(self) -> None:
        if self._judging.repeated:
            self._judging.ledger.repeated(self._judging.repeated)
        self._native.finish(self._gathering.dropped)
        self.close()

    # ---- at work ----

    def _work(self) -> None:
        """Takes what there is, and waits for something to come."""
        while self._takes_more and self._take(waits=not self._tasks):
            continue
        if self._parts and self._parts[0].made is not None and not self._gathering.is_stopped:
            return
        if self._tasks:
            self._wait(looks=self._takes_more)
        elif not (self._parts or self._batches or self._gathering.entries):
            self._all_done()

    @property
    def _takes_more(self) -> bool:
        is_open = not (self._has_ended or self._gathering.is_stopped)
        is_due = not self._fills or self._come < self._due_end
        return is_open and is_due and len(self._parts) + len(self._batches) < self._loader._ahead

    def _take(self, *, waits: bool) -> bool:
        """Takes what the native pipeline has; False if there is nothing now."""
        try:
            part = self._native.part(waits)
        except ClosedError:
            raise
        except Exception as error:
            # Due when all before it was delivered.
            self._error = error
            self._has_ended = True
            return False
        if part is True:
            self._loader._tell()
        elif part is None:
            self._has_ended = True
        elif part is not False:
            self._come_in(part)
        return part is not None and part is not False

    def _all_done(self) -> None:
        """All samples that have come were delivered or judged."""
        if not self._has_ended:
            self._fill()
        elif self._error is not None:
            raise self._error
        else:
            self._gathering.finish(self._come)
            self._send_batches()
            self._is_finished = not (self._batches or self._gathering.entries)

    def _fill(self) -> None:
        """Has samples repeated in the places of those that were left out, so that ranks stay even."""
        self._gathering.decide()
        if self._gathering.entries:
            # How many were left out is known when these are judged.
            return
        skipped, _, repeated = self._filling(self._come)
        more = max(0, min(skipped - repeated, self._length - self._barren))
        self._native.fill(more)
        self._due_end += more
        if more == 0:
            # So that its end is taken.
            self._fills = False

    def _come_in(self, given: _native.Part) -> None:
        rows = [Row(number, *ticket) for number, ticket in zip(given.numbers, given.tickets, strict=True)]
        part = _Part(rows, self._come, given.end, given.remarks)
        self._come = given.end
        self._parts.append(part)
        if not rows:
            part.made = Made()
            return
        columns = {name: _plain(value) for name, value in given.columns}
        if not self._plan.of_samples:
            part.made = Made(Samples(columns, self._plan.kinds, len(rows)).runs(self._plan.layout))
            return
        part.job = self._job(rows, columns, is_of_samples=True)
        self._submit_part(part)

    def _job(self, rows: list[Row], content: Any, *, is_of_samples: bool) -> Job:
        indices, positions = [row.index for row in rows], [row.position for row in rows]
        return Job(rows[0].epoch, indices, positions, is_of_samples, content)

    def _submit_part(self, part: _Part) -> None:
        assert part.job is not None
        if len(part.rows) < self._loader._size and not self._stays:
            self._is_aligned = False
        part.made = part.batch_fault = None
        is_whole = self._is_aligned and bool(self._plan.of_batches) and not part.lost
        part.job.is_whole = is_whole and self._place.may_be_whole
        part.job.dead = frozenset(part.lost)
        self._submit(part, part.job)

    def _submit(self, thing: _Part | Batch, job: Job) -> None:
        thing.task = next(self._loader._numbers)
        self._tasks[thing.task] = thing
        self._place.submit(thing.task, job)

    def _wait(self, *, looks: bool) -> None:
        if not self._tasks:
            return
        # What is wanted first must not wait for memory.
        first = self._batches[0] if self._batches else self._parts[0]
        told = self._place.next(first.task, looks=looks)
        self._loader._tell()
        if told is None:
            # Such as that the source is unavailable.
            self._loader._notices.issue()
            return
        task, came, answer = told
        thing = self._tasks.pop(task, None)
        if thing is None:
            return
        if isinstance(came, GaveUp):
            self._given_up(thing, came)
        elif isinstance(came, Trouble):
            # Not of a function, so of no sample: what was made cannot be sent, say.
            raise came.exception(self._place.where, self._among(thing))
        else:
            self._arrived(thing, came, answer)

    def _among(self, thing: _Part | Batch) -> str:
        shown = ", ".join(str(row.index) for row in itertools.islice(thing.rows, 20))
        return f"\nfeedline: among samples {shown}{'' if len(thing.rows) <= 20 else ', ...'}"

    def _arrived(self, thing: _Part | Batch, made: Made, answer: _native.Answer | None) -> None:
        worker = None if answer is None else answer.post
        if answer is not None:
            slowest, seconds = answer.slowest
            index = thing.rows[min(slowest, len(thing.rows) - 1)].index
            self._judging.ledger.slow(json.dumps(index), seconds, worker, "worker")
        if isinstance(thing, _Part):
            thing.made, thing.worker = made, worker
            return
        bad = [self._judging.bad(one, thing.rows[0], worker) for one in made.bad]
        self._made(thing, made.batch, bad, worker)

    # ---- what kills or hangs ----

    def _given_up(self, thing: _Part | Batch, given_up: GaveUp) -> None:
        """A function kills its worker, or takes longer than it may: that is a fault as any other."""
        deaths = [death for death in self._loader.deaths if given_up.task in death.tasks]
        error: BaseException = died(deaths, "a function kills its worker")
        if given_up.why == "hangs" and deaths:
            error = _overdue(deaths)
        worker = deaths[-1].worker if deaths else None
        if isinstance(thing, Batch):
            fault = self._judging.told(error, thing.rows[0], len(deaths), worker, "worker")
            self._made(thing, None, [fault], worker)
            return
        position = given_up.at
        if position is None:
            # While what it had made was put together: no sample is to blame.
            raise error
        if position >= len(thing.rows):
            # The functions of the batch.
            thing.batch_fault = self._judging.told(error, thing.rows[0], len(deaths), worker, "worker")
            thing.made, thing.worker = Made(is_batch=True), worker
            return
        row = thing.rows[position]
        thing.lost[position] = self._judging.told(error, row, len(deaths), worker, "worker")
        self._submit_part(thing)


def _overdue(deaths: list[Death]) -> FeedlineError:
    last = deaths[-1]
    lines = [f"a function took longer than its deadline: {last}"]
    lines += [f"  code  {frame}" for frame in last.stack[:8]]
    lines += [f"  why   {why}" for why in last.why]
    return DeadlineExceededError.explained(
        "\n".join(lines), last.hint, deaths=tuple(deaths), index=last.index, worker=last.worker
    )


def _plain(column: Any) -> Any:
    """What a function may see, and a worker can be sent."""
    if isinstance(column, _native.Tensor):
        return array_on(column)
    return column.tolist() if isinstance(column, _native.BytesList) else column
