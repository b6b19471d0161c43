"""One pass over a loader without workers: the place to debug."""

from __future__ import annotations

import functools
import inspect
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from feedline import _native
from feedline._native import call_interruptibly
from feedline._torch.draws import Draws
from feedline._torch.fitting import Fitting
from feedline._torch.judging import Judging
from feedline._torch.making import Failing, Maker, Odd, is_list_of
from feedline._workers.tries import BAD, Bad, Tries
from feedline._workers.trouble import place
from feedline.faults import explain_shortage

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Alone"]

# In the place of a sample that is to be made instead of a bad one.
_FILL: Any = object()


@dataclass
class _Begun:
    """A batch that was begun: what is there of it when a signal interrupts, stays."""

    index: Any
    # Positions whose sample is one that was delivered before.
    repeats: set[int]
    # The index of each sample, others for those that are replaced; None: as they were asked for.
    indices: list[Any] | None = None
    samples: list[Any] = field(default_factory=list)
    # How many samples of an iterable data set it is to have.
    places: int | None = None


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
        self._judging = Judging(loader, self)
        self._account = loader._kept.account
        self._maker = self._make_maker(loader)
        self._failing: Failing | None = None
        if loader.faults is not None and self._dataset_kind == _DatasetKind.Iterable:
            self._failing = Failing(self._dataset_fetcher.dataset_iter, loader.faults)
        self._fills_batches = loader.faults is None or loader.faults.fill is not False
        self._sampler_iter = self._judging.begin(self._sampler_iter)
        self._batch = 0
        self._fitting = Fitting(self._collate_fn, Draws())
        # A batch that is made, and not delivered yet; what is called when it is.
        self._ready: tuple[Any] | None = None
        self._confirm: Callable[[], None] | None = None
        self._begun: _Begun | None = None
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
        seed, folders = int(self._base_seed), loader._kept.folders
        tries = Tries(policy, seed=seed, pause=pause, tell=self._noted, folders=folders)
        return Maker(
            _Interruptible(self._dataset), tries, policy.replacement if policy.has_replacement else BAD
        )

    def _noted(self, name: str, details: dict[str, Any]) -> None:
        self._account.noted(name, details)
        # Now: while the source is unavailable, nothing else happens.
        self._account.tell()
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
        while True:
            began = time.perf_counter()
            try:
                if self._begun is None:
                    index = self._next_index()
                    self._begun = _Begun(index, self._judging.expect(index))
                data, samples, repeats = self._fetch(self._begun)
            except _native.Interrupted:
                # The next call goes on with it.
                raise
            except (_End, StopIteration):
                self._judging.end()
                self._account.notices.issue()
                raise StopIteration from None
            except BaseException:
                self._begun = None
                self._judging.has_raised = True
                raise
            finally:
                self._account.tell()
            self._begun = None
            self._batch += 1
            if samples:
                break
        self._confirm = self._judging.delivery(samples, time.perf_counter() - began, repeats=repeats)
        self._account.tell()
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _fetch(self, begun: _Begun) -> tuple[Any, int, int]:
        """The next batch, of how many samples it is, and how many of them repeat others."""
        index, repeats = begun.index, begun.repeats
        walk: Any = None
        self._position = None
        self._indices = index
        self._stage = "fetching"
        fetcher = self._dataset_fetcher
        is_map = self._dataset_kind == _DatasetKind.Map
        try:
            dataset = fetcher.dataset
            if not is_map:
                batch, count = self._drawn_batch(begun)
                return batch, count, 0
            if self._maker is not None:
                batch, count = self._make(self._maker, begun)
                return batch, count, len(repeats) if count else 0
            if not fetcher.auto_collation:
                samples = call_interruptibly(operator.getitem, dataset, index)
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = call_interruptibly(dataset.__getitems__, index)
            else:
                self._indices = index = begun.index = list(index)
                # What was made before a signal came stays.
                samples = begun.samples
                walk = iter(index[len(samples) :])
                call_interruptibly(_get_all, dataset, walk, samples)
                walk = None
            count = len(samples) if fetcher.auto_collation else 1
            return self._collate(samples), count, len(repeats)
        except (_End, _native.Interrupted):
            raise
        except _Stop as stop:
            # It says where it was.
            raise stop.error from stop.error.__cause__
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
                misfits = Odd.found(raised, list(samples), self._fitting, self._index_at).misfits
                self._position = misfits[0].position if misfits else None
            raise

    def _index_at(self, position: int) -> Any:
        return self._indices[position] if self._dataset_kind == _DatasetKind.Map else None

    def _fitted(self, maker: Maker, samples: list[Any]) -> Any:
        """The batch of the good samples. BAD if some of them do not fit to the others, and the policy does
        not raise: these are BAD in `samples` then, unless another try or the user gave others."""
        odd: Odd | None = None
        try:
            return self._collated([sample for sample in samples if sample is not BAD])
        except Exception as raised:
            odd = Odd.found(raised, samples, self._fitting, self._index_at)
            if not odd.misfits:
                raise
            self._position = odd.misfits[0].position
            can_be_made = self._dataset_kind == _DatasetKind.Map
            maker.refit(odd, self._fitting, self._batch, self._again if can_be_made else None)
            self._position = None
        finally:
            # Its frames hold what was raised.
            del odd
        return BAD

    def _again(self, position: int) -> Any:
        """The sample of a position once more."""
        assert self._maker is not None
        return self._maker.get(self._indices[self._reach(position)])

    def _make(self, maker: Maker, begun: _Begun) -> tuple[Any, int]:
        """A batch, with other samples in the places of those that are bad, and how many it has."""
        if begun.indices is None:
            indices = list(begun.index) if self._auto_collation else [begun.index]
            together: Any = maker.together(indices) if self._auto_collation else None
            if together is not None and not is_list_of(together, len(indices)):
                # A batch of the data set's own making: none of its samples can be told from the others.
                return self._collate(together), len(together)
            begun.indices, begun.samples = indices, list(together or [])
        indices, samples = begun.indices, begun.samples
        self._indices = indices
        missing = indices[len(samples) :]
        maker.make(missing, lambda: self._reach(len(samples)), self._batch, samples)
        while True:
            self._complete(maker, indices, samples, begun.repeats)
            good = sum(sample is not BAD for sample in samples)
            if self._judging.drops(len(samples) - good):
                self._judging.drop(good)
                return None, 0
            if not good:
                return None, 0
            batch = self._fitted(maker, samples) if self._auto_collation else self._collated(samples[0])
            if batch is not BAD:
                return batch, good

    def _complete(self, maker: Maker, indices: list[Any], samples: list[Any], repeats: set[int]) -> None:
        """Judges what is bad, and makes other samples for these places. In rounds, as with workers: all
        places first, then those whose filling was bad as well."""
        while True:
            self._stage = "fetching"
            faults = maker.tries.take()
            for bad in faults:
                if bad.action:
                    self._judging.is_bad(indices[bad.position])
            for bad in faults:
                self._settle(bad, indices, samples, repeats)
            open_places = [position for position, sample in enumerate(samples) if sample is _FILL]
            if not open_places:
                return
            for position in open_places:
                where = functools.partial(self._reach, position)
                (samples[position],) = maker.make([indices[position]], where, self._batch, [])

    def _reach(self, position: int) -> int:
        """Where something was raised."""
        self._position = position
        return position

    def _settle(self, bad: Bad, indices: list[Any], samples: list[Any], repeats: set[int]) -> None:
        """Judges a fault, and chooses what is made in its place."""
        position = bad.position
        verdict = self._judging.verdict(bad, indices[position], self._batch, None)
        if isinstance(verdict, BaseException):
            raise _Stop(verdict)
        if verdict == "good":
            return
        if position in repeats:
            # It was to be a second time what was bad: one more was due than was expected.
            repeats.discard(position)
            self._judging.expect_more(1)
        if samples[position] is not BAD:
            return
        found = self._judging.other(self._batch, position, verdict)
        if found is None:
            return
        indices[position], is_repeat = found
        samples[position] = _FILL
        if is_repeat:
            repeats.add(position)

    def _drawn_batch(self, begun: _Begun) -> tuple[Any, int]:
        """The next batch of an iterable data set, and how many samples it has; the end of it is no
        StopIteration here."""
        fetcher = self._dataset_fetcher
        if fetcher.ended and not begun.samples:
            raise _End
        if not fetcher.auto_collation:
            while not begun.samples:
                sample = self._next(fetcher.dataset_iter, 0)
                if sample is _End:
                    raise _End
                if sample is not BAD:
                    begun.samples.append(sample)
            return self._collate(begun.samples[0]), 1
        if begun.places is None:
            begun.places = len(begun.index)
        self._draw(begun, begun.places)
        while begun.samples:
            samples = begun.samples
            batch = self._collate(samples) if self._maker is None else self._fitted(self._maker, samples)
            if batch is not BAD:
                return batch, len(samples)
            self._stage = "fetching"
            self._judge_drawn()
            begun.places -= 0 if self._fills_batches else sum(sample is BAD for sample in samples)
            begun.samples = [sample for sample in samples if sample is not BAD]
            self._draw(begun, begun.places)
        return None, 0

    def _draw(self, begun: _Begun, places: int) -> None:
        """Fills a batch that is begun from the iterator."""
        fetcher, samples = self._dataset_fetcher, begun.samples
        while len(samples) < places and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            fetcher.ended = sample is _End
            if sample is BAD:
                places -= not self._fills_batches
                begun.places = places
            elif sample is not _End:
                samples.append(sample)
        if fetcher.ended and len(samples) < places and (fetcher.drop_last or not samples):
            raise _End

    def _next(self, iterator: Any, position: int) -> Any:
        """The next sample of an iterable data set; one that fails is skipped if the policy wants it."""
        if self._maker is None or self._failing is None:
            return self._pull(iterator, _End)
        try:
            sample = self._pull(iterator, _End)
        except (Exception, SystemExit) as raised:
            failed = raised
            self._failing.bear(failed)
            sample = self._maker.tried(
                failed, lambda: self._next_again(iterator, failed), position, self._batch
            )
            self._judge_drawn()
            return sample
        self._failing.good()
        return sample

    def _next_again(self, iterator: Any, failed: BaseException) -> Any:
        """The end of the iterator is no other try of the sample that failed."""
        sample = self._pull(iterator, _End)
        if sample is _End:
            raise failed
        return sample

    def _judge_drawn(self) -> None:
        """Judges the faults of samples of an iterable data set."""
        assert self._maker is not None
        for bad in self._maker.tries.take():
            verdict = self._judging.verdict(bad, None, self._batch, None)
            if isinstance(verdict, BaseException):
                raise _Stop(verdict) from None

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
        path = None if position is None or sample is None else self._judging.samples.path(sample)
        where = place(sample, position, self._num_yielded, None, stage, path)
        raised.add_note(f"feedline: {where}")
        return where


class _End(Exception):  # noqa: N818
    """The end of an iterable data set, which is no error."""


class _Stop(Exception):  # noqa: N818
    """The policy allows no more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _get_all(dataset: Any, walk: Any, samples: list[Any]) -> None:
    for sample in walk:
        samples.append(dataset[sample])
