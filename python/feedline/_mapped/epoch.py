"""The driver of an epoch with functions: has them called for samples and batches, reports the results to the
engine, and delivers the batches that the engine chooses."""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from feedline import _native
from feedline._mapped.faults import FunctionFaults, Ticket
from feedline._mapped.run_functions import FunctionResult, FunctionTask
from feedline._mapped.samples import SampleColumns
from feedline._mapped.shapes import Shapes
from feedline._mapped.trees import Run, joined, spec_of
from feedline._numpy import array_on
from feedline._workers.pool_reports import lost_task_error
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import PendingFault
from feedline._workers.worker_pool import GaveUp
from feedline.errors import FeedlineWarning

if TYPE_CHECKING:
    from feedline._mapped.loader import MappedLoader

__all__ = ["MappedEpoch"]

T = TypeVar("T")


@dataclass(eq=False)
class _Part:
    """Samples that functions are called for."""

    # Consecutive numbers.
    keys: list[int]
    tickets: list[Ticket]
    # Whether they are a complete batch if none of them is left out.
    may_be_batch: bool
    task: FunctionTask
    # Positions of samples that kill their worker or hang.
    lost: set[int] = field(default_factory=set)
    # What functions of samples made of them, and the offsets of these if some are missing; None while
    # the part was only made as a whole.
    runs: list[Run] | None = None
    good: list[int] | None = None
    # What the functions of batches made of all of them.
    whole: FunctionResult | None = None
    worker: int | None = None
    # Whether the engine has the results.
    is_reported: bool = False
    # Batches that need single samples of this part, which was computed as a whole batch.
    waiting: list[_Batch] = field(default_factory=list)

    def ticket(self, key: int) -> Ticket:
        return self.tickets[key - self.keys[0]]

    def find(self, key: int) -> tuple[Run, int] | None:
        """Where the sample is that functions made; None if it has to be made first."""
        if self.runs is None:
            return None
        offset = key - self.keys[0]
        if self.good is not None:
            wanted, offset = offset, bisect.bisect_left(self.good, offset)
            if self.good[offset : offset + 1] != [wanted]:
                return None
        for run in self.runs:
            if offset < run.count:
                return run, offset
            offset -= run.count
        return None


@dataclass(eq=False)
class _Batch:
    """A batch for which batch functions are called."""

    number: int
    keys: list[int]
    tickets: list[Ticket]


