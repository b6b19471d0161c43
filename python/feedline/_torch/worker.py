"""What the workers of a torch loader are sent before their first task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data.dataloader import _DatasetKind

from feedline import _native
from feedline._torch.batch_worker import BatchWorker
from feedline._torch.dataset_state import DatasetPlace
from feedline._torch.iterable_worker import IterableWorker
from feedline._torch.map_worker import MapWorker
from feedline.faults import FaultPolicy

__all__ = ["LoaderWork"]


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
        faults: FaultPolicy | None,
        fill: bool,
        folders: frozenset[str] = frozenset(),
        epoch: int | None = None,
        tracks: bool = False,
        snapshot_every: int = 1,
        places: Sequence[DatasetPlace | None] = (),
    ) -> None:
        """With `tracks`, batches come with the place in the data set behind them; `places` are where workers
        begin. If each sample has random numbers of its own, `epoch` is the epoch that begins."""
        self.epoch = epoch
        self.tracks = tracks
        self.snapshot_every = snapshot_every
        self.places = places
        self.dataset = dataset
        self.kind = kind
        self.auto_collation = auto_collation
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.base_seed = base_seed
        self.worker_init_fn = worker_init_fn
        self.worker_count = num_workers
        self.shared_seed = shared_seed
        self.values = values
        self.faults = faults
        self.fill = fill
        self.folders = folders

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> BatchWorker:
        kind = IterableWorker if self.kind == _DatasetKind.Iterable else MapWorker
        return kind(self, worker_id, connection)
