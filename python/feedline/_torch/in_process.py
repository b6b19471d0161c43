"""One pass over a loader without workers: the place to debug."""

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
from feedline._torch.batch_maker import Failing, Maker, UnequalSamples, bears, is_list_of
from feedline._torch.collatable import Fitting
from feedline._torch.driver import Batch, Driver
from feedline._torch.random_state import Draws
from feedline._workers.remote_error import place
from feedline._workers.retries import BAD, Retries
from feedline.faults import explain_shortage

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Alone"]


class _Begun(Batch):
    """A batch that was begun: what is there of it when a signal interrupts, stays."""

    # Whether its own samples are made, or there is no way to tell them from one another.
    is_made: bool = False
    # Offsets at which other samples are to be made.
    open: AbstractSet[int] = frozenset()
    # How many samples of an iterable data set it is to have.
    places: int = 0

    def __init__(self, number: int, index: Any) -> None:
        super().__init__(number, index)
        self.made: list[Any] = []


class _Interruptible:
    """A data set in whose code a signal handler may raise: the sample is then made again."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = functools.partial(call_interruptibly, dataset.__getitems__)

    def __getitem__(self, index: Any) -> Any:
        return call_interruptibly(operator.getitem, self._dataset, index)


class Alone(_native.BatchIterator, _SingleProcessDataLoaderIter):
    """Without workers: the place to debug. Errors pass unchanged, with a note on the sample."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._driver: Driver[_Begun] = Driver(loader, self, self, ahead=1)
        self._samples = loader._loader_state.samples
        self._account = loader._loader_state.account
        self._maker = self._make_maker(loader)
        self._failing: Failing | None = None
        if loader.faults is not None and self._dataset_kind == _DatasetKind.Iterable:
            self._failing = Failing(self._dataset_fetcher.dataset_iter, loader.faults)
        self._fills_batches = loader.faults is None or loader.faults.fill is not False
        self._driver.begin(self._sampler_iter)
        self._fitting = Fitting(self._collate_fn, Draws())
        # A batch that is made, and not delivered yet; what is called when it is.
        self._ready: tuple[Any] | None = None
        self._confirm: Callable[[], None] | None = None
        # The batch that is being made.
        self._begun: _Begun | None = None
        self._key = 0
        # A generator in which something is raised ends, and all samples that were to come are lost.
        fetched = getattr(self._dataset_fetcher, "dataset_iter", None)
        self._pull: Callable[..., Any] = functools.partial(call_interruptibly, next)
        if inspect.isgenerator(fetched):
            self._pull = next
        # Of the sample that has raised; the indices of all samples of its batch.
        self._position: int | None = None
        self._indices: Any = None
        self._stage = "fetching"

    def _make_maker(self, loader: DataLoader[Any]) -> Maker | None:
        policy = loader.faults
        if policy is None:
            return None
        pause = functools.partial(call_interruptibly, time.sleep)
        seed, folders = int(self._base_seed), loader._loader_state.folders
        retries = Retries(policy, seed=seed, pause=pause, notify=self._noted, folders=folders)
        return Maker(
            _Interruptible(self._dataset), retries, policy.replacement if policy.has_replacement else BAD
        )

    def _noted(self, name: str, details: dict[str, Any]) -> None:
        self._account.noted(name, details)
        # Now: while the source is unavailable, nothing else happens.
        self._account.notify()
        self._account.notices.issue(is_safe=False)

    # Torch's own, with no frame of ours between it and the user's code: its warnings name that.
    _produce = _SingleProcessDataLoaderIter.__next__

    def _next_data(self) -> Any:
        if self._ready is None:
            self._ready = (self._next_batch(),)
        # What was made stays, should a warning be an error.
        self._account.notices.issue()
        (data,), self._ready = self._ready, None
        return data

    def _next_batch(self) -> Any:
        began = time.perf_counter()
        try:
            while not self._driver.ready:
                if self._begun is None:
                    batch = self._driver.next_batch()
                    # The end of the plan may have begun one.
                    self._begun = self._begun or batch
                if self._begun is None:
                    raise _End
                self._fetch(self._begun)
                if self._begun.is_settled:
                    self._begun = None
        except _native.Interrupted:
            # The next call goes on with it.
            raise
        except _End:
            self._begun = None
            self._driver.plan_ends()
            self._driver.end()
            self._account.notices.issue()
            raise StopIteration from None
        except BaseException:
            self._lose()
            raise
        finally:
            self._account.notify()
        come = self._driver.ready.popleft()
        if isinstance(come, BaseException):
            self._begun = None
            # It says where it was.
            raise come from come.__cause__
        self._confirm = self._driver.delivery(come.samples, time.perf_counter() - began)
        self._account.notify()
        data, come.content = come.content, None
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _lose(self) -> None:
        """The batch raised. The consumer hears of it now, and the engine knows no more than that it came."""
        begun, self._begun = self._begun, None
        self._driver.has_raised = True
        if begun is not None:
            self._driver.lose(begun)
            self._driver.ready.clear()

    # ---- what the driver wants ----

    def begin_batch(self, number: int, index: Any) -> _Begun:
        return _Begun(number, index)

    def order(self, batch: _Begun) -> None:
        """Not asked for: one batch is made at a time."""

    def remake(self, batch: _Begun) -> None:
        """Not asked for: no later batch was ordered."""

    def amend(self, batch: _Begun) -> None:
        if not batch.made:
            batch.made, batch.is_made = [BAD] * batch.size, True
        for offset, source in batch.moves.items():
            if batch.made[offset] is BAD:
                batch.made[offset], batch.made[source] = batch.made[source], BAD
        batch.open = frozenset(offset for offset in batch.fills if batch.made[offset] is BAD)
        # One that has no samples of its own was not ordered.
        self._begun = batch

    def discard(self, batch: _Begun) -> None:
        batch.is_settled = True

    # ---- making ----

    def _fetch(self, begun: _Begun) -> None:
        """Makes what is to be made of a batch by now, and tells the driver what came of it."""
        index = begun.index
        walk: Any = None
        self._position = None
        self._indices = index
        self._stage = "fetching"
        self._key = begun.number
        fetcher = self._dataset_fetcher
        try:
            dataset = fetcher.dataset
            if self._dataset_kind != _DatasetKind.Map:
                self._draw_batch(begun)
                return
            if self._maker is not None:
                self._make(self._maker, begun)
                return
            if not fetcher.auto_collation:
                samples = call_interruptibly(operator.getitem, dataset, index)
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = call_interruptibly(dataset.__getitems__, index)
            else:
                self._indices = index = begun.index = list(index)
                # What was made before a signal came stays.
                samples = begun.made
                walk = iter(index[len(samples) :])
                call_interruptibly(_get_all, dataset, walk, samples)
                walk = None
            count = len(samples) if fetcher.auto_collation else 1
            self._driver.came(begun, content=self._collate(samples), samples=count)
        except (_End, _native.Interrupted):
            raise
        except StopIteration as raised:
            where = self._note(raised, walk)
            message = f"StopIteration was raised {where}; it would have ended the epoch without a word"
            raise RuntimeError(message) from raised
        except BaseException as raised:
            self._note(raised, walk)
            raise

    def _collated(self, samples: Any) -> Any:
        self._stage = "collating"
        self._position = None
        batch = call_interruptibly(self._dataset_fetcher.collate_fn, samples)
        if self._fitting.memory is None and self._auto_collation:
            self._fitting.remember(samples)
        return batch

    def _collate(self, samples: Any) -> Any:
        """The batch, where nothing is judged. If that fails, the samples that are the cause are named."""
        try:
            return self._collated(samples)
        except Exception as raised:
            is_map = self._dataset_kind == _DatasetKind.Map
            has_index = self._auto_collation and (not is_map or len(samples) == len(self._indices))
            if has_index and isinstance(samples, (list, tuple)):
                misfits = UnequalSamples.found(raised, list(samples), self._fitting, self._index_at).misfits
                self._position = misfits[0].position if misfits else None
            raise

    def _index_at(self, position: int) -> Any:
        return self._indices[position] if self._dataset_kind == _DatasetKind.Map else None

    def _fitted(self, maker: Maker, samples: list[Any]) -> Any:
        """The batch of the good samples. BAD if some of them do not fit to the others, and the policy does
        not raise: these are BAD in `samples` then, unless another try or the user gave others."""
        odd: UnequalSamples | None = None
        try:
            return self._collated([sample for sample in samples if sample is not BAD])
        except Exception as raised:
            odd = UnequalSamples.found(raised, samples, self._fitting, self._index_at)
            if not odd.misfits:
                raise
            self._position = odd.misfits[0].position
            can_be_made = self._dataset_kind == _DatasetKind.Map
            maker.refit(odd, self._fitting, self._key, self._again if can_be_made else None)
            self._position = None
        finally:
            # Its frames hold what was raised.
            del odd
        return BAD

    def _again(self, position: int) -> Any:
        """The sample of a position once more."""
        assert self._maker is not None
        return self._maker.get(self._indices[self._reach(position)])

    def _make(self, maker: Maker, begun: _Begun) -> None:
        """Makes samples of a batch that are missing. If none of them is bad, the batch is collated."""
        indices = list(begun.index) if self._auto_collation else [begun.index]
        samples = begun.made
        if not begun.is_made:
            if not samples and self._auto_collation:
                together: Any = maker.together(indices[: begun.own])
                if together is not None and not is_list_of(together, begun.own):
                    # A batch of the data set's own making: none of its samples can be told from the others.
                    self._driver.came(begun, content=self._collate(together), samples=len(together))
                    return
                samples += together or []
            missing = indices[len(samples) : begun.own]
            maker.make(missing, lambda: self._reach(len(samples)), begun.number, samples)
            samples += [BAD] * (begun.size - begun.own)
            begun.is_made = True
        self._indices = indices = [
            begun.sample(offset, is_batched=self._auto_collation) for offset in range(begun.size)
        ]
        for offset in sorted(begun.open):
            where = functools.partial(self._reach, offset)
            (samples[offset],) = maker.make([indices[offset]], where, begun.number, [])
            begun.open -= {offset}
        content: Any = BAD
        if not any(bad.action for bad in maker.retries.bad):
            content = self._fitted(maker, samples) if self._auto_collation else self._collated(samples[0])
        good = sum(sample is not BAD for sample in samples)
        bad = maker.retries.take()
        self._driver.came(begun, bad, content=content, samples=good, is_collated=content is not BAD)

    def _reach(self, position: int) -> int:
        """Where something was raised."""
        self._position = position
        return position

    def _draw_batch(self, begun: _Begun) -> None:
        """Draws the next batch of an iterable data set; the end of it is no StopIteration here."""
        fetcher, samples = self._dataset_fetcher, begun.made
        if not begun.is_made:
            begun.places = begun.size
            # It may be interrupted, and is begun only once.
            begun.is_made = True
        content: Any = BAD
        while content is BAD and self._draw(begun):
            if not fetcher.auto_collation:
                content = self._collate(samples[0])
            elif self._maker is None:
                content = self._collate(samples)
            else:
                content = self._fitted(self._maker, samples)
                begun.places -= 0 if self._fills_batches else sum(sample is BAD for sample in samples)
                samples[:] = [sample for sample in samples if sample is not BAD]
        bad = [] if self._maker is None else self._maker.retries.take()
        if content is BAD and not any(one.action for one in bad) and fetcher.ended:
            raise _End
        self._driver.came(begun, bad, content=content, samples=0 if content is BAD else len(samples))

    def _draw(self, begun: _Begun) -> bool:
        """Fills a batch that is begun from the iterator. False if there is nothing to collate."""
        fetcher, samples = self._dataset_fetcher, begun.made
        while len(samples) < begun.places and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            if sample is _End:
                fetcher.ended = True
            elif sample is not BAD:
                samples.append(sample)
            elif not self._starts_zygote():
                break
            elif not self._fills_batches and fetcher.auto_collation:
                begun.places -= 1
        if fetcher.ended and len(samples) < begun.places and fetcher.drop_last:
            samples.clear()
        return bool(samples)

    def _starts_zygote(self) -> bool:
        """Whether the iterator is asked on after a fault."""
        maker, policy = self._maker, self._account.policy
        return maker is None or bears(policy, len(maker.retries.bad))

    def _next(self, iterator: Any, position: int) -> Any:
        """The next sample of an iterable data set; one that fails is skipped if the policy wants it."""
        if self._maker is None or self._failing is None:
            return self._pull(iterator, _End)
        try:
            sample = self._pull(iterator, _End)
        except (Exception, SystemExit) as raised:
            failed = raised
            self._failing.bear(failed)
            return self._maker.tried(failed, lambda: self._next_again(iterator, failed), position, self._key)
        self._failing.good()
        return sample

    def _next_again(self, iterator: Any, failed: BaseException) -> Any:
        """The end of the iterator is no other try of the sample that failed."""
        sample = self._pull(iterator, _End)
        if sample is _End:
            raise failed
        return sample

    def _note(self, raised: BaseException, walk: Any) -> str:
        index, stage = self._indices, self._stage
        position = self._position if walk is None else len(index) - 1 - walk.__length_hint__()
        sample = index if position is None or not self._auto_collation else index[position]
        if self._dataset_kind == _DatasetKind.Iterable:
            sample = None
        explain_shortage(raised)
        if position is not None:
            # Also while collating: it is a sample that does not fit to the others.
            stage = "fetching"
        path = None if position is None or sample is None else self._samples.path(sample)
        where = place(sample, position, self._num_yielded, None, stage, path)
        raised.add_note(f"feedline: {where}")
        return where


class _End(Exception):  # noqa: N818
    """The end of an iterable data set, which is no error."""


def _get_all(dataset: Any, walk: Any, samples: list[Any]) -> None:
    for sample in walk:
        samples.append(dataset[sample])
