"""What torch's loader does in a worker: seeds, fetches, collates, here with the batch made in the arena."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Here, before workers are forked: each of them would have to load it.
import numpy.random
import torch
from torch.utils.data import IterDataPipe, _utils
from torch.utils.data.dataloader import _DatasetKind
from torch.utils.data.graph_settings import apply_random_seed

from feedline import _native
from feedline._torch.draws import Draws, State
from feedline._torch.tensors import reduce_tensor, room_for
from feedline._workers.worker import COLLATING, EXHAUSTED

__all__ = ["LoaderWork"]

# Below this a batch travels in the frame, and its memory may be any.
_SMALL = 4096


class LoaderWork:
    """Everything that the workers of one loader need."""

    def __init__(
        self,
        *,
        dataset: Any,
        kind: int,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        base_seed: int,
        worker_init_fn: Callable[[int], None] | None,
        num_workers: int,
        shared_seed: int | None,
        values: bool,
    ) -> None:
        self.dataset = dataset
        self.kind = kind
        self.auto_collation = auto_collation
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.base_seed = base_seed
        self.worker_init_fn = worker_init_fn
        self.posts = num_workers
        self.shared_seed = shared_seed
        self.values = values

    def start(self, post: int, station: _native.Station) -> _LoaderWorker:
        return _LoaderWorker(self, post, station)


class _LoaderWorker:
    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        return {torch.Tensor: reduce_tensor}

    def __init__(self, work: LoaderWork, post: int, station: _native.Station) -> None:
        self._work = work
        self._station = station
        self._walk: _native.Walk | None = None
        self._stage = "fetching"
        self._iterator: Iterator[Any] | None = None
        self._is_exhausted = False
        # How many samples the iterator was asked for in this epoch: a replacement asks for as many.
        self._drawn = 0
        self._draws = Draws()
        self._first_state: State | None = None
        self._noted: tuple[State | None, bytes] = (None, b"")

        torch.set_num_threads(1)
        seed = work.base_seed + post
        random.seed(seed)
        torch.manual_seed(seed)
        numpy.random.seed(_utils.worker._generate_state(work.base_seed, post))
        self._shared = torch.Generator()
        self._dataset = work.dataset
        self._shared_seed = work.shared_seed
        self._share(work.shared_seed)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=post, num_workers=work.posts, seed=seed, dataset=self._dataset
        )
        _collate_into(station)
        if work.worker_init_fn is not None:
            work.worker_init_fn(post)
        self._begin()

    def _share(self, seed: int | None) -> None:
        if isinstance(self._dataset, IterDataPipe):
            assert seed is not None
            self._shared.manual_seed(seed)
            self._dataset = apply_random_seed(self._dataset, self._shared)

    def _begin(self) -> None:
        self._drawn = 0
        if self._work.kind == _DatasetKind.Iterable:
            self._first_state = self._draws.state()
            self._iterator = iter(self._dataset)
        self._is_exhausted = False

    def resume(self, body: bytes) -> None:
        """A new epoch of workers that stay."""
        # If the data set cannot be iterated again, there is nothing more from here.
        self._is_exhausted = True
        self._shared_seed = pickle.loads(body)
        self._share(self._shared_seed)
        self._begin()

    def do(self, task: int, body: bytes) -> object:
        if self._is_exhausted:
            return EXHAUSTED
        index = pickle.loads(body)
        self._stage = "fetching"
        self._walk = None
        samples = self._fetch(index) if self._iterator is None else self._draw(index)
        if samples is EXHAUSTED:
            self._is_exhausted = True
            return EXHAUSTED
        self._stage = "collating"
        self._station.enter(COLLATING)
        return self._work.collate_fn(samples)

    def _fetch(self, index: Any) -> Any:
        dataset = self._dataset
        if not self._work.auto_collation:
            return dataset[index]
        if hasattr(dataset, "__getitems__") and dataset.__getitems__:
            return dataset.__getitems__(index)
        self._walk = self._station.walk(list(index))
        return [dataset[sample] for sample in self._walk]

    def _draw(self, index: Any) -> Any:
        assert self._iterator is not None
        if not self._work.auto_collation:
            self._drawn += 1
            return next(self._iterator, EXHAUSTED)
        samples = []
        for position in range(len(index)):
            self._station.reach(position)
            self._drawn += 1
            sample = next(self._iterator, EXHAUSTED)
            if sample is EXHAUSTED:
                # This batch is the last, and may be short; the next one to be asked for finds the end.
                self._iterator = iter(())
                break
            samples.append(sample)
        if not samples or (self._work.drop_last and len(samples) < len(index)):
            return EXHAUSTED
        return samples

    def where(self) -> tuple[int | None, str]:
        return (None if self._walk is None else self._walk.position), self._stage

    def journal(self) -> bytes:
        """What a replacement needs to draw and deliver what this worker would have."""
        state = self._draws.state()
        if self._iterator is None:
            # Mostly nothing was drawn, and the last note still holds.
            if state != self._noted[0]:
                self._noted = (state, pickle.dumps((state, None), protocol=5))
            return self._noted[1]
        iterable = (self._drawn, self._is_exhausted, self._shared_seed, self._first_state)
        return pickle.dumps((state, iterable), protocol=5)

    def recall(self, journal: bytes | None) -> None:
        if journal is None:
            return
        state, iterable = pickle.loads(journal)
        if iterable is not None:
            self._replay(*iterable)
        self._draws.restore(state)

    def blamed(self, result: Any) -> tuple[str, object]:
        return "batch", result

    def _replay(self, drawn: int, is_exhausted: bool, seed: int | None, first_state: State) -> None:
        """Draws the samples again that were drawn already, and throws them away."""
        self._is_exhausted = is_exhausted
        if is_exhausted:
            return
        self._draws.restore(first_state)
        if seed != self._shared_seed:
            self._shared_seed = seed
            self._share(seed)
        self._begin()
        assert self._iterator is not None
        for position in range(drawn):
            self._station.reach(position)
            try:
                if next(self._iterator, EXHAUSTED) is EXHAUSTED:
                    break
            except Exception:
                # It was told when it happened first.
                continue
        self._drawn = drawn


def _collate_into(station: _native.Station) -> None:
    """Has torch's default collation write batches straight into the arena."""
    table = _utils.collate.default_collate_fn_map
    plain = table[torch.Tensor]
    thread = threading.get_ident()

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        sample = batch[0]
        if sample.is_nested or sample.layout is not torch.strided or sample.device.type != "cpu":
            result: torch.Tensor = plain(batch, collate_fn_map=collate_fn_map)
            return result
        room: torch.Tensor | None = None
        size = len(batch) * sample.numel() * sample.element_size()
        if type(sample) is torch.Tensor and size > _SMALL and threading.get_ident() == thread:
            room = room_for(station, len(batch), sample)
        if room is None:
            room = sample.new_empty((len(batch), *sample.shape))
        return torch.stack(batch, 0, out=room)

    table[torch.Tensor] = collate_tensors
