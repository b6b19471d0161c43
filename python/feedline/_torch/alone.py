"""One pass over a loader without workers: the place to debug."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

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


class Alone(_SingleProcessDataLoaderIter):
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
        # A batch that is made, and not delivered yet.
        self._ready: tuple[Any] | None = None
        # Of the sample that has raised; the indices of all samples of its batch.
        self._position: int | None = None
        self._indices: Any = None
        self._stage = "fetching"

    def _make_maker(self, loader: DataLoader[Any]) -> Maker | None:
        policy = loader.faults
        if policy is None:
            return None
        tries = Tries(policy, seed=int(self._base_seed), tell=self._noted, folders=loader._kept.folders)
        return Maker(self._dataset, tries, policy.replacement if policy.has_replacement else BAD)

    def _noted(self, name: str, details: dict[str, Any]) -> None:
        self._account.noted(name, details)
        # Now: while the source is away, nothing else happens.
        self._account.tell()
        self._account.notices.issue(is_safe=False)

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
                index = self._next_index()
                data, samples, repeats = self._fetch(index, self._judging.expect(index))
            except (_End, StopIteration):
                self._judging.end()
                self._account.notices.issue()
                raise StopIteration from None
            except BaseException:
                self._judging.has_raised = True
                raise
            finally:
                self._account.tell()
            self._batch += 1
            if samples:
                break
        self._judging.deliver(samples, time.perf_counter() - began, repeats=repeats)
        self._account.tell()
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _fetch(self, index: Any, repeats: set[int]) -> tuple[Any, int, int]:
        """The next batch, of how many samples it is, and how many of them repeat others, at which positions
        `repeats` has."""
        walk: Any = None
        self._position = None
        self._indices = index
        self._stage = "fetching"
        fetcher = self._dataset_fetcher
        is_map = self._dataset_kind == _DatasetKind.Map
        try:
            dataset = fetcher.dataset
            if not is_map:
                batch, count = self._drawn_batch(index)
                return batch, count, 0
            if self._maker is not None:
                batch, count = self._make(self._maker, index, repeats)
                return batch, count, len(repeats) if count else 0
            if not fetcher.auto_collation:
                samples = dataset[index]
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = dataset.__getitems__(index)
            else:
                self._indices = index = list(index)
                walk = iter(index)
                samples = [dataset[sample] for sample in walk]
                walk = None
            count = len(samples) if fetcher.auto_collation else 1
            return self._collate(samples), count, len(repeats)
        except _End:
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
        batch = self._dataset_fetcher.collate_fn(samples)
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

    def _make(self, maker: Maker, index: Any, repeats: set[int]) -> tuple[Any, int]:
        """A batch, with other samples in the places of those that are bad, and how many it has."""
        indices = self._indices = list(index) if self._auto_collation else [index]
        samples: Any = maker.together(indices) if self._auto_collation else None
        if samples is not None and not is_list_of(samples, len(indices)):
            # A batch of the data set's own making: none of its samples can be told from the others.
            return self._collate(samples), len(samples)
        if samples is None:
            samples = []
            maker.make(indices, lambda: self._reach(len(samples)), self._batch, samples)
        samples = list(samples)
        while True:
            self._complete(maker, indices, samples, repeats)
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
        faults = maker.tries.take()
        while faults:
            self._stage = "fetching"
            for bad in faults:
                if bad.then:
                    self._judging.is_bad(indices[bad.position])
            for bad in faults:
                self._settle(bad, indices, samples, repeats)
            for position in sorted({bad.position for bad in faults if bad.then}):
                if samples[position] is _FILL:
                    where = functools.partial(self._reach, position)
                    (samples[position],) = maker.make([indices[position]], where, self._batch, [])
            faults = maker.tries.take()

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

    def _drawn_batch(self, index: Any) -> tuple[Any, int]:
        """The next batch of an iterable data set, and how many samples it has; the end of it is no
        StopIteration here."""
        fetcher = self._dataset_fetcher
        if fetcher.ended:
            raise _End
        if not fetcher.auto_collation:
            sample = self._next(fetcher.dataset_iter, 0)
            while sample is BAD:
                sample = self._next(fetcher.dataset_iter, 0)
            if sample is _End:
                raise _End
            return self._collate(sample), 1
        samples: list[Any] = []
        places = self._draw(samples, len(index))
        while samples:
            batch = self._collate(samples) if self._maker is None else self._fitted(self._maker, samples)
            if batch is not BAD:
                return batch, len(samples)
            self._stage = "fetching"
            self._judge_drawn()
            places -= 0 if self._fills_batches else sum(sample is BAD for sample in samples)
            samples = [sample for sample in samples if sample is not BAD]
            self._draw(samples, places)
        return None, 0

    def _draw(self, samples: list[Any], places: int) -> int:
        """Fills a batch that is begun from the iterator; how many places it has."""
        fetcher = self._dataset_fetcher
        while len(samples) < places and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            fetcher.ended = sample is _End
            if sample is BAD:
                places -= not self._fills_batches
            elif sample is not _End:
                samples.append(sample)
        if fetcher.ended and len(samples) < places and (fetcher.drop_last or not samples):
            raise _End
        return places

    def _next(self, iterator: Any, position: int) -> Any:
        """The next sample of an iterable data set; one that fails is passed over if the policy wants it."""
        if self._maker is None or self._failing is None:
            return next(iterator, _End)
        try:
            sample = next(iterator, _End)
        except (Exception, SystemExit) as raised:
            failed = raised
            self._failing.bear(failed)
            sample = self._maker.tried(failed, lambda: _next_again(iterator, failed), position, self._batch)
            self._judge_drawn()
            return sample
        self._failing.good()
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


class _End(Exception):
    """The end of an iterable data set, which is no error."""


class _Stop(Exception):
    """The policy bears no more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _next_again(iterator: Any, failed: BaseException) -> Any:
    """The end of the iterator is no other try of the sample that failed."""
    sample = next(iterator, _End)
    if sample is _End:
        raise failed
    return sample
