"""Makes a batch or a sample of a `DataLoader` again, in the thread that asks, for debugging."""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, _utils

from feedline._described import described
from feedline._numpy import seed_global
from feedline._replay import checked, generators_kept
from feedline._torch.batch_maker import getter
from feedline._torch.generators import Generators, GlobalStates
from feedline._torch.indices import without
from feedline._torch.sampling import sampler_of
from feedline._torch.seeding import SampleSeeding, SeededDataset
from feedline.errors import FeedlineWarning, InvalidArgumentError

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["EpochStart", "Replay"]


@dataclass(frozen=True)
class EpochStart:
    """What the order and the random numbers of an epoch follow from."""

    base_seed: int
    generators: Generators
    # Of these generators when the sampler was read, as bytes or as text.
    states: list[Any]
    others: dict[str, Any]
    sampler_epoch: int | None
    # Whether workers had drawn random numbers before, in an earlier epoch.
    has_old_workers: bool
    # Why the batches of this epoch cannot be found again.
    why_not: str = ""

    @contextlib.contextmanager
    def restored(self, loader: DataLoader[Any]) -> Iterator[None]:
        """While the sampler is read again. The generators are left as they were."""
        sampler, now = sampler_of(loader), self.generators.states()
        epoch = getattr(sampler, "epoch", None)
        with generators_kept():
            try:
                if self.states and isinstance(self.states[0], str):
                    self.generators.set_texts(self.states)
                else:
                    self.generators.set(self.states)
                GlobalStates.set(self.others)
                if self.sampler_epoch is not None:
                    sampler.set_epoch(self.sampler_epoch)
                yield
            finally:
                self.generators.set(now)
                if self.sampler_epoch is not None:
                    sampler.set_epoch(epoch)


