"""One epoch of a loader as the engine decides it, with workers and without: reads the sampler, reports the
results of batches to the engine, keeps the account, and has its front make samples. It decides nothing."""

from __future__ import annotations

import functools
import itertools
import json
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from feedline import errors
from feedline._account import fault_line, json_index
from feedline._native import Action, BadSample, BatchEngine, Fill, Verdict
from feedline._torch.indices import Given, Planned, without
from feedline._workers.remote_error import place
from feedline._workers.retries import PendingFault

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Batch", "Driver"]

_Deliver = Action.Deliver
# What was planned is forgotten this many batches at a time.
_FORGOTTEN = 32


class Batch:
    """A batch that is to be made. Attributes that a batch without faults does not need are class
    attributes: assign a new value, never change one in place."""

    # As the engine counts it.
    planned: int = -1
    # Its first samples are its own; others were taken to fill slots of earlier batches.
    own: int = 0
    size: int = 0
    # By offset: indices of other samples, offsets that samples come from, and what has no sample of its own.
    fills: Mapping[int, Any] = MappingProxyType({})
    moves: Mapping[int, int] = MappingProxyType({})
    left_out: AbstractSet[int] = frozenset()
    given: AbstractSet[int] = frozenset()
    # Samples that were made after some tries, to be reported in order.
    retried: Sequence[PendingFault] = ()
    # What is delivered, and how many samples that are.
    content: Any = None
    samples: int = 0
    is_settled: bool = False

    def __init__(self, number: int, index: Any, worker: int | None = None) -> None:
        """`number` is as messages count it."""
        self.number, self.index, self.worker = number, index, worker

    def sample(self, offset: int, *, is_batched: bool) -> Any:
        """The index of what is made at an offset."""
        if offset in self.fills:
            return self.fills[offset]
        return self.index[self.moves.get(offset, offset)] if is_batched else self.index


B = TypeVar("B", bound=Batch)


class Front(Protocol[B]):
    """Makes batches."""

    def begin_batch(self, number: int, index: Any) -> B:
        """A batch that is not made yet."""

    def order(self, batch: B) -> None:
        """Has a batch made."""

    def remake(self, batch: B) -> None:
        """Has a batch made again with its own samples alone; not at all if there are none."""

    def amend(self, batch: B) -> None:
        """Has a batch completed: what is in it has changed, or is settled."""

    def discard(self, batch: B) -> None:
        """There is nothing to deliver of a batch."""


