"""One pass over a loader without workers: the place to debug."""

from __future__ import annotations

import functools
import inspect
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from feedline._torch.judging import Judging
from feedline._torch.making import GENERATOR_ENDS, Maker
from feedline._workers.tries import BAD, Bad, Tries
from feedline._workers.trouble import place

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Alone"]


class Alone(_SingleProcessDataLoaderIter):
    """Without workers: the place to debug. Errors pass unchanged, with a note on the sample."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._judging = Judging(loader, self)
        self._account = loader._kept.account
        self._maker = self._make_maker(loader)
        self._sampler_iter = self._judging.begin(self._sampler_iter)
        self._batch = 0

    def _make_maker(self, loader: DataLoader[Any]) -> Maker | None:
        policy = loader.faults
        if policy is None:
            return None
        tries = Tries(policy, seed=int(self._base_seed), tell=self._account.noted)
        return Maker(self._dataset, tries, policy.replacement if policy.has_replacement else BAD)

    def _next_data(self) -> Any:
        while True:
            began = time.perf_counter()
            try:
                index = self._next_index()
                self._judging.expect(index)
                data, samples, repeats = self._fetch(index)
            except (_End, StopIteration):
                self._judging.end()
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

    def _fetch(self, index: Any) -> tuple[Any, int, int]:
        """The next batch, of how many samples it is, and how many of them repeat others."""
        walk: Any = None
        repeats = 0
        stage = "fetching"
        fetcher = self._dataset_fetcher
        is_map = self._dataset_kind == _DatasetKind.Map
        try:
            dataset = fetcher.dataset
            if not is_map:
                samples = self._draw(index)
            elif self._maker is not None:
                samples, repeats = self._make(self._maker, index)
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
            count = len(samples) if fetcher.auto_collation else 1
            return fetcher.collate_fn(samples), count, repeats
        except _End:
            raise
        except StopIteration as raised:
            where = self._note(raised, index, walk, stage)
            message = f"StopIteration was raised {where}; it would have ended the epoch without a word"
            raise RuntimeError(message) from raised
        except BaseException as raised:
            self._note(raised, index, walk, stage)
            raise

    def _make(self, maker: Maker, index: Any) -> tuple[list[Any], int]:
        """The samples of a batch, with others in the places of those that are bad."""
        indices = list(index) if self._auto_collation else [index]
        samples = maker.together(indices) if self._auto_collation else None
        if samples is None:
            samples = []
            maker.make(indices, lambda: len(samples), self._batch, samples)
        repeats: set[int] = set()
        for bad in maker.tries.take():
            self._settle(maker, bad, indices, samples, repeats)
        return [sample for sample in samples if sample is not BAD], len(repeats)

    def _settle(
        self, maker: Maker, bad: Bad, indices: list[Any], samples: list[Any], repeats: set[int]
    ) -> None:
        """Judges a fault, and looks for another sample until one is good or none is left."""
        pending = deque([bad])
        while pending:
            bad = pending.popleft()
            position = bad.position
            verdict = self._judging.verdict(bad, indices[position], None)
            if isinstance(verdict, BaseException):
                raise verdict
            if verdict == "good" or samples[position] is not BAD:
                continue
            if position in repeats:
                repeats.discard(position)
                self._judging.expect_more(1)
            found = self._judging.other(self._batch, position, verdict)
            if found is None:
                continue
            indices[position], is_repeat = found
            if is_repeat:
                repeats.add(position)
            where = functools.partial(int, position)
            (samples[position],) = maker.make([indices[position]], where, self._batch, [])
            pending.extend(maker.tries.take())

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
        while len(samples) < len(index) and not fetcher.ended:
            sample = self._next(fetcher.dataset_iter, len(samples))
            fetcher.ended = sample is _End
            if sample is not _End and sample is not BAD:
                samples.append(sample)
        if not samples or (fetcher.ended and fetcher.drop_last):
            raise _End
        return samples

    def _next(self, iterator: Any, position: int) -> Any:
        """The next sample of an iterable data set; one that fails is passed over if the policy wants it."""
        if self._maker is None:
            return next(iterator, _End)
        try:
            return next(iterator, _End)
        except (Exception, SystemExit) as raised:
            if inspect.isgenerator(iterator):
                raised.add_note(GENERATOR_ENDS)
                raise
            tries = self._maker.tries
            sample = tries.again(raised, lambda: next(iterator, _End), position, self._batch)
            for bad in tries.take():
                verdict = self._judging.verdict(bad, None, None)
                if isinstance(verdict, BaseException):
                    raise verdict from raised
            return sample

    def _note(self, raised: BaseException, index: Any, walk: Any, stage: str) -> str:
        position = None if walk is None else len(index) - 1 - walk.__length_hint__()
        sample = index if position is None else index[position]
        if self._dataset_kind == _DatasetKind.Iterable:
            sample = None
        where = place(sample, position, self._num_yielded, None, stage)
        raised.add_note(f"feedline: {where}")
        return where


class _End(Exception):
    """The end of an iterable data set, which is no error."""
