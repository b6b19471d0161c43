"""One epoch of a loader as the engine decides it, with workers and without: reads the sampler, reports the
results of batches to the engine, keeps the account, and has its front make samples. It decides nothing."""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from feedline import errors
from feedline._native import Action, BatchEngine, Fill
from feedline._torch.batch import Batch
from feedline._torch.fault_records import FaultRecords
from feedline._torch.indices import Given, Planned, without
from feedline._torch.progress import Start
from feedline._torch.sampling import is_stateful
from feedline._workers.retries import PendingFault

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Driver"]

# What was planned is forgotten this many batches at a time.
_FORGOTTEN = 32


B = TypeVar("B", bound=Batch)
Made = TypeVar("Made", bound=Batch, contravariant=True)


class Front(Protocol[Made]):
    """Makes batches."""

    def order(self, batch: Made) -> None:
        """Has a batch made."""

    def remake(self, batch: Made) -> None:
        """Has a batch made again with its own samples alone; not at all if there are none."""

    def amend(self, batch: Made) -> None:
        """Has a batch completed: what is in it has changed, or is settled."""

    def discard(self, batch: Made) -> None:
        """There is nothing to deliver of a batch."""


class Driver(Generic[B]):
    """The engine of an epoch, and what belongs to the numbers that it knows."""

    # Of the class: when the interpreter ends, the names of modules are gone before the last epoch is.
    _now = staticmethod(time.monotonic)

    def __init__(
        self,
        loader: DataLoader[Any],
        epoch: _BaseDataLoaderIter,
        front: Front[B],
        batch_type: Callable[[int, Any, int, int | None], B],
        ahead: int,
    ) -> None:
        """Up to `ahead` batches are made at a time."""
        self._batch_type = batch_type
        self._workers = epoch._num_workers
        self._account = loader._loader_state.account
        self._loader_state = loader._loader_state
        # Weakly: a loop that is left must end its workers without the garbage collector.
        self._front_of = weakref.ref(front)
        self._ahead = ahead
        self._is_map = epoch._dataset_kind == _DatasetKind.Map
        self._is_batched = epoch._auto_collation
        self._is_seeded = loader.seeding == "sample"
        self._drop_last = bool(epoch._drop_last)
        self._ranks, self._rank = _ranks(loader)
        self._progress = loader._loader_state.progress
        epoch._base_seed = self._progress.base_seed(int(epoch._base_seed))
        self._index_sampler = loader._index_sampler
        self._keeps_places = epoch._persistent_workers or epoch._num_workers == 0
        self._excluded = loader._excluded
        policy = loader.faults
        self._has_policy = policy is not None
        self._has_replacement = policy is not None and policy.has_replacement
        # Whether the engine hears of a batch when it has come: how many samples an iterable data set gives is
        # not known before, and if batches are delivered as they come, that is their order.
        self.plans_on_arrival = not (self._is_map and (epoch._num_workers == 0 or loader.in_order))
        self._has_end = not self.plans_on_arrival and _has_length(epoch._index_sampler)
        self.fill = self._fill_of(policy is not None and policy.fill is not False)
        chooses = policy is not None and "replace" in policy._actions() and not policy.has_replacement
        self._remembers = self._is_map and (chooses or self.fill == Fill.FromEndAndRepeat)
        # Whether the place in an epoch is more than a number of batches.
        self.has_places = not self._is_map or is_stateful(loader.dataset) or self.plans_on_arrival
        # The number of this epoch. A loader keeps account of its newest pass alone: one that was begun before
        # it and goes on beside it is not counted any more.
        self._number = self._run = -1
        self._is_open = False
        self._began = 0.0
        self.has_raised = False

    @property
    def number(self) -> int:
        """The number of the epoch."""
        return self._number

    @property
    def _front(self) -> Front[B]:
        front = self._front_of()
        assert front is not None, "it calls this"
        return front

    def _fill_of(self, fills: bool) -> Fill:
        if not fills or not self._has_end:
            return Fill.Never
        return Fill.FromEndAndRepeat if self._ranks > 1 else Fill.FromEnd

    def begin(self, sampler: Iterator[Any]) -> None:
        """An epoch begins, over what the sampler gives, less what is excluded."""
        ledger = self._account.ledger
        ledger.epoch_abandoned()
        self._number = self._loader_state.epochs
        self._loader_state.epochs += 1
        self._loader_state.runs += 1
        self._run = self._loader_state.runs
        start = self._progress.begin(
            self._index_sampler, sampler, self._number, keeps_places=self._keeps_places
        )
        self.start = start
        self._unread: Start | None = start
        self._is_skipping = start.is_resumed
        self._used = 0 if start.position is None else int(start.position[1])
        ledger.epoch_started(self._number, None)
        self._began = self._now()
        self._is_open = True
        self.has_raised = False
        self._engine = BatchEngine(
            self._account.rules,
            ledger,
            epoch=self._number,
            drop_last=self._drop_last,
            fill=self.fill,
            has_end=self._has_end,
            ahead=self._ahead,
            batches=start.batches,
            position=start.position,
        )
        self._progress.opens(self._engine)
        self._sampled = self._read_sampler(self._progress.reader.batches(self._progress.settled_batches))
        self._is_planned = False
        self._planned = Planned(remembers=self._remembers)
        self._batches: dict[int, B] = {}
        self._numbered = start.batches
        # Batches and errors, in the order in which the consumer gets them.
        self.ready: deque[B | BaseException] = deque()
        self.has_ended = False
        self._dropped = self._repeated = 0
        self._faults = FaultRecords(
            self._account,
            self._loader_state.samples,
            epoch=self._number,
            rank=self._rank,
            is_map=self._is_map,
            is_batched=self._is_batched,
            has_replacement=self._has_replacement,
            seed=self._progress.epoch_seed if self._is_seeded else None,
        )

    def _read_sampler(self, sampler: Iterator[Any]) -> Iterator[Given]:
        batches: Iterator[Any] = sampler if self._is_batched else zip(sampler)
        if not self._excluded:
            # Without a policy a worker gets what the sampler gave, whatever that is.
            return zip(
                map(list, batches) if self._has_policy else batches,
                itertools.repeat(0),
                itertools.repeat(False),
            )
        return without(
            batches,
            self._excluded,
            left_out=self._leave_out,
            ranks=self._ranks,
        )

    def _leave_out(self, samples: int) -> None:
        # Those of batches that are skipped were counted by the run that made the state.
        if not self._is_skipping:
            self._account.ledger.excluded(samples)

    def replay_line(self, index: Any, batch: int, *, is_alone: bool) -> str:
        """What to type to make a sample of this epoch again, or its batch unless the sample alone is to
        blame; empty if that is not possible."""
        return self._faults.replay_line(index if is_alone else None, batch)

    @property
    def _counts(self) -> bool:
        return self._run == self._loader_state.runs

    # ---- the plan ----

    def next_batch(self) -> B | None:
        """The next batch that is to be made anyway; None if there is none."""
        if self._unread is not None:
            self._begin_reading()
        if self.plans_on_arrival:
            entry = next(self._sampled, None)
            while entry is not None and self._numbered in self.start.ahead:
                self._numbered += 1
                entry = next(self._sampled, None)
            if entry is None:
                return None
            index, _, is_short = entry
            if is_short and self._drop_last:
                # Nothing fills slots here, so nothing needs its samples.
                self._dropped += len(index)
                if self._counts:
                    self._account.ledger.expect(len(index))
                return None
            return self._begin_batch(index)
        if self._is_planned:
            order = self._engine.order()
        else:
            # Until the engine has asked for the whole plan, each batch that is read is ordered at once.
            read = self._read()
            order = None if read is None else self._engine.plan_and_order(*read)
        return None if order is None else self._ordered(*order)

    def _begin_reading(self) -> None:
        """Reads the sampler for the first time, and skips what the consumer has."""
        start, self._unread = self._unread, None
        assert start is not None
        with self._progress.reading(is_resumed=start.is_resumed):
            if not start.is_resumed:
                return
            self._skip(start)
            # The sampler has drawn its order when it has given something.
            self._sampled = itertools.chain(list(itertools.islice(self._sampled, 1)), self._sampled)
        self._is_skipping = False
        if start.position[1]:
            # Samples of the end of the epoch were used, so the engine must know all of them.
            self._read_all()
            self.plan_ends()

    def _skip(self, start: Start) -> None:
        skipped = start.unbroken if self.plans_on_arrival else start.batches
        if not self._is_map or start.is_positioned:
            self._planned.skip(start.batches, start.slot)
            return
        if self.plans_on_arrival:
            self._numbered = skipped
            self._planned.skip(start.batches, start.slot)
        elif (
            skipped
            and not self._remembers
            and not self._excluded
            and self._progress.reader.skip_quickly(skipped)
        ):
            self._planned.skip(start.batches, start.slot)
            skipped = 0
        for number in range(skipped):
            entry = next(self._sampled, None)
            if entry is None:
                raise errors.StateMismatchError.explained(
                    f"the state is behind {skipped} batches, and the sampler gives {number}",
                    "use the data set and the sampler of the run that made the state",
                )
            if not self.plans_on_arrival:
                self._planned.add(entry[0], len(entry[0]) or 1)
                if number % _FORGOTTEN == 0:
                    self._planned.forget(number)
        if not self.plans_on_arrival and self._planned.samples != start.slot:
            raise errors.StateMismatchError.explained(
                f"the state is behind {start.slot} samples in {start.batches} batches, and the sampler gives "
                f"{self._planned.samples}",
                "use the data set and the sampler of the run that made the state",
            )

    def _read_all(self) -> None:
        while (read := self._read()) is not None:
            self._engine.plan(*read)

    def _read(self) -> tuple[int, int, bool] | None:
        """Reads a batch more of the sampler, None at its end. Returns how many samples are to be planned, how
        many of them are expected, and whether they are fewer than the sampler gave."""
        entry = next(self._sampled, None)
        if entry is None:
            self.plan_ends()
            return None
        index, repeats, is_short = entry
        count = len(index)
        # A batch without samples has a slot too, or it would not be delivered.
        size = count or 1
        self._planned.add(index, size)
        if repeats:
            self._repeated += repeats
        if self._run != self._loader_state.runs:
            return size, 0, is_short
        due = count - repeats
        if self._used:
            # The run that is continued has them from the end of the epoch.
            used = min(self._used, due)
            self._used -= used
            due -= used
        return size, due, is_short

    def plan_ends(self) -> None:
        """There are no more batches."""
        if not self._is_planned:
            self._is_planned = True
            self._perform(self._engine.plan_ends())

    def _begin_batch(self, index: Any) -> B:
        number = self._numbered
        self._numbered += 1
        worker = number % self._workers if self._workers else None
        return self._batch_type(number, index if self._is_batched else index[0], len(index), worker)

    def _ordered(self, planned: int, own: int) -> B:
        batch = self._batches.get(planned)
        if batch is None:
            batch = self._batches[planned] = self._begin_batch(self._planned.batch(planned))
            batch.planned = planned
        else:
            batch.fills, batch.moves, batch.substituted, batch.retried = {}, {}, frozenset(), ()
        batch.own = own
        if own < batch.size:
            batch.left_out = set(range(own, batch.size))
        return batch

    def _plan_late(self, batch: B, samples: int) -> None:
        """Plans a batch that has come."""
        self._planned.add(batch.index if self._is_batched else [batch.index], samples)
        order = self._engine.plan_and_order(samples, samples if self._counts else 0, is_short=False)
        assert order is not None, "it is planned when it has come"
        batch.planned, batch.own = order
        self._batches[batch.planned] = batch

    # ---- results of batches ----

    def add_result(
        self,
        batch: B,
        bad: Sequence[PendingFault] = (),
        *,
        content: Any = None,
        samples: int = 0,
        is_collated: bool = True,
    ) -> None:
        """The result of a batch: the batch itself if it `is_collated`, and its faults."""
        batch.content, batch.samples = content, samples
        if batch.planned < 0:
            missing = sum(1 for one in bad if self._faults.leaves_gap(one))
            size = max(1, batch.size) if self._is_map else samples + missing
            if not size:
                self._front.discard(batch)
                return
            self._plan_late(batch, size)
        faults = self._faults.add_all(batch, bad) if bad else ()
        actions = self._engine.add_result(batch.planned, faults, is_collated)
        if actions is None:
            self.ready.append(self._settled(batch.planned))
        else:
            self._perform(actions)

    def add_raised(self, batch: B, content: Any = None, fault: PendingFault | None = None) -> None:
        """A batch raised, and the consumer gets the exception when it is its turn. `fault` is the sample that
        raised, if it is known. With a policy the engine judges it and the epoch ends; without a policy the
        epoch continues, as in torch."""
        self.has_raised = True
        batch.content = content
        if batch.planned < 0:
            self._plan_late(batch, 1)
        if fault is None or not self._has_policy:
            self.add_result(batch, content=content)
            return
        named = self._faults.add(batch, fault, fault.offset if self._is_map else 0, "raise")
        self._perform(
            self._engine.add_result(batch.planned, [named], is_collated=self._faults.is_misfit(fault)) or ()
        )

    # ---- what the engine decides ----

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Action.Deliver(number):
                    self.ready.append(self._settled(number))
                case Action.Order(number, samples):
                    self._front.order(self._ordered(number, samples))
                case Action.Remake(number, samples):
                    self._front.remake(self._ordered(number, samples))
                case Action.Amend(number, fills, moves, left_out, substituted):
                    batch = self._batches.get(number) or self._ordered(number, 0)
                    indices = {offset: self._planned.index(sequence) for offset, sequence in fills.items()}
                    batch.fills, batch.moves, batch.left_out, batch.substituted = (
                        indices,
                        moves,
                        left_out,
                        substituted,
                    )
                    self._front.amend(batch)
                case Action.Record(fault, verdict):
                    self._faults.record(fault, verdict, is_expected=self._counts)
                case Action.RecordReplacement(fault, by):
                    self._faults.record_replacement(fault, self._planned.index(by))
                case Action.Discard(number):
                    self._front.discard(self._settled(number))
                case Action.ReadPlan():
                    self._read_all()
                case Action.End(dropped, repeated):
                    self.has_ended = True
                    self._dropped += dropped
                    self._repeated += repeated
                case _:
                    self.has_raised = True
                    self.ready.append(self._faults.error(action))

    def _settled(self, planned: int) -> B:
        batch = self._batches.pop(planned, None)
        if batch is None:
            batch = self._ordered(planned, 0)
            del self._batches[planned]
        batch.is_settled = True
        if batch.retried:
            self._faults.report_retried(batch)
        if planned % _FORGOTTEN == 0:
            self._planned.forget(planned)
        return batch

    # ---- the account ----

    def delivery(self, batch: B, waited: float) -> Callable[[], None] | None:
        """What is called when the consumer gets a batch."""
        if self._run != self._loader_state.runs:
            return None
        # Native: no handler of a signal can raise in it.
        if self.has_places:
            self._progress.note(batch)
        return functools.partial(self._engine.delivered, batch.planned, batch.samples, waited)

    def end(self) -> None:
        """The epoch is over: everything must add up."""
        if not self._is_open or not self._counts:
            return
        self._is_open = False
        self._progress.complete()
        ledger = self._account.ledger
        ledger.add_seconds(self._now() - self._began)
        if self.has_raised:
            # What was in a batch that raised is named in the error.
            ledger.epoch_abandoned()
            return
        ledger.set_fault_counts(self._engine)
        ledger.repeated(self._repeated)
        try:
            ledger.epoch_ended(self._dropped)
        finally:
            self._account.notify()

    def leave(self) -> None:
        """The epoch was left before its end. It may be the interpreter that ends: nothing is reported."""
        if self._is_open and self._counts:
            self._is_open = False
            self._account.ledger.add_seconds(self._now() - self._began)
            self._account.ledger.epoch_abandoned()


def _has_length(sampler: Any) -> bool:
    try:
        len(sampler)
    except (TypeError, NotImplementedError):
        return False
    return True


def _ranks(loader: DataLoader[Any]) -> tuple[int, int | None]:
    """How many processes share the epoch, and which of them this is: as the sampler says, or
    torch.distributed."""
    import torch.distributed

    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None), loader.batch_sampler):
        ranks, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
        if isinstance(ranks, int):
            return ranks, rank if isinstance(rank, int) else None
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, None