class MappedEpoch(_native.BatchIterator, Generic[T]):
    """The batches of one epoch. A signal handler that raises (Ctrl-C) loses none of them."""

    def __init__(self, loader: MappedLoader, native: _native.Epoch, convert: Callable[[Any], T]) -> None:
        # Keeps the loader alive: it owns the workers.
        self._loader = loader
        self._native = native
        self._convert = convert
        self._backend = loader._backend
        self._plan = loader._plan
        self._faults = FunctionFaults(loader._native, native, self._backend.where)
        self._shapes = Shapes(native)
        # A batch that is ready and not delivered yet, and the function to call when it is delivered.
        self._held: list[tuple[T, Callable[[], None]]] = []
        self._confirm: Callable[[], None] | None = None
        self._ready: deque[tuple[_native.Deliver, Any]] = deque()
        # The part or batch of each task.
        self._tasks: dict[int, _Part | _Batch] = {}
        # The part of each sample that was made and is needed, by key.
        self._parts: dict[int, _Part] = {}
        # Batches that were finished, by their first key.
        self._finished: dict[int, Any] = {}
        # Whether each part is exactly one batch, because no sample was left out so far.
        self._is_fixed = native.has_fixed_batches
        self._is_aligned = not self._plan.filters
        self._error: BaseException | None = None
        self._has_ended = False
        self._is_over = False

    if TYPE_CHECKING:

        def __next__(self) -> T: ...

    def _produce(self) -> T:
        if not self._held and not self._is_over:
            self._held += self._next()
        # The batch stays in `_held` if this raises a warning as an error.
        self._loader._events.notices.issue()
        if self._held:
            batch, self._confirm = self._held.pop()
            return batch
        raise StopIteration

    def _next(self) -> list[tuple[T, Callable[[], None]]]:
        """The next batch; none at the end."""
        began = time.perf_counter()
        try:
            while not self._ready:
                if self._error is not None:
                    raise self._error
                if self._has_ended:
                    self._native.finish()
                    self.close()
                    return []
                self._work()
            deliver, batch = self._ready.popleft()
            waited = time.perf_counter() - began
            self._backend.delivered(waited)
            return [(self._convert(batch), functools.partial(self._native.took, deliver, waited))]
        except (FeedlineWarning, _native.Interrupted):
            # Nothing was delivered: the next call continues.
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._loader._events.notify()

    def close(self) -> None:
        """Abandons the epoch."""
        if not self._is_over:
            self._is_over = True
            self._backend.forget()
            self._ready.clear()
            self._tasks.clear()
            self._parts.clear()
            self._finished.clear()
            self._native.close()
            self._loader._events.notify()

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            self.close()

    # ---- instructions of the engine ----

    def _work(self) -> None:
        """Follows the engine's next instruction, or waits for a result."""
        instruction = self._native.instruction(takes_parts=self._has_room, wait=not self._tasks)
        if instruction is not None:
            self._follow(instruction)
        elif self._tasks:
            self._wait()
        else:
            self._loader._events.notify()
            self._loader._events.notices.issue()

    @property
    def _has_room(self) -> bool:
        """Whether another part may be taken. Finished samples that wait for the rest of their batch count
        too, since they take memory. If no task is running, the rest may be in the next part: a sample that
        fills a slot comes from the end of the epoch."""
        finished = len(self._parts) // self._loader._size
        return not self._tasks or len(self._tasks) + finished < self._loader._ahead

    def _follow(self, instruction: Any) -> None:
        if isinstance(instruction, _native.Part):
            self._begin(instruction)
        elif isinstance(instruction, _native.Finish):
            keys = instruction.keys
            self._finish(_Batch(instruction.number, keys, [self._parts[key].ticket(key) for key in keys]))
        elif isinstance(instruction, _native.Deliver):
            self._deliver(instruction)
        elif isinstance(instruction, _native.Forget):
            for key in instruction.keys:
                self._parts.pop(key, None)
        elif isinstance(instruction, _native.Stop):
            self._error = self._faults.error(instruction)
        else:
            self._has_ended = True

    def _begin(self, given: _native.Part) -> None:
        columns = {name: _plain(value) for name, value in given.columns}
        # Each look at an attribute makes the list anew.
        tickets = given.tickets
        task = self._task(tickets, columns, is_of_samples=True)
        part = _Part(given.keys, tickets, given.may_be_batch, task)
        if self._plan.of_samples:
            self._submit_part(part)
        else:
            runs = SampleColumns(columns, self._plan.kinds, len(part.keys)).runs(self._plan.layout)
            self._report_part(part, FunctionResult(runs))

    def _deliver(self, deliver: _native.Deliver) -> None:
        keys = deliver.keys
        if self._plan.of_batches:
            batch = self._finished.pop(keys[0])
        else:
            batch = joined(self._runs(keys), self._plan.layout)
        for key in keys:
            del self._parts[key]
        self._ready.append((deliver, batch))

    def _runs(self, keys: list[int]) -> list[Run]:
        """The samples of a batch, in as few runs as they lie side by side."""
        part = self._parts[keys[0]]
        if part.runs is not None and part.keys == keys:
            # Most batches are parts as they were handed over.
            return part.runs
        runs: list[Run] = []
        run, start, stop = None, 0, 0
        for key in keys:
            found = self._parts[key].find(key)
            assert found is not None, "it was made, or the batch would not be complete"
            if found[0] is run and found[1] == stop:
                stop += 1
                continue
            if run is not None:
                runs.append(run.rows(start, stop))
            run, start = found
            stop = start + 1
        if run is not None:
            runs.append(run.rows(start, stop))
        return runs

    # ---- functions of batches ----

    def _finish(self, batch: _Batch) -> None:
        """Has the functions of batches called, unless they were called together with those of the samples."""
        first = self._parts[batch.keys[0]]
        if first.whole is not None and first.keys == batch.keys:
            self._report_batch(batch, first.whole, first.worker)
            return
        if not self._is_fixed:
            # A sample was left out: from now on batches and parts have different samples.
            self._is_aligned = False
        missing = {part for key in batch.keys if (part := self._parts[key]).find(key) is None}
        for part in missing:
            if not part.waiting:
                self._submit_part(part)
            if batch not in part.waiting:
                part.waiting.append(batch)
        if not missing:
            columns = joined(self._runs(batch.keys), self._plan.layout)
            self._submit(batch, self._task(batch.tickets, columns, is_of_samples=False))

    def _report_batch(self, batch: _Batch, result: FunctionResult, worker: int | None) -> None:
        count = len(batch.keys)
        faults = [bad for bad in result.bad if not result.is_of_samples(bad, count)]
        self._finished[batch.keys[0]] = result.batch
        self._report_batch_faults(batch, faults, worker)

    def _report_batch_faults(self, batch: _Batch, faults: list[PendingFault], worker: int | None) -> None:
        """Reports faults of batch functions: a fault counts for all samples of the batch, a successful retry
        only once."""
        samples = list(zip(batch.keys, batch.tickets, strict=True))
        reported = [
            (fault, key, ticket)
            for fault in faults
            for key, ticket in (samples[:1] if fault.is_fixed else samples)
        ]
        if any(not fault.is_fixed for fault in faults):
            del self._finished[batch.keys[0]]
        self._faults.report_batch(batch.number, reported, worker)
        self._native.advance()

    # ---- tasks ----

    def _task(self, tickets: list[Ticket], content: Any, *, is_of_samples: bool) -> FunctionTask:
        indices, positions = [index for *_, index in tickets], [position for position, *_ in tickets]
        return FunctionTask(tickets[0][1], indices, positions, is_of_samples, content)

    def _submit_part(self, part: _Part) -> None:
        is_whole = part.may_be_batch and (self._is_fixed or self._is_aligned) and bool(self._plan.of_batches)
        part.task.is_whole = is_whole and not (part.lost or part.is_reported) and self._backend.may_be_whole
        part.task.dead = frozenset(part.lost)
        self._submit(part, part.task)

    def _submit(self, unit: _Part | _Batch, task: FunctionTask) -> None:
        number = next(self._loader._numbers)
        self._tasks[number] = unit
        self._backend.submit(number, task)

    def _wait(self) -> None:
        # The task that is needed first must not wait for memory.
        urgent = (number for number, unit in self._tasks.items() if not getattr(unit, "may_be_batch", False))
        received = self._backend.next(next(urgent, next(iter(self._tasks))), polls=True)
        self._loader._events.notify()
        if received is None:
            # There may be a warning, such as that the source is unavailable.
            self._loader._events.notices.issue()
            return
        number, result, raw = received
        unit = self._tasks.pop(number, None)
        if unit is None:
            return
        if isinstance(result, GaveUp):
            self._given_up(unit, result)
        elif isinstance(result, RemoteError):
            # Not raised by a function, so no sample is at fault: the result cannot be sent, for example.
            raise result.exception(self._backend.where, _among(unit))
        else:
            self._receive(unit, result, raw)

    def _receive(self, unit: _Part | _Batch, result: FunctionResult, raw: _native.TaskResult | None) -> None:
        worker = None if raw is None else raw.worker_id
        if raw is not None:
            slowest, seconds = raw.slowest
            ledger = self._loader._native.ledger
            if ledger.is_slow(seconds):
                index = unit.tickets[min(slowest, len(unit.tickets) - 1)][2]
                ledger.slow(json.dumps(index), seconds, worker, "worker")
        if isinstance(unit, _Batch):
            self._report_batch(unit, result, worker)
            return
        unit.worker = worker
        if unit.is_reported:
            self._recomputed(unit, result)
        else:
            self._report_part(unit, result)

    def _report_part(self, part: _Part, result: FunctionResult) -> None:
        """Reports the results of the sample functions to the engine."""
        part.is_reported = True
        count = len(part.keys)
        for bad in result.bad:
            if result.is_of_samples(bad, count):
                key, ticket = part.keys[bad.offset], part.tickets[bad.offset]
                self._faults.report(bad, part.worker, key, ticket)
        if result.left_out:
            self._native.filtered([part.keys[offset] for offset in result.left_out])
        keys = part.keys if result.good is None else [part.keys[offset] for offset in result.good]
        self._parts.update(dict.fromkeys(keys, part))
        if result.is_batch:
            part.whole = result
            self._native.good(keys, self._shapes.number(result.spec))
        else:
            part.runs, part.good = result.runs, result.good
        start = 0
        for run in result.runs:
            good = keys[start : start + run.count]
            start += run.count
            self._native.good(good, self._shapes.number(spec_of(run, self._plan.layout)))
        self._native.advance()

    def _recomputed(self, part: _Part, result: FunctionResult) -> None:
        """Takes the single samples of a part that was computed as a whole batch before, for batches that mix
        them with samples of other parts."""
        part.runs, part.good = result.runs, result.good
        lost = {part.keys[bad.offset]: bad for bad in result.bad if not bad.is_fixed}
        waiting, part.waiting = part.waiting, []
        for batch in waiting:
            # Samples that were good the first time may fail now.
            reported = [
                (lost[key], key, ticket)
                for key, ticket in zip(batch.keys, batch.tickets, strict=True)
                if key in lost
            ]
            if reported:
                self._faults.report_batch(batch.number, reported, part.worker)
                self._native.advance()
            else:
                self._finish(batch)

    # ---- functions that kill their worker or hang ----

    def _given_up(self, unit: _Part | _Batch, given_up: GaveUp) -> None:
        """Reports a function that kills its worker or exceeds its deadline, as a fault like any other."""
        deaths = [death for death in self._loader.deaths if given_up.task in death.tasks]
        error = lost_task_error(deaths, given_up.why, "a function")
        worker = deaths[-1].worker if deaths else None
        fault = PendingFault.of_error(error, None, "worker", len(deaths))
        if isinstance(unit, _Batch):
            self._finished[unit.keys[0]] = None
            self._report_batch_faults(unit, [fault], worker)
            return
        offset = given_up.offset
        if offset is None:
            # The worker died while it collated the results: no sample is to blame.
            raise error
        if offset >= len(unit.keys):
            # The batch functions are at fault: call them separately, so that the fault is theirs.
            unit.may_be_batch = False
        else:
            self._faults.report(fault, worker, unit.keys[offset], unit.tickets[offset])
            unit.lost.add(offset)
            self._native.advance()
        self._submit_part(unit)


def _among(unit: _Part | _Batch) -> str:
    shown = ", ".join(str(index) for *_, index in itertools.islice(unit.tickets, 20))
    return f"\nfeedline: among samples {shown}{'' if len(unit.tickets) <= 20 else ', ...'}"


def _plain(column: Any) -> Any:
    """A column as plain NumPy arrays and lists, which functions take and pickle can send."""
    if isinstance(column, _native.Tensor):
        return array_on(column)
    return column.tolist() if isinstance(column, _native.BytesList) else column
