"""One pass over a loader, in the trainer: without workers, or with workers that are replaced."""

from __future__ import annotations

import functools
import itertools
import pickle
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe, _utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _sharding_worker_init_fn,
    _SingleProcessDataLoaderIter,
)

from feedline import _native
from feedline._torch.worker import LoaderWork
from feedline._workers.crew import Crew, Death, GaveUp, load
from feedline._workers.trouble import Trouble, place
from feedline._workers.zygote import Zygote
from feedline.errors import WorkerDiedWarning

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["Alone", "Kept", "WithWorkers"]


class Alone(_SingleProcessDataLoaderIter):
    """Without workers: the place to debug. Errors pass unchanged, with a note on the sample."""

    def _next_data(self) -> Any:
        index = self._next_index()
        try:
            data = self._fetch(index)
        except _End:
            raise StopIteration from None
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _fetch(self, index: Any) -> Any:
        walk: Any = None
        stage = "fetching"
        fetcher = self._dataset_fetcher
        is_map = self._dataset_kind == _DatasetKind.Map
        try:
            dataset = fetcher.dataset
            if not is_map:
                samples = self._draw(index)
            elif not fetcher.auto_collation:
                samples = dataset[index]
            elif hasattr(dataset, "__getitems__") and dataset.__getitems__:
                samples = dataset.__getitems__(index)
            else:
                index = list(index)
                walk = iter(index)
                samples = [dataset[sample] for sample in walk]
            stage = "collating"
            return fetcher.collate_fn(samples)
        except _End:
            raise
        except StopIteration as raised:
            where = self._note(raised, index, walk, stage)
            message = f"StopIteration was raised {where}; it would have ended the epoch without a word"
            raise RuntimeError(message) from raised
        except BaseException as raised:
            self._note(raised, index, walk, stage)
            raise

    def _draw(self, index: Any) -> Any:
        """The samples of a batch from an iterable data set; the end of it is no StopIteration here."""
        fetcher = self._dataset_fetcher
        if fetcher.ended:
            raise _End
        if not fetcher.auto_collation:
            sample = next(fetcher.dataset_iter, _End)
            if sample is _End:
                raise _End
            return sample
        samples = list(itertools.islice(fetcher.dataset_iter, len(index)))
        fetcher.ended = len(samples) < len(index)
        if not samples or (fetcher.ended and fetcher.drop_last):
            raise _End
        return samples

    def _note(self, raised: BaseException, index: Any, walk: Any, stage: str) -> str:
        position = None if walk is None else len(index) - 1 - walk.__length_hint__()
        sample = index if position is None else index[position]
        if self._dataset_kind == _DatasetKind.Iterable:
            sample = None
        where = place(sample, position, self._num_yielded, None, stage)
        raised.add_note(f"feedline: {where}")
        return where


