"""Torch: a `DataLoader` whose workers are replaced when they die, and native batches as tensors.

Importing it requires torch.
"""

from __future__ import annotations

import inspect
import multiprocessing
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.dlpack import from_dlpack

from feedline import _native
from feedline._account import OVERDUE, Account, check
from feedline._arguments import suggests_all
from feedline._config import Auto, call_as_json, check_finite
from feedline._described import described
from feedline._replay import checked, one_of
from feedline._torch.accelerate import PinMemoryMark, patch_accelerate
from feedline._torch.excluded import excluded
from feedline._torch.in_process import InProcess
from feedline._torch.indices import keys
from feedline._torch.lightning import patch_lightning
from feedline._torch.loader_state import LoaderState
from feedline._torch.replay import Replay
from feedline._torch.samples import Samples
from feedline._torch.supervised import WithWorkers
from feedline._workers.deadline import deadline_config
from feedline._workers.death import Death
from feedline._workers.tuning import Tuning
from feedline._workers.worker_count import loader_workers
from feedline.errors import InvalidArgumentError
from feedline.events import Event
from feedline.faults import FaultPolicy
from feedline.loader import Columns, Epoch, Loader
from feedline.report import Report

__all__ = ["Batches", "DataLoader", "StatefulDataLoader"]

T_co = TypeVar("T_co", covariant=True)
# Seconds without progress after which a worker's stack is shown.
_STALL = 30.0
_TAKES_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters


