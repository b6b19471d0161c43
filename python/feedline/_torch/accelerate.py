"""Makes Accelerate keep Feedline's loader and its state.

Accelerate rebuilds a prepared loader with torch's class, or for `use_stateful_dataloader` with torchdata's.
It looks the class up by name, and offers no other way to choose it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch.utils.data

__all__ = ["PinMemoryMark", "patch_accelerate"]


class PinMemoryMark(str):
    """The argument `pin_memory_device` of a Feedline loader, which also carries its class and settings.
    Code that rebuilds a loader passes this argument on unchanged."""

    __slots__ = ("kind", "settings")
    kind: type
    settings: dict[str, Any]

    @classmethod
    def of(cls, text: str, kind: type, settings: dict[str, Any]) -> PinMemoryMark:
        mark = cls(text)
        mark.kind = kind
        mark.settings = settings
        return mark

    def __reduce__(self) -> Any:
        return str, (str(self),)


def patch_accelerate() -> None:
    """Replaces the classes that Accelerate uses; does nothing if Accelerate is not imported."""
    module = sys.modules.get("accelerate.data_loader")
    if module is None:
        return
    if getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
        module.DataLoader = _build  # type: ignore[attr-defined]
    adapter = getattr(module, "DataLoaderAdapter", None)
    if adapter is not None and not hasattr(adapter.__init__, "_feedline"):
        adapter.__init__ = _keeping_class(adapter.__init__)
        adapter.state_dict = _refreshed(adapter.state_dict)
        adapter.load_state_dict = _keeping_state(adapter.load_state_dict)


def _build(*arguments: Any, **keywords: Any) -> Any:
    """Accelerate calls this in place of torch's class."""
    mark = keywords.get("pin_memory_device")
    if isinstance(mark, PinMemoryMark):
        return mark.kind(*arguments, **{**mark.settings, **keywords})
    return torch.utils.data.DataLoader(*arguments, **keywords)


def _keeping_class(init: Any) -> Any:
    """The constructor of a prepared loader. All of Feedline's loaders have a state, so none is rebuilt with
    torchdata's class."""

    @functools.wraps(init)
    def build(prepared: Any, *arguments: Any, use_stateful_dataloader: bool = False, **keywords: Any) -> None:
        is_ours = isinstance(keywords.get("pin_memory_device"), PinMemoryMark)
        needs_torchdata = use_stateful_dataloader and not is_ours
        init(prepared, *arguments, use_stateful_dataloader=needs_torchdata, **keywords)
        # With this attribute, Accelerate saves and loads the state of the loader with its checkpoints.
        prepared.use_stateful_dataloader = use_stateful_dataloader

    build._feedline = True  # type: ignore[attr-defined]
    return build


def _refreshed(state_dict: Any) -> Any:
    """Accelerate takes the state before it yields a batch, so that it lacks what the model has drawn from the
    global generators for that batch."""

    @functools.wraps(state_dict)
    def state(prepared: Any) -> Any:
        taken, loader = state_dict(prepared), prepared.base_dataloader
        if isinstance(getattr(loader, "pin_memory_device", None), PinMemoryMark):
            return loader._loader_state.progress.refreshed(loader, taken)
        return taken

    return state


def _keeping_state(load_state_dict: Any) -> Any:
    """Accelerate loads a state into the loader, but then returns the one from before, and would begin with
    epoch 0, by which it seeds its sampler."""

    @functools.wraps(load_state_dict)
    def load(prepared: Any, state_dict: Any) -> Any:
        load_state_dict(prepared, state_dict)
        if isinstance(getattr(prepared.base_dataloader, "pin_memory_device", None), PinMemoryMark):
            prepared.dl_state_dict = dict(state_dict)
            epoch = state_dict["epoch"]
            prepared.iteration = state_dict.get("sampler_epoch", epoch) if state_dict["is_begun"] else epoch

    return load
