"""Makes Accelerate keep Feedline's loader. Accelerate rebuilds a prepared loader with torch's class, which it
looks up by name, and offers no other way to choose the class."""

from __future__ import annotations

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
    """Replaces the class that Accelerate uses; does nothing if Accelerate is not imported."""
    module = sys.modules.get("accelerate.data_loader")
    if module is not None and getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
        module.DataLoader = _build  # type: ignore[attr-defined]


def _build(*arguments: Any, **keywords: Any) -> Any:
    """Accelerate calls this in place of torch's class."""
    mark = keywords.get("pin_memory_device")
    if isinstance(mark, PinMemoryMark):
        return mark.kind(*arguments, **{**mark.settings, **keywords})
    return torch.utils.data.DataLoader(*arguments, **keywords)