@suggests_all(inside={"faults": FaultPolicy})
class DataLoader(torch.utils.data.DataLoader[T_co]):
    """torch's `DataLoader`, with the same arguments and the same order, on supervised workers.

    A worker that dies, for whatever reason, is replaced; its batch is recomputed with the same random
    numbers, and the epoch continues in the same order. A warning names the worker, the cause and the sample.
    It takes all arguments of torch's loader, and these:

    Args:
        num_workers: as in torch; also "auto": the number of worker ids, on which seeds depend, follows from
            the machine: twice the processors that this process may use, by affinity and CPU quota, at least
            16, and one for each GiB of memory that it may use. How many of them compute at once is tuned.
        on_death: "replace", or "raise": the first death ends the run with `feedline.errors.WorkerDiedError`.
            Use "raise" for iterable data sets that cannot be restarted: a replacement iterates from the start
            and throws away what was delivered.
        max_deaths: how many deaths within `death_window` are allowed; "auto" is twice the workers, at
            least 5. One more ends the run with `feedline.errors.TooManyDeathsError` and the history.
        death_window: the window for `max_deaths`, in seconds.
        memory: bytes of shared memory for batches that workers send, as a number or as in "2GiB"; "auto" is
            a quarter of the free memory, at most 8 GiB. In sizes, "4G" and "4GiB" are 4 * 1024**3 bytes,
            "4GB" is 4 * 1000**3.
        faults: what to do about samples that raise, kill their worker or hang: a `feedline.FaultPolicy`.
            By default, the first such sample raises an error that names it.
        deadline: seconds that one sample may take in a worker. After that, Feedline records the worker's
            stack, kills it and replaces it; `faults` decides what happens to the sample. "auto": a worker
            that neither answers nor uses the processor for 5 to 9 minutes (20 times as long as the slowest
            sample so far) counts as hung and is replaced; its sample is retried once before `faults`
            decides. None for never.
        stall: seconds without progress after which a warning shows the stack of the worker, once. None
            for no warning.
        max_worker_memory: bytes of resident memory, as in "4G", beyond which a worker is replaced: after
            its batch, and once the next worker is ready.
        max_samples_per_worker: how many samples a worker loads before it is replaced in this way.
        exclude: a quarantine file of an earlier run over the same data set, or a folder of such files: their
            samples are left out.
        on_event: called with each `feedline.Event`, in the thread that iterates.
        seeding: "worker": `random`, NumPy and torch are seeded once in each worker, as torch does. "sample":
            for each sample, by the seed of the epoch and its index, so that random transforms give the same
            batches with any number of workers, after restarts and retries, and in a run that is continued.

    Attributes:
        deaths: all deaths of workers of this loader, as `feedline.Death`.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Auto = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_death: str = "replace",
        max_deaths: int | str = "auto",
        death_window: float = 60.0,
        memory: int | str = "auto",
        faults: FaultPolicy | None = None,
        deadline: float | str | None = "auto",
        stall: float | None = _STALL,
        max_worker_memory: int | str | None = None,
        max_samples_per_worker: int | None = None,
        exclude: str | os.PathLike[str] | None = None,
        on_event: Callable[[Event], None] | None = None,
        seeding: str = "worker",
    ) -> None:
        check(faults, on_event)
        if seeding not in ("worker", "sample"):
            raise InvalidArgumentError.explained(
                f'DataLoader: seeding must be "worker" or "sample", got {described(seeding)}'
            )
        self.seeding = seeding
        tuning = None
        # Arguments of any type come here, also arrays, which cannot be compared.
        if isinstance(num_workers, str) and num_workers == "auto":
            first, num_workers = loader_workers()
            tuning = Tuning(first, num_workers, has_fixed_ids=True)
        _check_workers(num_workers, deadline, stall, max_worker_memory, max_samples_per_worker)
        self.faults = faults
        self.deadline = deadline
        self.stall = stall
        self.max_worker_memory = max_worker_memory
        self.max_samples_per_worker = max_samples_per_worker
        self.exclude = None if exclude is None else os.fsdecode(exclude)
        self.on_event = on_event
        self.on_death = on_death
        self.max_deaths = max_deaths
        self.death_window = death_window
        self.memory = memory
        check_finite("DataLoader", "timeout", timeout)
        watched = dataset if faults is not None else None
        self._loader_state = LoaderState(Account(faults, on_event), Samples(dataset), watched)
        self._loader_state.tuning = tuning
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **({"in_order": in_order} if _TAKES_IN_ORDER else {}),
        )
        # torch's class has this argument since 2.6; Feedline keeps the order in every version.
        self.in_order = in_order
        _native.check_workers(call_as_json({**self._config(), "workers": max(1, num_workers)}))
        self.pin_memory_device = PinMemoryMark.of(pin_memory_device, self._kind(), self._settings())
        patch_accelerate()
        patch_lightning(DataLoader)
        if isinstance(dataset, IterableDataset):
            self._check_iterable()
        # Read now: the run may write to the same file, which must not change what is excluded.
        self._excluded = keys(
            () if self.exclude is None else excluded(self.exclude, self._loader_state.samples)
        )

    def _kind(self) -> type:
        """The class that frameworks make a loader of again. Not that of a user: its arguments may differ."""
        return DataLoader

    def _check_iterable(self) -> None:
        """Rejects settings that need the index of a sample, which an iterable data set does not have."""
        if self.seeding == "sample":
            raise InvalidArgumentError.explained(
                'seeding="sample" seeds by index, which samples of an iterable data set do not have',
                'use a map-style data set, or seeding="worker"',
            )
        if self.exclude is not None:
            raise InvalidArgumentError.explained(
                f"exclude={self.exclude!r} names samples by index, which an iterable data set does not have",
                "use a map-style data set",
            )
        if (
            self.faults is not None
            and "replace" in self.faults._actions()
            and not self.faults.has_replacement
        ):
            raise InvalidArgumentError.explained(
                'action="replace" takes a sample of another index, which an iterable data set does not have',
                'use action="skip", or give the sample with replacement=...',
            )

    def _settings(self) -> dict[str, Any]:
        """The arguments that torch's class does not have."""
        return {
            "on_death": self.on_death,
            "max_deaths": self.max_deaths,
            "death_window": self.death_window,
            "memory": self.memory,
            "faults": self.faults,
            "deadline": self.deadline,
            "stall": self.stall,
            "max_worker_memory": self.max_worker_memory,
            "max_samples_per_worker": self.max_samples_per_worker,
            "exclude": self.exclude,
            "on_event": self.on_event,
            "seeding": self.seeding,
        }

    def _config(self) -> dict[str, Any]:
        config = {"call": "DataLoader", "workers": self.num_workers, "suspect_after": 2, **self._settings()}
        for name in ("faults", "exclude", "on_event", "seeding"):
            del config[name]
        return {**config, **deadline_config(self.deadline, self._loader_state.account.retries(OVERDUE))}

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate reads this just before it rebuilds the loader."""
        patch_accelerate()
        return bool(self.__dict__.get("_is_prepared", False))

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        self.__dict__["_is_prepared"] = is_prepared

    @property
    def _is_fresh(self) -> bool:
        """Whether workers start in a fresh interpreter, not as forks."""
        context = self.multiprocessing_context or multiprocessing
        return bool(context.get_start_method() != "fork")

    # After how many batches of an iterable data set its own state is taken.
    _snapshot_every = 1
    # Whether the next epoch begins if a state was loaded behind the last batch of one.
    _skips_empty_rest = False

    def __iter__(self) -> _BaseDataLoaderIter:
        # Persistent workers are gone if the last run ended with an error: start new ones.
        if isinstance(self._iterator, WithWorkers) and self._iterator._shutdown:
            self._iterator = None
        if self._skips_empty_rest and self._loader_state.progress.is_at_end(self):
            # The epoch is over, though nobody has asked for more.
            self._loader_state.progress.prepare(self)
            for _ in super().__iter__():
                break
        self._skips_empty_rest = False
        self._loader_state.progress.prepare(self)
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """The state as of the last batch that the consumer has: what was prefetched does not count. It is a
        small dict of plain data, which JSON can hold. Call it between any two batches, or between epochs."""
        patch_lightning(DataLoader)
        return self._loader_state.progress.state(self)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continues from a state with the next `iter()`: with the batch behind the last one that the consumer
        of that run had, or with its next epoch. A state of other data or settings is refused, and the error
        says what differs; with strict=False, it is not."""
        self._loader_state.progress.load(self, state_dict, strict=strict)
        iterator, self._iterator = self._iterator, None
        if isinstance(iterator, WithWorkers):
            iterator._shutdown_workers()

    def replay(
        self,
        batch: int | None = None,
        *,
        index: Any = None,
        epoch: int | None = None,
        seed: int | None = None,
    ) -> Any:
        """Makes a batch or a sample again, in this thread and with the same random numbers, so that you can
        follow it in a debugger. The run itself does not change.

        What a sample raises is raised here, whatever the policy is. With seeding="worker", all batches that
        the worker made before are made first, because they draw from the same generators; without workers,
        the random numbers of the run are not known.

        Args:
            batch: the number of a batch in its epoch, from 0. It has the samples of an epoch in which none is
                skipped.
            index: the index of a sample in the data set. The result is what the data set returns for it.
            epoch: the epoch, from 0; by default the one that runs or was begun last.
            seed: the seed of the epoch with seeding="sample", from the message of an error, if this loader
                has not begun that epoch.
        """
        one_of(batch, index)
        progress = self._loader_state.progress
        number = progress.newest_epoch if epoch is None else checked("epoch", epoch)
        replay = Replay(self, number, progress.start_of(number), seed)
        return replay.sample(index) if batch is None else replay.batch(checked("batch", batch))

    def check_worker_number_rationality(self) -> None:
        """torch warns of more workers than processors, which the user did not ask for with "auto"."""
        if self._loader_state.tuning is None:
            super().check_worker_number_rationality()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return InProcess(self)
        self.check_worker_number_rationality()
        return WithWorkers(self)

    @property
    def deaths(self) -> list[Death]:
        """All deaths of workers of this loader."""
        return self._loader_state.deaths

    def report(self) -> Report:
        """The counts of all samples so far (delivered, skipped, retried), and the workers lost, by cause."""
        return self._loader_state.account.report()