class Kept:
    """What outlives an epoch: the deaths, and a fresh interpreter for the next one, since starting one
    takes seconds. Apart from the loader, so that loader and epoch do not keep each other alive."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self._zygote: Zygote | None = None

    def take(self) -> Zygote | None:
        zygote, self._zygote = self._zygote, None
        return zygote

    def put(self, zygote: Zygote) -> None:
        if self._zygote is None:
            self._zygote = zygote
        else:
            zygote.end()

    def __getstate__(self) -> dict[str, Any]:
        return {"deaths": self.deaths, "_zygote": None}

    def __del__(self) -> None:
        zygote = self.take()
        if zygote is not None:
            zygote.end()


class _End(Exception):
    """The end of an iterable data set, which is no error."""


class WithWorkers(_BaseDataLoaderIter):
    """With workers: batches in the order of the sampler, whatever dies."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._in_order = loader.in_order
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 with workers")
        self._ahead = loader.prefetch_factor * self._num_workers
        self._tasks = itertools.count()
        self._shutdown = False
        self._is_fresh = loader._is_fresh
        self._kept = loader._kept
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
        )
        self._crew: Crew | None = None
        self._crew = Crew(
            work,
            loader._words(),
            fresh=loader._is_fresh,
            name="DataLoader",
            explain=self._explain,
            told=self._tell,
            zygote=self._kept.take(),
        )
        self._crew.start()
        self._workers = self._crew.workers
        self._reset(loader, first_iter=True)

    def _init_fn(self, loader: DataLoader[Any]) -> Any:
        if not isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            return loader.worker_init_fn
        return functools.partial(
            _sharding_worker_init_fn, loader.worker_init_fn, self._world_size, self._rank
        )

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        # Tasks that are not delivered yet, in order: number -> (worker, index, batch number).
        self._sent: dict[int, tuple[int, Any, int]] = {}
        self._order: deque[int] = deque()
        self._ready: dict[int, _native.Answer] = {}
        self._active = [True] * self._num_workers
        self._at_hand = [0] * self._num_workers
        self._cycle = itertools.cycle(range(self._num_workers))
        self._batches = 0
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
        self._sent[task] = (post, index, self._batches)
        self._batches += 1
        self._order.append(task)
        self._at_hand[post] += 1
        self._crew.submit(task, pickle.dumps(index, protocol=5), post)

    def _next_data(self) -> Any:
        while True:
            answer = self._due()
            if answer is not None:
                return self._deliver(answer)
            if not self._order:
                if not self._persistent_workers:
                    self._shutdown_workers()
                raise StopIteration
            if self._crew is None:
                raise RuntimeError("the workers of this iterator were shut down")
            self._wait()

    def _due(self) -> _native.Answer | None:
        """The answer that must be delivered now, if it is there."""
        if not self._in_order and self._ready:
            task = next(iter(self._ready))
            self._order.remove(task)
            return self._ready.pop(task)
        while self._order:
            task = self._order[0]
            if task in self._ready:
                self._order.popleft()
                return self._ready.pop(task)
            if task in self._sent and self._active[self._sent[task][0]]:
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
        except WorkerDiedWarning:
            raise
        except Exception:
            self._shutdown_workers()
            raise
        if answer is None:
            raise RuntimeError(self._late())
        assert not isinstance(answer, GaveUp)
        post = self._resuming.pop(answer.task, None)
        if post is not None and answer.kind == "raised":
            raise load(answer).exception(f"in DataLoader worker process {post}", "")
        if answer.task not in self._sent:
            # Of an epoch that was left, or of a worker that has nothing more.
            return
        if answer.kind == "exhausted":
            self._active[answer.post] = False
            if not self._persistent_workers:
                self._crew.retire(answer.post)
            self._put()
            return
        self._ready[answer.task] = answer

    def _deliver(self, answer: _native.Answer) -> Any:
        post, index, batch = self._sent.pop(answer.task)
        self._at_hand[post] -= 1
        self._put()
        data = load(answer)
        if answer.kind == "raised":
            raise self._raised(data, post, index, batch)
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _raised(self, trouble: Trouble, post: int, index: Any, batch: int) -> BaseException:
        sample, position = self._sample(index, trouble.position, trouble.stage)
        where = place(sample, position, batch, post, trouble.stage)
        return trouble.exception(
            f"in DataLoader worker process {post}",
            f"\nfeedline: {where}",
            index=sample,
            position=position,
            batch=batch,
            worker=post,
        )

    def _sample(self, index: Any, position: int | None, stage: str) -> tuple[Any, int | None]:
        """The index of a sample at a position of a batch, as far as it is known."""
        if self._dataset_kind == _DatasetKind.Iterable:
            return None, position
        if not self._auto_collation:
            return index, 0
        if position is None or stage not in ("fetching", "waiting for memory"):
            return index, None
        try:
            return index[position], position
        except (LookupError, TypeError):
            return index, None

    def _explain(self, death: Death) -> Death:
        for task in death.tasks:
            if task in self._sent:
                _, index, batch = self._sent[task]
                position = None if self._has_getitems() else death.position
                sample, position = self._sample(index, position, death.stage)
                return replaced(death, index=sample, position=position, batch=batch)
        return replaced(death, position=None)

    def _has_getitems(self) -> bool:
        return bool(getattr(self._dataset, "__getitems__", None))

    def _tell(self, death: Death) -> None:
        self._kept.deaths.append(death)
        text = f"{death}; it is replaced, and its batch is made again"
        warnings.warn(text, WorkerDiedWarning, stacklevel=_depth_of_user())

    def _late(self) -> str:
        text = f"DataLoader timed out after {self._timeout} seconds"
        task = self._order[0]
        post, index, batch = self._sent[task]
        assert self._crew is not None
        doing = self._crew.doing(post)
        if doing is None:
            return f"{text}\nfeedline: worker {post}, which has batch {batch}, has not started yet"
        if doing["task"] != task:
            return f"{text}\nfeedline: worker {post} has batch {batch} and is {doing['stage']}"
        position = None if self._has_getitems() else doing["position"]
        sample, position = self._sample(index, position, doing["stage"])
        where = place(sample, position, batch, post, doing["stage"])
        return f"{text}\nfeedline: it was {doing['stage']} {where}"

    def _shutdown_workers(self) -> None:
        crew, self._crew = self._crew, None
        if crew is None:
            return
        self._shutdown = True
        self._ready.clear()
        crew.close(keep_zygote=self._is_fresh)
        if crew.zygote is not None:
            self._kept.put(crew.zygote)

    def __del__(self) -> None:
        if getattr(self, "_crew", None) is not None:
            self._shutdown_workers()


def replaced(death: Death, **changes: Any) -> Death:
    """The same death, better explained."""
    import dataclasses

    return dataclasses.replace(death, **changes)


def _depth_of_user() -> int:
    """How many frames lie between `warn` and the code that iterates, which the warning is for."""
    import sys

    frame = sys._getframe(1)
    depth = 1
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        depth += 1
    return depth


_OURS = (str(torch.__path__[0]), __file__.rsplit("/_torch/", 1)[0])


def _is_ours(path: str) -> bool:
    return path.startswith(_OURS)
