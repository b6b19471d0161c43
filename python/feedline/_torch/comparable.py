"""What a state and the loader that continues from it must have in common, and which loaders have no state."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from feedline._torch.sampling import SamplerReader, is_stateful, sampler_of
from feedline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from feedline.torch import DataLoader

__all__ = ["check_resumable", "settings_of"]


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What must be the same when a state is loaded."""
    sampler = sampler_of(loader)
    samples = loader._loader_state.samples
    is_iterable = isinstance(loader.dataset, IterableDataset)
    settings: dict[str, Any] = {
        "dataset": samples.name if not is_iterable else type(loader.dataset).__qualname__,
        "sampler": type(sampler).__qualname__,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "in_order": loader.in_order or loader.num_workers == 0,
        "seeding": loader.seeding,
    }
    if loader.batch_size is None and loader.batch_sampler is not None:
        settings["batch_sampler"] = type(loader.batch_sampler).__qualname__
        settings["batch_size"] = getattr(loader.batch_sampler, "batch_size", None)
        # Accelerate divides batches among processes.
        for name in ("num_processes", "process_index", "split_batches", "even_batches"):
            value = getattr(loader.batch_sampler, name, None)
            if isinstance(value, (int, bool)):
                settings[name] = value
    for name in ("num_replicas", "rank", "seed", "initial_seed", "shuffle", "replacement", "num_samples"):
        value = getattr(sampler, name, None)
        # How many samples a rank has follows from the others.
        if isinstance(value, (int, bool)) and not (name == "num_samples" and "rank" in settings):
            settings[name] = value
    if loader.faults is not None:
        rules = {**loader.faults.settings(), "has_replacement": loader.faults.has_replacement}
        settings["faults"] = {
            name: rules[name]
            for name in ("action", "fill", "by_type", "limit", "window", "has_replacement")
            if name in rules
        }
    if loader._excluded:
        keys = sorted(map(repr, loader._excluded))
        settings["excluded"] = f"{len(keys)} samples ({zlib.crc32(repr(keys).encode()):08x})"
    return settings


def check_resumable(loader: DataLoader[Any], reader: SamplerReader | None) -> None:
    """Refuses to make a state that could not be continued from exactly."""
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    policy = loader.faults
    chooses = policy is not None and "replace" in policy._actions() and not policy.has_replacement
    is_own = is_stateful(sampler) or (reader is not None and reader.is_stateful)
    why = ""
    if is_own and chooses:
        why = 'action="replace" may take any sample of the epoch, and a stateful sampler is not read again'
    elif is_own and loader._excluded:
        why = "exclude= reads ahead, and a stateful sampler is not read again"
    elif chooses and loader.num_workers > 0 and not loader.in_order:
        why = 'action="replace" may take any sample that came before, and with in_order=False these differ'
    if why:
        raise InvalidArgumentError.explained(
            f"DataLoader: this loader has no state that could be continued: {why}",
            'use action="skip", or a sampler without state_dict(), or in_order=True',
        )
