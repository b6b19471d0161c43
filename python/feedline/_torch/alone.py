"""One pass over a loader without workers: the place to debug."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from feedline._torch.judging import Judging
from feedline._torch.making import Failing, Maker
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
        # A batch that is made, and not delivered yet.
        self._ready: tuple[Any] | None = None
        # Of the sample that has raised.
        self._position: int | None = None

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
        stage = "fetching"
        fetcher = self._dataset_fetcher
        is_map = self._dataset_kind == _DatasetKind.Map
        try:
            dataset = fetcher.dataset
            if not is_map:
                samples = self._draw(index)
                if samples is BAD:
                    return None, 0, 0
            elif self._maker is not None:
                samples = self._make(self._maker, index, repeats)
                if not samples:
                    return None, 0, 0
                if not fetcher.auto_collation:
                    (samples,) = samples
            elif not fetcher.auto_collation:
                samples = dataset[index]
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = dataset.__getitems__(index)
            else:
                index = list(index)
                walk = iter(index)
                samples = [dataset[sample] for sample in walk]
            stage = "collating"
            self._position = None
            count = len(samples) if fetcher.auto_collation else 1
            return fetcher.collate_fn(samples), count, len(repeats)
        except _End:
            raise
        except _Stop as stop:
            # It says where it was.
            raise stop.error from stop.error.__cause__
        except StopIteration as raised:
            where = self._note(raised, index, walk, stage)
            message = f"StopIteration was raised {where}; it would have ended the epoch without a word"
            raise RuntimeError(message) from raised
        except BaseException as raised:
            self._note(raised, index, walk, stage)
            raise

    def _make(self, maker: Maker, index: Any, repeats: set[int]) -> list[Any]:
        """The samples of a batch, with others in the places of those that are bad."""
        indices = list(index) if self._auto_collation else [index]
        samples = maker.together(indices) if self._auto_collation else None
        if samples is None:
            samples = []
            maker.make(indices, lambda: self._reach(len(samples)), self._batch, samples)
        # In rounds, as with workers: all places first, then those whose filling was bad as well.
        faults = maker.tries.take()
        while faults:
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
        good = [sample for sample in samples if sample is not BAD]
        if self._judging.drops(len(samples) - len(good)):
            self._judging.drop(len(good))
            return []
        return good

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

    def _draw(self, index: Any) -> Any:
        """The samples of a batch from an iterable data set; the end of it is no StopIteration here."""
        fetcher = self._dataset_fetcher
        if fetcher.ended:
            raise _End
        if not fetcher.auto_collation:
            sample = self._next(fetcher.dataset_iter, 0)
            while sample is BAD:
                sample = self._next(fetcher.dataset_iter, 0)
            if sample is _End:
                raise _End
            return sample
        samples: list[Any] = []
        places = len(index)
        while len(samples) < places and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            fetcher.ended = sample is _End
            if sample is BAD:
                places -= not self._fills_batches
            elif sample is not _End:
                samples.append(sample)
        if fetcher.ended and (fetcher.drop_last or not samples):
            raise _End
        return samples or BAD

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
            for bad in self._maker.tries.take():
                verdict = self._judging.verdict(bad, None, self._batch, None)
                if isinstance(verdict, BaseException):
                    raise _Stop(verdict) from None
            return sample
        self._failing.good()
        return sample

    def _note(self, raised: BaseException, index: Any, walk: Any, stage: str) -> str:
        position = self._position if walk is None else len(index) - 1 - walk.__length_hint__()
        sample = index if position is None or not self._auto_collation else index[position]
        if self._dataset_kind == _DatasetKind.Iterable:
            sample = None
        explain_shortage(raised)
        where = place(sample, position, self._num_yielded, None, stage)
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
