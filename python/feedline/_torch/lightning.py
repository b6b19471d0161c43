"""Makes Lightning continue from the state of a loader in three cases in which it would not.

It asks a loader for its length before it restores the checkpoint if `configure_optimizers` uses
`trainer.estimated_stepping_batches`: then it would not load the state at all. And it does not ask for a batch
behind the last one of an epoch: a state that was saved there continues with the next epoch. And it counts
the batches of an epoch itself: with another number of ranks, other batches are left than it believes."""

from __future__ import annotations

import functools
import sys
from typing import Any

__all__ = ["patch_lightning"]

_MODULES = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def patch_lightning(kind: type) -> None:
    """Completes the method that sets up loaders, for loaders of this kind; does nothing if Lightning is not
    imported."""
    for name in _MODULES:
        loop = getattr(sys.modules.get(name), "_FitLoop", None)
        if loop is None or hasattr(loop.setup_data, "_feedline"):
            continue
        loop.setup_data = _completed(loop.setup_data, kind)
        loop._load_combined_loader_states = _marked(loop._load_combined_loader_states, kind)


def _completed(setup_data: Any, kind: type) -> Any:
    @functools.wraps(setup_data)
    def setup(loop: Any) -> None:
        before = loop._combined_loader
        setup_data(loop)
        loader = loop._combined_loader
        if loader is None or loader is not before or not loop._combined_loader_states_to_load:
            return
        if loop.restarting and any(isinstance(one, kind) for one in loader.flattened):
            loop._load_combined_loader_states()
            iter(loop._data_fetcher)

    setup._feedline = True  # type: ignore[attr-defined]
    return setup


def _marked(load_states: Any, kind: type) -> Any:
    @functools.wraps(load_states)
    def load(loop: Any) -> None:
        load_states(loop)
        loaders = [] if loop._combined_loader is None else loop._combined_loader.flattened
        for loader in loaders:
            if isinstance(loader, kind):
                loader._skips_empty_rest = True  # type: ignore[attr-defined]
        if len(loaders) == 1 and isinstance(loaders[0], kind):
            _recount(loop, loaders[0])

    return load


def _recount(loop: Any, loader: Any) -> None:
    """Counts as many batches of the epoch as done as these ranks would have had."""
    left = loader._loader_state.progress.left_of_divided(loader)
    if left is None:
        return
    counts = loop.epoch_loop.batch_progress.current
    more = len(loader) - left - counts.ready
    for name in ("ready", "started", "processed", "completed"):
        setattr(counts, name, getattr(counts, name) + more)