class StatefulDataLoader(DataLoader[T_co]):
    """torchdata's `StatefulDataLoader`, with the same arguments and protocol, on supervised workers. Its
    order is that of `DataLoader`, with and without workers.

    Args:
        snapshot_every_n_steps: after how many batches of a worker the own state of an iterable data set is
            taken. What was drawn since is drawn again when the state is loaded, so that no batch is lost or
            repeated whatever the number.
    """

    def __init__(
        self, dataset: Dataset[T_co], *arguments: Any, snapshot_every_n_steps: int | None = 1, **keywords: Any
    ) -> None:
        count = 0 if snapshot_every_n_steps is None else snapshot_every_n_steps
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidArgumentError.explained(
                "StatefulDataLoader: snapshot_every_n_steps must be a whole number from 0, got "
                f"{described(snapshot_every_n_steps)}",
                "give 1 to take the state after each batch",
            )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._snapshot_every = count
        super().__init__(dataset, *arguments, **keywords)

    def _kind(self) -> type:
        return StatefulDataLoader

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "snapshot_every_n_steps": self.snapshot_every_n_steps}

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        del config["snapshot_every_n_steps"]
        return config

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """As `DataLoader.load_state_dict`; an empty state is none."""
        if state_dict == {}:
            return
        super().load_state_dict(state_dict, strict=strict)


def _check_workers(
    num_workers: object,
    deadline: object,
    stall: object,
    max_worker_memory: object,
    max_samples_per_worker: object,
) -> None:
    """Rejects an invalid number of workers, and settings that need workers if there are none."""
    try:
        # Integers of NumPy are valid too.
        count = operator.index(num_workers)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError.explained(
            f"DataLoader: num_workers must be a whole number from 0, got {described(num_workers)}",
            'give a number, or num_workers="auto"',
        ) from None
    if count != 0:
        return
    settings = {
        # Defaults are allowed without workers.
        "deadline": None if isinstance(deadline, str) and deadline == "auto" else deadline,
        "stall": None if stall == _STALL else stall,
        "max_worker_memory": max_worker_memory,
        "max_samples_per_worker": max_samples_per_worker,
    }
    for name, value in settings.items():
        if value is not None:
            raise InvalidArgumentError.explained(
                f"DataLoader: {name}={described(value)} is for workers, and num_workers=0 has none",
                f"use num_workers=1 or more, or leave {name} out",
            )


def _tensors(columns: Columns) -> dict[str, Any]:
    return {
        name: from_dlpack(value) if isinstance(value, _native.Tensor) else value for name, value in columns
    }


class Batches:
    """A loader whose batches are dicts of tensors; they are not copied."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Epoch[dict[str, Any]]:
        return self.loader._epoch(_tensors)

    def __len__(self) -> int:
        return len(self.loader)
