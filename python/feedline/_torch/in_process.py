"""One epoch of a loader without workers, which runs in the trainer: for debugging."""

from __future__ import annotations

import functools
import inspect
import operator
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from feedline import _native
from feedline._native import call_interruptibly
from feedline._torch.batch import Batch
from feedline._torch.batch_maker import (
    ConsecutiveFailures,
    SampleLoader,
    UnequalSamples,
    is_list_of,
    is_within_limit,
)
from feedline._torch.collatable import CollateCheck
from feedline._torch.dataset_state import DatasetTracker, restore
from feedline._torch.driver import Driver
from feedline._torch.progress import Progress
from feedline._torch.random_state import GeneratorStates
from feedline._torch.seeding import SampleSeeding, SeededDataset
from feedline._workers.remote_error import RemoteError, place
from feedline._workers.retries import BAD, PendingFault, Retries
from feedline._workers.shortage import ShortagesMet, step_back
from feedline.faults import explain_shortage

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["InProcess"]


class _StartedBatch(Batch):
    """A batch whose loading has started. Samples that were loaded before a signal interrupts are kept."""

    # Whether its own samples are loaded; also True if they cannot be told apart.
    is_loaded: bool = False
    # Offsets at which other samples have to be loaded.
    open: AbstractSet[int] = frozenset()
    # How many samples of an iterable data set it should have.
    target: int = 0
    # How often the machine was short of something since this many samples were loaded.
    steps_back: int = 0
    loaded_before: int = 0

    def __init__(self, number: int, index: Any, size: int, worker: int | None) -> None:
        self.number, self.index, self.size, self.worker = number, index, size, worker
        self.loaded: list[Any] = []


