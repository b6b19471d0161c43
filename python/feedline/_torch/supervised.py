"""One pass over a loader with workers: batches in the order of the sampler, whatever dies."""

from __future__ import annotations

import functools
import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterDataPipe, MapDataPipe, _utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _sharding_worker_init_fn,
)

from feedline import _native
from feedline._described import described
from feedline._torch.judging import Judging
from feedline._torch.making import Amended
from feedline._torch.worker import LoaderWork
from feedline._workers.crew import Crew, GaveUp, died, load
from feedline._workers.death import Death, Standstill
from feedline._workers.open_files import warn_of_shared_files
from feedline._workers.tries import Bad, Faulty
from feedline._workers.trouble import Trouble, place
from feedline.errors import DeadlineExceededError, FeedlineWarning, NoReplacementError, WorkerStalledWarning
from feedline.faults import hint_for, symptom

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["WithWorkers"]


@dataclass(slots=True)
class _Order:
    """A batch that was asked for."""

    post: int
    index: Any
    batch: int
    # Whether its samples were counted as good, in their turn.
    is_counted: bool = False
    # What stands in the place of bad samples; which of it repeats another sample.
    fills: dict[int, Any] = field(default_factory=dict)
    repeats: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    # Positions whose own sample is not made again: it kills, or was never asked for.
    dead: set[int] = field(default_factory=set)
    # What the journal said when the batch was begun for the first time.
    before: bytes | None = None
    is_taken_apart: bool = False


@dataclass(slots=True)
class _Done:
    """A batch with faults that were judged."""

    batch: Any
    samples: int