class Driver(Generic[B]):
    """The engine of an epoch, and what belongs to the numbers that it knows."""

    # Of the class: when the interpreter ends, the names of modules are gone before the last epoch is.
    _now = staticmethod(time.monotonic)

    def __init__(
        self, loader: DataLoader[Any], epoch: _BaseDataLoaderIter, front: Front[B], ahead: int
    ) -> None:
        """Up to `ahead` batches are made at a time."""
        self._account = loader._loader_state.account
        self._loader_state = loader._loader_state
        # Weakly: a loop that is left must end its workers without the garbage collector.
        self._front_of = weakref.ref(front)
        self._ahead = ahead
        self._is_map = epoch._dataset_kind == _DatasetKind.Map
        self._is_batched = epoch._auto_collation
        self._drop_last = bool(epoch._drop_last)
        self._ranks, self._rank = _ranks(loader)
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
        # The number of this epoch. A loader keeps account of its newest pass alone: one that was begun before
        # it and goes on beside it is not counted any more.
        self._number = -1
        self._is_open = False
        self._began = 0.0
        self.has_raised = False

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
        ledger.epoch_started(self._number, None)
        self._began = self._now()
        self._is_open = True
        self.has_raised = False
        self._engine = BatchEngine(
            self._account.rules,
            epoch=self._number,
            drop_last=self._drop_last,
            fill=self.fill,
            has_end=self._has_end,
            ahead=self._ahead,
        )
        self._given = self._read_sampler(sampler)
        self._is_planned = False
        self._planned = Planned(remembers=self._remembers)
        self._batches: dict[int, B] = {}
        self._numbered = 0
        # Batches and errors, in the order in which the consumer gets them.
        self.ready: deque[B | BaseException] = deque()
        self.has_ended = False
        self._dropped = self._repeated = 0
        self._faults: list[tuple[B, PendingFault, Any] | None] = []
        self._too_many: str | None = None

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
            left_out=self._account.ledger.excluded,
            ranks=self._ranks,
        )

    @property
    def _counts(self) -> bool:
        return self._number == self._loader_state.epochs - 1

    def _expect(self, samples: int) -> None:
        if self._counts:
            self._account.ledger.expect(samples)

    # ---- the plan ----

    def next_batch(self) -> B | None:
        """The next batch that is to be made anyway; None if there is none."""
        if self.plans_on_arrival:
            given = next(self._given, None)
            if given is None:
                return None
            index, _, is_short = given
            if is_short and self._drop_last:
                # Nothing fills slots here, so nothing needs its samples.
                self._dropped += len(index)
                self._expect(len(index))
                return None
            return self._begin_batch(index)
        if self._is_planned:
            order = self._engine.order()
        else:
            # Until the engine has asked for the whole plan, each batch that is read is ordered at once.
            size, is_short = self._read()
            order = self._engine.plan_and_order(size, is_short=is_short) if size else None
        return None if order is None else self._ordered(*order)

    def _read(self) -> tuple[int, bool]:
        """Reads a batch more of the sampler. Returns how many samples are to be planned, 0 at its end, and
        whether these are fewer than the sampler gave."""
        given = next(self._given, None)
        if given is None:
            self.plan_ends()
            return 0, False
        index, repeats, is_short = given
        count = len(index)
        # A batch without samples has a slot too, or it would not be delivered.
        size = count or 1
        self._planned.add(index, size)
        if repeats:
            self._repeated += repeats
        if self._number == self._loader_state.epochs - 1:
            self._account.ledger.expect(count - repeats)
        return size, is_short

    def plan_ends(self) -> None:
        """There are no more batches."""
        if not self._is_planned:
            self._is_planned = True
            self._perform(self._engine.plan_ends())

    def _begin_batch(self, index: Any) -> B:
        front = self._front_of()
        assert front is not None, "it calls this"
        batch = front.begin_batch(self._numbered, index if self._is_batched else index[0])
        batch.size = len(index)
        self._numbered += 1
        return batch

    def _ordered(self, planned: int, own: int) -> B:
        batch = self._batches.get(planned)
        if batch is None:
            batch = self._batches[planned] = self._begin_batch(self._planned.batch(planned))
            batch.planned = planned
        else:
            batch.fills, batch.moves, batch.given, batch.retried = {}, {}, frozenset(), ()
        batch.own = own
        if own < batch.size:
            batch.left_out = set(range(own, batch.size))
        return batch

    def _plan_late(self, batch: B, samples: int) -> None:
        """Plans a batch that has come."""
        self._planned.add(batch.index if self._is_batched else [batch.index], samples)
        self._expect(samples)
        order = self._engine.plan_and_order(samples)
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
            missing = sum(1 for one in bad if self._leaves_gap(one))
            size = max(1, batch.size) if self._is_map else samples + missing
            if not size:
                self._front.discard(batch)
                return
            self._plan_late(batch, size)
        faults = self._named(batch, bad) if bad else ()
        self._perform(self._engine.add_result(batch.planned, faults, is_collated))

    def lose(self, batch: B, content: Any = None, fault: PendingFault | None = None) -> None:
        """A batch raised, and the consumer gets the exception when it is its turn. `fault` is the sample that
        raised, if it is known. With a policy the engine judges it and the epoch ends; without a policy the
        epoch continues, as in torch."""
        self.has_raised = True
        batch.content = content
        if batch.planned < 0:
            self._plan_late(batch, 1)
        if fault is None or not self._has_policy:
            self._perform(self._engine.add_result(batch.planned, (), is_collated=True))
            return
        sample, offset = None, 0
        if self._is_map:
            sample, offset = batch.sample(fault.offset, is_batched=self._is_batched), fault.offset
        self._faults.append((batch, fault, sample))
        is_misfit = self._is_map and fault.remote_error.stage == "collate"
        named = BadSample(offset, len(self._faults) - 1, "raise", is_misfit=is_misfit)
        self._perform(self._engine.add_result(batch.planned, [named], is_collated=is_misfit))

    def _named(self, batch: B, bad: Sequence[PendingFault]) -> list[BadSample]:
        batch.retried = [*batch.retried, *(one for one in bad if not one.action)]
        faults = [one for one in bad if one.action]
        if not self._is_map:
            # A sample that an iterator could not give came before the one that is at its offset.
            faults.sort(key=lambda one: one.offset)
        named, gaps = [], 0
        for one in faults:
            sample, offset = None, one.offset
            if self._is_map:
                sample = batch.sample(offset, is_batched=self._is_batched)
            else:
                offset = min(offset, batch.samples) + gaps
                gaps += self._leaves_gap(one)
            self._faults.append((batch, one, sample))
            is_misfit = self._is_map and one.remote_error.stage == "collate"
            fault = len(self._faults) - 1
            named.append(BadSample(offset, fault, self._account.policy_action(one), is_misfit=is_misfit))
        return named

    def _leaves_gap(self, bad: PendingFault) -> bool:
        """Whether nothing is in the place of a bad sample of an iterator."""
        return bad.action == "skip" or (bad.action == "replace" and not self._has_replacement)

    # ---- what the engine decides ----

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            # Nearly all are this, and a match costs more than the rest of it.
            if isinstance(action, _Deliver):
                self.ready.append(self._settled(action.batch))
                continue
            match action:
                case Action.Order(number, samples):
                    self._front.order(self._ordered(number, samples))
                case Action.Remake(number, samples):
                    self._front.remake(self._ordered(number, samples))
                case Action.Amend(number, fills, moves, left_out, given):
                    batch = self._batches.get(number) or self._ordered(number, 0)
                    indices = {offset: self._planned.index(sequence) for offset, sequence in fills.items()}
                    batch.fills, batch.moves, batch.left_out, batch.given = indices, moves, left_out, given
                    self._front.amend(batch)
                case Action.Record(fault, verdict):
                    self._record(fault, verdict)
                case Action.RecordReplacement(fault, by):
                    self._record_replacement(fault, self._planned.index(by))
                case Action.Discard(number):
                    self._front.discard(self._settled(number))
                case Action.ReadPlan():
                    while (planned := self._read())[0]:
                        self._engine.plan(planned[0], is_short=planned[1])
                case Action.End(dropped, repeated):
                    self.has_ended = True
                    self._dropped += dropped
                    self._repeated += repeated
                case _:
                    self.ready.append(self._error(action))

    def _settled(self, planned: int) -> B:
        batch = self._batches.get(planned) or self._ordered(planned, 0)
        del self._batches[planned]
        batch.is_settled = True
        if batch.retried:
            self._report_retried(batch)
        if planned % _FORGOTTEN == 0:
            self._planned.forget(planned)
        return batch

    def _report_retried(self, batch: B) -> None:
        for bad in batch.retried:
            sample = batch.sample(bad.offset, is_batched=self._is_batched) if self._is_map else None
            self._account.ledger.retried(self._line(batch, bad, sample))
        batch.retried = ()

    def _line(self, batch: B, bad: PendingFault, sample: Any) -> str:
        name = None
        if self._is_map:
            bad.path = self._loader_state.samples.path(sample) or bad.path
            name = self._loader_state.samples.name
        return fault_line(bad, sample, epoch=self._number, worker=batch.worker, rank=self._rank, dataset=name)

    def _record(self, fault: int, verdict: Verdict) -> None:
        batch, bad, sample = self._fault(fault)
        self._report_retried(batch)
        line = self._line(batch, bad, sample)
        self._too_many = self._account.ledger.record(bad.names, bad.os_error, line, verdict)
        if verdict.name == "skip":
            self._faults[fault] = None
            if not self._counts:
                # Nobody has expected it.
                self._account.ledger.expect(1)
        elif verdict.name == "substitute":
            self._faults[fault] = None

    def _record_replacement(self, fault: int, by: Any) -> None:
        batch, bad, sample = self._fault(fault)
        self._faults[fault] = None
        self._account.ledger.replaced(self._line(batch, bad, sample), json.dumps(json_index(by)))

    def _fault(self, fault: int) -> tuple[B, PendingFault, Any]:
        found = self._faults[fault]
        assert found is not None, "a fault is judged once"
        return found

    def _error(self, action: Action) -> BaseException:
        """What ends the run."""
        self.has_raised = True
        if isinstance(action, Action.Fail):
            return errors.InternalError.explained(action.message)
        assert isinstance(action, (Action.Raise, Action.NoReplacement))
        batch, bad, sample = self._fault(action.fault)
        if isinstance(action, Action.Raise) and isinstance(batch.content, BaseException):
            return batch.content
        where = place(sample, bad.offset, batch.number, batch.worker, "fetching", bad.path)
        known: dict[str, Any] = {
            "index": sample,
            "batch_offset": bad.offset,
            "batch": batch.number,
            "worker": batch.worker,
            **({} if bad.path is None else {"path": bad.path}),
        }
        cause = bad.remote_error.exception("in a sample", f"\nfeedline: {where}", **known)
        error: BaseException
        if isinstance(action, Action.NoReplacement):
            message = f"{action.tried} samples tried in place of sample {sample} were bad as well"
            error = errors.NoReplacementError.explained(message, **known)
        elif self._too_many is None:
            return cause
        else:
            error = errors.TooManyFaultsError.explained(self._too_many, **known)
        error.__cause__ = cause
        return error

    # ---- the account ----

    def delivery(self, samples: int, waited: float) -> Callable[[], None] | None:
        """What is called when the consumer gets a batch."""
        if self._number != self._loader_state.epochs - 1:
            return None
        # Native: no handler of a signal can raise in it.
        return functools.partial(self._account.ledger.delivered, samples, waited)

    def end(self) -> None:
        """The epoch is over: everything must add up."""
        if not self._is_open or not self._counts:
            return
        self._is_open = False
        ledger = self._account.ledger
        ledger.add_seconds(self._now() - self._began)
        if self.has_raised:
            # What was in a batch that raised is named in the error.
            ledger.epoch_abandoned()
            return
        ledger.set_standing(self._engine)
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