class Replay:
    """Makes batches and samples of one epoch."""

    def __init__(
        self, loader: DataLoader[Any], epoch: int, start: EpochStart | None, seed: int | None
    ) -> None:
        if isinstance(loader.dataset, IterableDataset):
            raise InvalidArgumentError.explained(
                "replay: an iterable data set gives its samples in sequence, and cannot make one again",
                "iterate over the data set itself, with num_workers=0",
            )
        self._loader = loader
        self._epoch = epoch
        self._start = start
        self._is_batched = loader._auto_collation
        self._seeding: SampleSeeding | None = None
        if loader.seeding == "sample":
            known = start.base_seed if start is not None else seed
            if known is None:
                raise InvalidArgumentError.explained(
                    f"replay: this loader has not begun epoch {epoch}, so its seed is not known",
                    "give seed=... from the message, or load a state of that epoch first",
                )
            self._seeding = SampleSeeding(checked("seed", known), epoch)
        dataset: Any = loader.dataset
        self._dataset = dataset if self._seeding is None else SeededDataset(dataset, self._seeding)
        self._one = getter(self._dataset)

    # ---- what is asked for ----

    def batch(self, number: int) -> Any:
        indices = self._indices(number)
        with self._as_in_worker(number):
            samples = self._samples(indices)
            return self._collated(samples, indices)

    def sample(self, index: Any) -> Any:
        if self._seeding is not None or self._start is None or self._loader.num_workers == 0:
            if self._seeding is None:
                self._warn("they depend on what was drawn before")
            with generators_kept():
                return self._one(index)
        number, batch = self._find(index)
        with self._as_in_worker(number):
            for other in batch:
                if _is_same(other, index):
                    break
                with contextlib.suppress(Exception):
                    self._one(other)
            return self._one(index)

    # ---- the order ----

    def _batches(self) -> Iterator[Any]:
        """The batches of indices, in the order of the epoch."""
        start, loader = self._start, self._loader
        if start is None or start.why_not:
            why = f"this loader has not begun epoch {self._epoch}" if start is None else start.why_not
            raise InvalidArgumentError.explained(
                f"replay: the batches of epoch {self._epoch} are not known: {why}",
                "load a state of that epoch first, or replay a sample with index=...",
            )
        with start.restored(loader):
            batches: Any = iter(loader._index_sampler)
            if not self._is_batched:
                yield from batches
            elif not loader._excluded:
                yield from map(list, batches)
            else:
                given = without(batches, loader._excluded, left_out=lambda count: None, ranks=1)
                yield from (batch for batch, *_ in given)

    def _indices(self, number: int) -> Any:
        count = -1
        with contextlib.closing(self._batches()) as batches:  # type: ignore[type-var]
            for count, batch in enumerate(batches):
                if count == number:
                    return batch
        raise InvalidArgumentError.explained(
            f"replay: there is no batch {number}: epoch {self._epoch} has {count + 1} batches",
            "batches count from 0",
        )

    def _find(self, index: Any) -> tuple[int, list[Any]]:
        """The number of the batch with a sample, and the indices of the batch."""
        with contextlib.closing(self._batches()) as batches:  # type: ignore[type-var]
            for number, batch in enumerate(batches):
                indices = batch if self._is_batched else [batch]
                if any(_is_same(other, index) for other in indices):
                    return number, indices
        raise InvalidArgumentError.explained(
            f"replay: sample {described(index)} is not in epoch {self._epoch} of this loader",
            "the sampler may belong to another rank, or exclude= may leave it out",
        )

    # ---- making ----

    @contextlib.contextmanager
    def _as_in_worker(self, number: int) -> Iterator[None]:
        """Random numbers as in the worker that made a batch: it has made others before, if samples have no
        random numbers of their own."""
        loader, start = self._loader, self._start
        workers = loader.num_workers
        with generators_kept():
            if self._seeding is not None or workers == 0 or start is None:
                if self._seeding is None:
                    self._warn("they depend on what was drawn before")
                yield
                return
            if start.has_old_workers:
                self._warn("persistent workers have drawn others in the epochs before")
            worker = number % workers
            before = getattr(_utils.worker, "_worker_info", None)
            seed = start.base_seed + worker
            _utils.worker._worker_info = _utils.worker.WorkerInfo(
                id=worker, num_workers=workers, seed=seed, dataset=loader.dataset
            )
            try:
                random.seed(seed)
                torch.manual_seed(seed)
                seed_global(_utils.worker._generate_state(start.base_seed, worker))
                if loader.worker_init_fn is not None:
                    loader.worker_init_fn(worker)
                self._make_earlier(worker, number, workers)
                yield
            finally:
                _utils.worker._worker_info = before

    def _make_earlier(self, worker: int, number: int, workers: int) -> None:
        """Makes what a worker made before a batch, since all draw from the same generators."""
        if number < workers:
            return
        warnings.warn(
            f"replay: worker {worker} made {number // workers} batches before batch {number} with the same "
            'generators, so these are made first\nhint: with seeding="sample", a sample depends on no other',
            FeedlineWarning,
            stacklevel=2,
        )
        with contextlib.closing(self._batches()) as batches:  # type: ignore[type-var]
            earlier = list(itertools.islice(batches, worker, number, workers))
        for indices in earlier:
            with contextlib.suppress(Exception):
                # A bad sample was skipped, or raised in the run.
                self._loader.collate_fn(self._good(indices))

    def _good(self, indices: Any) -> Any:
        """The samples of a batch without those that raise."""
        with contextlib.suppress(Exception):
            if not self._is_batched or getattr(self._dataset, "__getitems__", None):
                return self._samples(indices)
        samples = []
        for index in indices:
            with contextlib.suppress(Exception):
                samples.append(self._one(index))
        return samples

    def _samples(self, indices: Any) -> Any:
        if not self._is_batched:
            return self._one(indices)
        together = getattr(self._dataset, "__getitems__", None)
        return together(indices) if together else [self._one(index) for index in indices]

    def _collated(self, samples: Any, indices: Any) -> Any:
        if self._seeding is not None:
            self._seeding.note_batch(indices)
            self._seeding.begin_batch()
        return self._loader.collate_fn(samples)

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"replay: the random numbers may differ from those of the run: {why}\n"
            'hint: with seeding="sample", a sample has the same ones everywhere',
            FeedlineWarning,
            stacklevel=2,
        )


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False