class WithWorkers(_native.BatchIterator, _BaseDataLoaderIter):
    """With workers. A signal handler that raises (Ctrl-C) loses no batch."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._in_order = loader.in_order
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 with workers")
        self._ahead = loader.prefetch_factor * self._num_workers
        self._tasks = itertools.count()
        self._shutdown = False
        self._is_fresh = loader._is_fresh
        self._has_policy = loader.faults is not None
        self._kept = loader._kept
        self._deadline = loader.deadline
        self._judging = Judging(loader, self)
        self._account = loader._kept.account
        self._look_for_open_files(loader)
        work = LoaderWork(
            dataset=self._dataset,
            kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=self._collate_fn,
            drop_last=self._drop_last,
            base_seed=int(self._base_seed),
            worker_init_fn=self._init_fn(loader),
            num_workers=self._num_workers,
            shared_seed=self._shared_seed,
            values=loader._is_fresh,
            faults=loader.faults,
            fill=self._judging.fill,
            folders=loader._kept.folders,
        )
        # Called when the batch that was made last is the consumer's.
        self._confirm: Callable[[], None] | None = None
        self._crew: Crew | None = None
        self._crew = Crew(
            work,
            loader._words(),
            fresh=loader._is_fresh,
            name="DataLoader",
            front=self,
            zygote=self._kept.take(),
        )
        self._crew.start()
        self._workers = self._crew.workers
        self._reset(loader, first_iter=True)

    def _look_for_open_files(self, loader: DataLoader[Any]) -> None:
        """Once for each loader. One worker alone has nobody to share an offset with."""
        if self._is_fresh or self._num_workers < 2 or self._kept.has_warned_of_files:
            return
        self._kept.has_warned_of_files = True
        warn_of_shared_files(loader.dataset, "dataset", "worker_init_fn")

    def _init_fn(self, loader: DataLoader[Any]) -> Any:
        if not isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            return loader.worker_init_fn
        return functools.partial(
            _sharding_worker_init_fn, loader.worker_init_fn, self._world_size, self._rank
        )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._sampler_iter = self._judging.begin(self._sampler_iter)
        # Batches that are not delivered yet, by the number of their task, and these numbers in order.
        self._sent: dict[int, _Order] = {}
        self._order: deque[int] = deque()
        # What has come: an answer, a batch whose faults were judged, or an error to be raised.
        self._ready: dict[int, Any] = {}
        # What has come with faults, which are judged when all before them are known.
        self._faulty: dict[int, tuple[Faulty, int]] = {}
        self._active = [True] * self._num_workers
        self._at_hand = [0] * self._num_workers
        self._cycle = itertools.cycle(range(self._num_workers))
        self._batches = 0
        # The first and the last batch that came from the worker of a post.
        self._did: dict[int, tuple[_Order, _Order]] = {}
        self._resuming: dict[int, int] = {}
        if not first_iter:
            assert self._crew is not None
            for post in range(self._num_workers):
                task = next(self._tasks)
                self._resuming[task] = post
                self._crew.submit(task, pickle.dumps(self._shared_seed), post, resume=True)
        for _ in range(self._ahead):
            self._put()

    def _put(self) -> None:
        """Hands the next batch of indices to the worker whose turn it is."""
        assert self._crew is not None
        try:
            index = self._next_index()
        except StopIteration:
            return
        for _ in range(self._num_workers):
            post = next(self._cycle)
            if self._active[post] and (
                self._in_order or self._at_hand[post] < self._ahead // sum(self._active)
            ):
                break
        else:
            return
        task = next(self._tasks)
        repeats = self._judging.expect(index)
        self._sent[task] = _Order(post, index, self._batches, repeats=repeats)
        self._batches += 1
        self._order.append(task)
        self._at_hand[post] += 1
        self._crew.submit(task, pickle.dumps(index, protocol=5), post)

    # ---- what the consumer gets ----

    # Torch's own, with no frame of ours between it and the user's code: its warnings name that.
    _produce = _BaseDataLoaderIter.__next__

    def _next_data(self) -> Any:
        began = time.perf_counter()
        while True:
            # Here, where nothing is lost if a warning is an error.
            self._account.tell()
            self._account.notices.issue()
            task = self._due()
            if task is not None:
                return self._deliver(task, time.perf_counter() - began)
            if not self._order:
                if not self._persistent_workers:
                    self._shutdown_workers()
                self._judging.end()
                self._account.notices.issue()
                raise StopIteration
            if self._crew is None:
                raise RuntimeError("the workers of this iterator were shut down")
            self._wait()

    def _due(self) -> int | None:
        """The task that must be delivered now, if it has come."""
        if not self._in_order and self._ready:
            first: int = next(iter(self._ready))
            self._order.remove(first)
            return first
        while self._order:
            task = self._order[0]
            if task in self._ready:
                return self._order.popleft()
            if task in self._sent and self._active[self._sent[task].post]:
                return None
            # The worker it was given to had nothing more.
            self._order.popleft()
            self._sent.pop(task, None)
        return None

    def _wait(self) -> None:
        assert self._crew is not None
        oldest = self._order[0] if self._in_order else 2**63
        try:
            answer = self._crew.next(oldest, self._timeout or None)
            self._account.tell()
        except FeedlineWarning:
            raise
        except Exception:
            self._shutdown_workers()
            self._judging.leave()
            raise
        if answer is None:
            raise RuntimeError(self._late())
        if isinstance(answer, GaveUp):
            self._given_up(answer)
        else:
            self._arrived(answer)
        if self._faulty:
            self._judge()

    def _arrived(self, answer: _native.Answer) -> None:
        post = self._resuming.pop(answer.task, None)
        if post is not None and answer.kind == "raised":
            raise load(answer).exception(f"in DataLoader worker process {post}", "", exact=False)
        order = self._sent.get(answer.task)
        if order is None:
            # Of an epoch that was left, or of a worker that has nothing more.
            return
        if answer.kind != "exhausted":
            # When it has arrived, not when it is delivered: the worker may be replaced in between.
            self._did[order.post] = (self._did.get(order.post, (order,))[0], order)
        if answer.kind == "exhausted":
            assert self._crew is not None
            self._active[answer.post] = False
            if not self._persistent_workers:
                self._crew.retire(answer.post)
            self._put()
        elif answer.kind == "faulty":
            self._faulty[answer.task] = (load(answer), answer.samples)
        elif answer.kind != "raised" and self._judging.drops(len(order.left_out)):
            self._judging.drop(answer.samples)
            self._remove(answer.task)
        else:
            self._ready[answer.task] = answer
            position, seconds = answer.slowest
            if seconds > self._account.slow_bar:
                self._account.slow(self._sample(order.index, position, "fetching")[0], seconds, order.post)

    def _deliver(self, task: int, waited: float) -> Any:
        come = self._ready.pop(task)
        order = self._sent.pop(task)
        self._at_hand[order.post] -= 1
        self._put()
        if isinstance(come, BaseException):
            # By the policy, or because there is none, this ends the run.
            self._judging.has_raised = True
            self._shutdown_workers()
            self._judging.leave()
            self._account.tell()
            try:
                raise come
            finally:
                # A frame that holds what was raised in it keeps itself alive, and the arenas with it.
                del come
        samples, data = come.samples, come.batch if isinstance(come, _Done) else load(come)
        if isinstance(come, _native.Answer) and come.kind == "raised":
            self._judging.has_raised = True
            raise self._raised(data, order)
        repeats = len(order.repeats)
        self._confirm = self._judging.delivery(samples, waited, repeats=repeats, is_counted=order.is_counted)
        self._account.tell()
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _raised(self, trouble: Trouble, order: _Order) -> BaseException:
        stage = trouble.stage
        if stage == "collating" and trouble.position is not None:
            # It does not fit to the others, so it is the sample that is to be named.
            stage = "fetching"
        sample, position = self._sample(order.index, trouble.position, stage)
        if position in order.fills:
            sample = order.fills[position]
        path = self._path(sample, position)
        where = place(sample, position, order.batch, order.post, stage, path)
        return trouble.exception(
            f"in DataLoader worker process {order.post}",
            f"\nfeedline: {where}",
            # Without a policy what arrives is what torch's own loader would raise.
            exact=self._has_policy,
            index=sample,
            position=position,
            batch=order.batch,
            worker=order.post,
            **({} if path is None else {"path": path}),
        )

    # ---- faults ----

    def _judge(self) -> None:
        """Judges the faults of all batches before which nothing is unknown, in order."""
        if not self._in_order:
            for task in list(self._faulty):
                self._settle(task)
            return
        for task in list(self._order):
            if task in self._faulty:
                if not self._settle(task):
                    return
            elif task in self._ready:
                order = self._sent[task]
                if not order.is_counted:
                    order.is_counted = True
                    self._judging.good(getattr(self._ready[task], "samples", 0))
            elif task in self._sent and self._active[self._sent[task].post]:
                return

    def _settle(self, task: int) -> bool:
        """Judges the faults of a batch. False if what follows must wait: it is not complete, or the run is
        at its end."""
        faulty, samples = self._faulty.pop(task)
        order = self._sent[task]
        order.before = order.before or faulty.before
        for bad in faulty.bad:
            if bad.action:
                self._judging.is_bad(self._sample_of(order, bad.position))
        for bad in faulty.bad:
            sample = self._sample_of(order, bad.position)
            verdict = self._judging.verdict(bad, sample, order.batch, order.post)
            if isinstance(verdict, BaseException):
                self._ready[task] = verdict
                return False
            if verdict == "good":
                continue
            if bad.position in order.repeats:
                # It was to be a second time what was bad: one more was due than was expected.
                order.repeats.discard(bad.position)
                self._judging.expect_more(1)
            if not faulty.is_held:
                continue
            try:
                self._fill(order, bad.position, verdict)
            except NoReplacementError as error:
                self._ready[task] = error
                return False
        if not faulty.is_held:
            self._finish(task, faulty.batch, samples)
            return True
        self._send_again(task)
        return False

    def _sample_of(self, order: _Order, position: int) -> Any:
        """The index of the sample that was made last at a position of a batch."""
        if self._dataset_kind == _DatasetKind.Iterable:
            return None
        if position in order.fills:
            return order.fills[position]
        return order.index[position] if self._auto_collation else order.index

    def _finish(self, task: int, batch: Any, samples: int) -> None:
        order = self._sent[task]
        if batch is not None and self._judging.drops(len(order.left_out)):
            self._judging.drop(samples)
        elif batch is not None:
            self._ready[task] = _Done(batch, samples)
            return
        self._remove(task)

    def _remove(self, task: int) -> None:
        """There is nothing to deliver of a batch."""
        self._order.remove(task)
        order = self._sent.pop(task)
        self._at_hand[order.post] -= 1
        self._put()

    def _fill(self, order: _Order, position: int, verdict: str) -> None:
        """Chooses what stands in the place of a bad sample."""
        order.fills.pop(position, None)
        if verdict == "replace" and self._judging.has_replacement:
            order.given.add(position)
            return
        if verdict == "skip":
            self._catch_up(order)
        found = self._judging.other(order.batch, position, verdict)
        if found is None and self._take_back_last(order):
            found = self._judging.other(order.batch, position, verdict)
        if found is None:
            order.left_out.add(position)
            return
        order.fills[position], is_repeat = found
        if is_repeat:
            order.repeats.add(position)

    def _catch_up(self, asking: _Order) -> None:
        """Asks for all batches that are asked for when this one is delivered, if one of them is to be taken
        from. Whether a batch is taken from before or after it was made decides on its random numbers, and
        must not depend on when faults come."""
        late = asking.batch + self._ahead - self._batches
        if late <= 0 or not self._in_order or not self._judging.ends_within(late):
            return
        for _ in range(late):
            self._put()

    def _take_back_last(self, asking: _Order) -> bool:
        """Takes a sample back from the last batch that was asked for, when all were: which sample fills a
        place must not depend on how far ahead workers are. False if there is no later batch."""
        if not (self._judging.fill and self._in_order and self._order):
            return False
        task = self._order[-1]
        last = self._sent[task]
        if last.batch <= asking.batch:
            return False
        index = list(last.index) if self._auto_collation else [last.index]
        self._judging.spares.append(last.fills.get(len(index) - 1, index[-1]))
        del index[-1]
        self._ready.pop(task, None)
        self._faulty.pop(task, None)
        if self._judging.drop_last:
            self._judging.spares[:0] = index
            index = []
        if not index:
            self._order.pop()
            del self._sent[task]
            self._at_hand[last.post] -= 1
            return True
        # Made anew as if all its places were to be filled: with random numbers that depend on them alone.
        fills = dict(enumerate(index))
        self._sent[task] = _Order(last.post, index, last.batch, fills=fills, dead=set(fills))
        self._send_again(task, is_held=False)
        return True

    def _send_again(self, task: int, *, is_held: bool = True) -> None:
        """Has a batch completed, under a new number in the same place."""
        assert self._crew is not None
        order = self._sent.pop(task)
        another = next(self._tasks)
        self._sent[another] = order
        self._order[self._order.index(task)] = another
        amended = Amended(
            index=order.index if self._auto_collation else [order.index],
            of=task if is_held else -1,
            dead=frozenset(order.dead),
            is_apart=order.is_taken_apart,
            fills=order.fills,
            left_out=frozenset(order.left_out),
            given=frozenset(order.given),
            before=order.before,
            batch=order.batch,
        )
        self._crew.submit(another, pickle.dumps(amended, protocol=5), order.post)

    def _given_up(self, given_up: GaveUp) -> None:
        """A sample kills its worker, or takes longer than it may: that is a fault as any other."""
        order = self._sent.get(given_up.task)
        if order is None or self._crew is None:
            return
        # Of this pass alone: numbers of tasks begin anew with each.
        deaths = [death for death in self._crew.deaths if given_up.task in death.tasks]
        error: BaseException = died(deaths, f"a sample of batch {order.batch} kills its worker")
        if given_up.why == "hangs":
            error = self._overdue(deaths, error)
        names, _ = symptom(error)
        action = self._account.action(names)
        is_map = self._dataset_kind == _DatasetKind.Map
        if given_up.at is None and is_map and action != "raise" and not order.is_taken_apart:
            # The data set makes all samples at once: one at a time, it will be seen which of them it is.
            order.is_taken_apart = True
            order.before = order.before or given_up.journal
            self._send_again(given_up.task)
            return
        if given_up.at is None or not is_map or action == "raise":
            self._ready[given_up.task] = error
            return
        position = int(given_up.at)
        if position not in order.fills:
            order.dead.add(position)
        trouble = Trouble.told(error, position=position, stage="fetching")
        bad = Bad(position, names, None, trouble, None, len(deaths), action)
        self._faulty[given_up.task] = (
            Faulty(None, [bad], is_held=True, before=given_up.journal),
            0,
        )

    def _overdue(self, deaths: list[Death], error: BaseException) -> BaseException:
        if not deaths:
            return error
        last = deaths[-1]
        lines = [f"a sample took longer than its deadline: {last}"]
        lines += [f"  code  {frame}" for frame in last.stack[:8]]
        lines += [f"  why   {why}" for why in last.why]
        return DeadlineExceededError.explained(
            "\n".join(lines), last.hint, deaths=tuple(deaths), index=last.index, worker=last.worker
        )

    # ---- what is known of the workers ----

    def _sample(self, index: Any, position: int | None, stage: str) -> tuple[Any, int | None]:
        """The index of a sample at a position of a batch, as far as it is known."""
        if self._dataset_kind == _DatasetKind.Iterable:
            return None, position
        if not self._auto_collation:
            return index, 0
        if position is None or stage not in ("fetching", "waiting for memory", "waiting for its source"):
            return index, None
        try:
            return index[position], position
        except (LookupError, TypeError):
            return index, None

    def _path(self, sample: Any, position: int | None) -> str | None:
        """The file of one sample of a map-style data set."""
        if position is None or self._dataset_kind == _DatasetKind.Iterable:
            return None
        return self._kept.samples.path(sample)

    def explain(self, death: Death) -> Death:
        for task in death.tasks:
            order = self._sent.get(task)
            if order is not None:
                sample, position = self._sample(order.index, death.position, death.stage)
                if position in order.fills:
                    sample = order.fills[position]
                path = self._path(sample, position)
                hint = hint_for(self._account.policy, death.hint)
                return death.explained(
                    index=sample, path=path, position=position, batch=order.batch, hint=hint
                )
        return death.explained(position=None)

    def died(self, death: Death) -> None:
        self._kept.deaths.append(death)
        self._did.pop(death.worker, None)
        self._account.died(death)
        self._account.tell()
        self._account.notices.died(death, "it is replaced, and its batch is made again")
        self._account.notices.issue()

    def stalled(self, still: Standstill, *, is_reborn: bool) -> None:
        order = None if still.task is None else self._sent.get(still.task)
        where = ""
        if order is not None:
            sample, position = self._sample(order.index, still.position, still.stage)
            path = self._path(sample, position)
            where = place(sample, position, order.batch, None, still.stage, path)
        text = still.words(where, self._deadline)
        name = "zygote_restarted" if is_reborn else "worker_stalled"
        details = {"worker": still.worker, "text": text, "why": text, "stack": list(still.stack)}
        self._account.event(name, details)
        self._account.tell()
        self._account.notices.add(text, WorkerStalledWarning)
        self._account.notices.issue()

    def zygote_event(self, name: str, text: str, *, warns: bool) -> None:
        self._account.event(name, {"text": text, "level": "warning" if warns else "info"})
        self._account.tell()
        if warns:
            self._account.notices.add(text, WorkerStalledWarning)
            self._account.notices.issue()

    def retired(self, told: dict[str, Any]) -> None:
        why = str(told["why"])
        first, last = self._did.pop(told["worker"], (None, None))
        if first is not None and last is not None:
            why += f", between batch {first.batch} and batch {last.batch}"
            if self._dataset_kind == _DatasetKind.Map:
                ends = [
                    self._sample(order.index, position, "fetching")[0]
                    for order, position in ((first, 0), (last, -1))
                ]
                why += f", samples {described(ends[0])} to {described(ends[1])}"
        self._account.event("worker_renewed", {**told, "why": why})

    def noted(self, post: int, name: str, details: dict[str, Any]) -> None:
        self._account.noted(name, details, post)
        # Now: while the source is unavailable, nothing else happens.
        self._account.tell()
        self._account.notices.issue()

    def _late(self) -> str:
        text = f"DataLoader timed out after {self._timeout} seconds"
        task = self._order[0]
        order = self._sent[task]
        post, index, batch = order.post, order.index, order.batch
        assert self._crew is not None
        doing = self._crew.doing(post)
        if doing is None:
            return f"{text}\nfeedline: worker {post}, which has batch {batch}, has not started yet"
        if doing["task"] != task:
            return f"{text}\nfeedline: worker {post} has batch {batch} and is {doing['stage']}"
        sample, position = self._sample(index, doing["position"], doing["stage"])
        where = place(sample, position, batch, post, doing["stage"], self._path(sample, position))
        return f"{text}\nfeedline: it was {doing['stage']} {where}"

    def _shutdown_workers(self) -> None:
        crew, self._crew = self._crew, None
        if crew is None:
            return
        self._shutdown = True
        self._ready.clear()
        self._faulty.clear()
        crew.close(keep_zygote=self._is_fresh)
        if crew.zygote is not None:
            self._kept.put(crew.zygote)

    def __del__(self) -> None:
        if getattr(self, "_crew", None) is not None:
            self._shutdown_workers()
            self._judging.leave()