class _Interruptible:
    """A data set whose code signal handlers may interrupt: the sample is then loaded again."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = functools.partial(call_interruptibly, dataset.__getitems__)

    def __getitem__(self, index: Any) -> Any:
        return call_interruptibly(operator.getitem, self._dataset, index)


class InProcess(_native.BatchIterator, _SingleProcessDataLoaderIter):
    """The iterator of a loader without workers. Errors pass unchanged, with a note that names the sample."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._driver: Driver[_StartedBatch] = Driver(loader, self, self, _StartedBatch, ahead=1)
        self._driver.begin(self._sampler_iter)
        self._num_yielded = self._driver.start.batches
        # The place in a data set that has one, and how many samples were drawn from its iterator.
        self._tracker = DatasetTracker(loader._snapshot_every)
        self._drawn = 0
        self._samples = loader._loader_state.samples
        self._account = loader._loader_state.account
        self._shortages = ShortagesMet()
        if self._driver.start.is_resumed and self._driver.has_places:
            self._go_to_place(loader._loader_state.progress)
        self._seeding: SampleSeeding | None = None
        if loader.seeding == "sample":
            self._seeding = SampleSeeding(int(self._base_seed), self._driver.number)
            self._dataset_fetcher.dataset = SeededDataset(self._dataset, self._seeding)
        self._maker = self._make_maker(loader)
        self._failures: ConsecutiveFailures | None = None
        if loader.faults is not None and self._dataset_kind == _DatasetKind.Iterable:
            self._failures = ConsecutiveFailures(self._dataset_fetcher.dataset_iter, loader.faults)
        self._fills_batches = loader.faults is None or loader.faults.fill is not False
        self._fitting = CollateCheck(self._collate_fn, GeneratorStates())
        # A batch that is ready and not delivered yet, and the function to call when it is delivered.
        self._ready: tuple[Any] | None = None
        self._confirm: Callable[[], None] | None = None
        # The batch that is being loaded.
        self._current: _StartedBatch | None = None
        self._key = 0
        # A generator must not be interrupted: it ends if something is raised in it, and its samples are lost.
        fetched = getattr(self._dataset_fetcher, "dataset_iter", None)
        self._pull: Callable[..., Any] = functools.partial(call_interruptibly, next)
        if inspect.isgenerator(fetched):
            self._pull = next
        # The offset of the sample that raised, and the indices of all samples of its batch.
        self._offset: int | None = None
        self._indices: Any = None
        self._stage = "fetching"

    def _go_to_place(self, progress: Progress) -> None:
        place = progress.place
        if place is None:
            return
        self._tracker.begin(place)
        self._drawn = place.drawn
        if self._dataset_kind == _DatasetKind.Iterable:
            began = time.monotonic()
            fetcher = self._dataset_fetcher
            with progress.reading(is_resumed=True):
                fetcher.dataset_iter = restore(self._dataset, fetcher.dataset_iter, place, lambda _: None)
            self._account.slow_resume(time.monotonic() - began, place.drawn - place.state_drawn)

    def _make_maker(self, loader: DataLoader[Any]) -> SampleLoader | None:
        policy = loader.faults
        if policy is None:
            return None
        pause = functools.partial(call_interruptibly, time.sleep)
        seed, folders = int(self._base_seed), loader._loader_state.folders
        retries = Retries(policy, seed=seed, pause=pause, notify=self._noted, folders=folders)
        return SampleLoader(
            _Interruptible(self._dataset_fetcher.dataset if self._seeding else self._dataset),
            retries,
            policy.replacement if policy.has_replacement else BAD,
        )

    def _noted(self, name: str, details: dict[str, Any]) -> None:
        if not self._shortages.is_news(name, details):
            return
        self._account.source_event(name, details)
        # Now: while the source is unavailable, no batch is delivered.
        self._account.notify()
        self._account.notices.issue(is_safe=False)

    # Torch's own method: without a frame of Feedline in between, its warnings point at the user's code.
    _produce = _SingleProcessDataLoaderIter.__next__

    def _next_data(self) -> Any:
        if self._ready is None:
            self._ready = (self._next_batch(),)
        # The batch stays in `_ready` if this raises a warning as an error.
        self._account.notices.issue()
        (data,), self._ready = self._ready, None
        return data

    def _next_batch(self) -> Any:
        began = time.perf_counter()
        driver = self._driver
        fetch = self._fetch if self._seeding is None else self._fetch_apart
        try:
            while not driver.ready:
                if self._current is None:
                    batch = driver.next_batch()
                    # At the end of the plan the driver may have started one itself.
                    self._current = self._current or batch
                if self._current is None:
                    raise _End
                fetch(self._current)
                if self._current.is_settled:
                    self._current = None
        except _native.Interrupted:
            # The next call continues with this batch.
            raise
        except _End:
            self._current = None
            driver.plan_ends()
            driver.end()
            self._account.notices.issue()
            raise StopIteration from None
        except BaseException as raised:
            self._lose(raised)
            raise
        finally:
            self._account.notify()
        ready = driver.ready.popleft()
        if isinstance(ready, BaseException):
            self._current = None
            # `from`, so that its own cause is kept.
            raise ready from ready.__cause__
        if driver.has_places:
            fetcher = self._dataset_fetcher
            iterator = getattr(fetcher, "dataset_iter", None)
            has_ended = bool(getattr(fetcher, "ended", False))
            ready.place = self._tracker.place(self._dataset, iterator, self._drawn, has_ended=has_ended)
        self._confirm = driver.delivery(ready, time.perf_counter() - began)
        data, ready.content = ready.content, None
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _lose(self, raised: BaseException) -> None:
        """A batch raised, and the consumer gets the exception now. With a policy, the sample that raised is a
        fault like any other."""
        current, self._current = self._current, None
        self._driver.has_raised = True
        if current is None:
            return
        fault, offset = None, self._offset
        if offset is None and self._dataset_kind == _DatasetKind.Iterable:
            # Its samples have no index; all of the batch are lost with the one that raised.
            offset = 0
        if self._maker is not None and offset is not None and isinstance(raised, (Exception, SystemExit)):
            sent = RemoteError.of(raised, offset=offset, stage=self._stage)
            fault = PendingFault.raised(raised, sent, offset, None)
        self._driver.add_raised(current, fault=fault)
        self._driver.ready.clear()
        if fault is not None:
            self._driver.leave()

    # ---- called by the driver ----

    def order(self, batch: _StartedBatch) -> None:
        """Does nothing: one batch is loaded at a time, when it is needed."""

    def remake(self, batch: _StartedBatch) -> None:
        """Does nothing: no later batch was ordered."""

    def amend(self, batch: _StartedBatch) -> None:
        if not batch.loaded:
            batch.loaded, batch.is_loaded = [BAD] * batch.size, True
        for offset, source in batch.moves.items():
            if batch.loaded[offset] is BAD:
                batch.loaded[offset], batch.loaded[source] = batch.loaded[source], BAD
        batch.open = frozenset(offset for offset in batch.fills if batch.loaded[offset] is BAD)
        # A batch without samples of its own was not ordered before.
        self._current = batch

    def discard(self, batch: _StartedBatch) -> None:
        batch.is_settled = True

    # ---- loading ----

    def _steps_back(self, raised: BaseException, current: _StartedBatch) -> bool:
        """Whether a batch is to be loaded on: if the machine is short of memory, threads or descriptors, what
        can be spared is given back first. With a policy, `Retries` does so."""
        if self._maker is not None or self._dataset_kind != _DatasetKind.Map:
            # An iterator that has raised may be at its end.
            return False
        if len(current.loaded) > current.loaded_before:
            current.steps_back, current.loaded_before = 0, len(current.loaded)
        pause = functools.partial(call_interruptibly, time.sleep)
        if not isinstance(raised, Exception) or not step_back(raised, current.steps_back, pause, self._noted):
            return False
        current.steps_back += 1
        return True

    def _fetch_apart(self, current: _StartedBatch) -> None:
        """Loads a batch whose samples have random numbers of their own."""
        assert self._seeding is not None
        with self._seeding.apart():
            self._seeding.note_batch(current.index)
            self._fetch(current)

    def _fetch(self, current: _StartedBatch) -> None:
        """Loads the missing samples of a batch, and reports the result to the driver. If it reports none, as
        the machine is short of something, the rest is to be loaded by another call."""
        index = current.index
        walk: Any = None
        self._offset = None
        self._indices = index
        self._stage = "fetching"
        self._key = current.number
        fetcher = self._dataset_fetcher
        try:
            dataset = fetcher.dataset
            if self._dataset_kind != _DatasetKind.Map:
                self._draw_batch(current)
                return
            if self._maker is not None:
                self._make(self._maker, current)
                return
            if not fetcher.auto_collation:
                samples = call_interruptibly(operator.getitem, dataset, index)
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = call_interruptibly(dataset.__getitems__, index)
            else:
                self._indices = index = current.index = list(index)
                # Samples that were loaded before a signal are kept.
                samples = current.loaded
                walk = iter(index[len(samples) :])
                call_interruptibly(_get_all, dataset, walk, samples)
                walk = None
            count = len(samples) if fetcher.auto_collation else 1
            self._driver.add_result(current, content=self._collate(samples), samples=count)
        except (_End, _native.Interrupted):
            raise
        except StopIteration as raised:
            where = self._note(raised, walk)
            message = f"StopIteration was raised {where}; it would have ended the epoch silently"
            raise RuntimeError(message) from raised
        except BaseException as raised:
            if not self._steps_back(raised, current):
                self._note(raised, walk)
                raise

    def _collated(self, samples: Any) -> Any:
        self._stage = "collating"
        self._offset = None
        if self._seeding is not None:
            self._seeding.begin_batch()
        batch = call_interruptibly(self._dataset_fetcher.collate_fn, samples)
        if self._fitting.memory is None and self._auto_collation:
            self._fitting.remember(samples)
        return batch

    def _collate(self, samples: Any) -> Any:
        """Collates a batch without a policy. If that fails, the exception names the samples that are the
        cause."""
        try:
            return self._collated(samples)
        except Exception as raised:
            is_map = self._dataset_kind == _DatasetKind.Map
            has_index = self._auto_collation and (not is_map or len(samples) == len(self._indices))
            if has_index and isinstance(samples, (list, tuple)):
                misfits = UnequalSamples.found(raised, list(samples), self._fitting, self._index_at).misfits
                self._offset = misfits[0].offset if misfits else None
            raise

    def _index_at(self, offset: int) -> Any:
        return self._indices[offset] if self._dataset_kind == _DatasetKind.Map else None

    def _fitted(self, maker: SampleLoader, samples: list[Any]) -> Any:
        """Collates the good samples. BAD if some of them do not fit the others and the policy does not raise:
        these are then BAD in `samples`, unless a retry or the user's replacement gave others."""
        odd: UnequalSamples | None = None
        try:
            return self._collated([sample for sample in samples if sample is not BAD])
        except Exception as raised:
            odd = UnequalSamples.found(raised, samples, self._fitting, self._index_at)
            if not odd.misfits:
                raise
            self._offset = odd.misfits[0].offset
            is_map = self._dataset_kind == _DatasetKind.Map
            maker.refit(odd, self._fitting, self._key, self._again if is_map else None)
            self._offset = None
        finally:
            # Breaks a cycle: the frames of the exception refer to this variable.
            del odd
        return BAD

    def _again(self, offset: int) -> Any:
        """Loads the sample of an offset again."""
        assert self._maker is not None
        return self._maker.get(self._indices[self._reach(offset)])

    def _make(self, maker: SampleLoader, current: _StartedBatch) -> None:
        """Loads the missing samples of a batch. If none of them is bad, the batch is collated."""
        indices = list(current.index) if self._auto_collation else [current.index]
        samples = current.loaded
        if not current.is_loaded:
            if not samples and self._auto_collation:
                together: Any = maker.together(indices[: current.own])
                if together is not None and not is_list_of(together, current.own):
                    # `__getitems__` returned a batch, in which samples cannot be told apart.
                    self._driver.add_result(current, content=self._collate(together), samples=len(together))
                    return
                samples += together or []
            missing = indices[len(samples) : current.own]
            maker.make(missing, lambda: self._reach(len(samples)), current.number, samples)
            samples += [BAD] * (current.size - current.own)
            current.is_loaded = True
        self._indices = indices = [
            current.sample(offset, is_batched=self._auto_collation) for offset in range(current.size)
        ]
        for offset in sorted(current.open):
            where = functools.partial(self._reach, offset)
            (samples[offset],) = maker.make([indices[offset]], where, current.number, [])
            current.open -= {offset}
        content: Any = BAD
        if not any(bad.action for bad in maker.retries.bad):
            content = self._fitted(maker, samples) if self._auto_collation else self._collated(samples[0])
        good = sum(sample is not BAD for sample in samples)
        bad = maker.retries.take()
        self._driver.add_result(current, bad, content=content, samples=good, is_collated=content is not BAD)

    def _reach(self, offset: int) -> int:
        """Sets the offset for the case that something is raised, and returns it."""
        self._offset = offset
        return offset

    def _draw_batch(self, current: _StartedBatch) -> None:
        """Draws the next batch of an iterable data set; raises `_End` at its end."""
        fetcher, samples = self._dataset_fetcher, current.loaded
        if not current.is_loaded:
            current.target = current.size
            # Set before drawing, since that may be interrupted and continued.
            current.is_loaded = True
        content: Any = BAD
        while content is BAD and self._draw(current):
            if not fetcher.auto_collation:
                content = self._collate(samples[0])
            elif self._maker is None:
                content = self._collate(samples)
            else:
                content = self._fitted(self._maker, samples)
                current.target -= 0 if self._fills_batches else sum(sample is BAD for sample in samples)
                samples[:] = [sample for sample in samples if sample is not BAD]
        bad = [] if self._maker is None else self._maker.retries.take()
        if content is BAD and not any(fault.action for fault in bad) and fetcher.ended:
            raise _End
        self._driver.add_result(current, bad, content=content, samples=0 if content is BAD else len(samples))

    def _draw(self, current: _StartedBatch) -> bool:
        """Fills a batch from the iterator. False if there is nothing to collate."""
        fetcher, samples = self._dataset_fetcher, current.loaded
        while len(samples) < current.target and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            if sample is _End:
                fetcher.ended = True
            elif sample is not BAD:
                samples.append(sample)
            elif not self._may_continue():
                break
            elif not self._fills_batches and fetcher.auto_collation:
                current.target -= 1
        if fetcher.ended and len(samples) < current.target and fetcher.drop_last:
            samples.clear()
        return bool(samples)

    def _may_continue(self) -> bool:
        """Whether the iterator may be called again after a fault."""
        maker, policy = self._maker, self._account.policy
        return maker is None or is_within_limit(policy, len(maker.retries.bad))

    def _next(self, iterator: Any, offset: int) -> Any:
        """The next sample of an iterable data set; BAD for one that fails, unless the policy raises."""
        self._drawn += 1
        if self._maker is None or self._failures is None:
            return self._pull(iterator, _End)
        try:
            sample = self._pull(iterator, _End)
        except (Exception, SystemExit) as raised:
            failed = raised
            self._failures.add(failed)
            return self._maker.retry(failed, lambda: self._next_again(iterator, failed), offset, self._key)
        self._failures.reset()
        return sample

    def _next_again(self, iterator: Any, failed: BaseException) -> Any:
        """A retry. At the end of the iterator there is no sample to retry with, so the failure is raised."""
        self._drawn += 1
        sample = self._pull(iterator, _End)
        if sample is _End:
            raise failed
        return sample

    def _note(self, raised: BaseException, walk: Any) -> str:
        index, stage = self._indices, self._stage
        offset = self._offset if walk is None else len(index) - 1 - walk.__length_hint__()
        sample = index if offset is None or not self._auto_collation else index[offset]
        if self._dataset_kind == _DatasetKind.Iterable:
            sample = None
        explain_shortage(raised)
        if offset is not None:
            # Also while collating: then it is a sample that does not fit the others.
            stage = "fetching"
        path = None if offset is None or sample is None else self._samples.path(sample)
        where = place(sample, offset, self._num_yielded, None, stage, path)
        is_alone = self._stage != "collating" and (offset is not None or not self._auto_collation)
        replay = self._driver.replay_line(sample, self._num_yielded, is_alone=is_alone)
        raised.add_note("\n".join(filter(None, [f"feedline: {where}", replay])))
        return where


class _End(Exception):  # noqa: N818
    """The end of an iterable data set, which is not an error."""


def _get_all(dataset: Any, walk: Any, samples: list[Any]) -> None:
    for sample in walk:
        samples.append(dataset[sample])
