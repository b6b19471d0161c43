"""Accelerate builds prepared loaders again, with torch's class by name: here it is told to take ours where
the loader was ours. It offers no other way to say so."""

from __future__ import annotations

import sys
from typing import Any

import torch.utils.data

__all__ = ["Mark", "stay_in_charge"]


class Mark(str):
    """The argument `pin_memory_device` of a loader of ours: the text it was, and whose it is. Who builds a
    loader again hands it on as it is."""

    __slots__ = ("kind", "settings")
    kind: type
    settings: dict[str, Any]

    @classmethod
    def of(cls, text: str, kind: type, settings: dict[str, Any]) -> Mark:
        mark = cls(text)
        mark.kind = kind
        mark.settings = settings
        return mark

    def __reduce__(self) -> Any:
        return str, (str(self),)


def stay_in_charge() -> None:
    """Called for each loader of ours that is made; does nothing where Accelerate is not loaded."""
    module = sys.modules.get("accelerate.data_loader")
    if module is not None and getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
        module.DataLoader = _build  # type: ignore[attr-defined]


def _build(*arguments: Any, **keywords: Any) -> Any:
    """What Accelerate calls in place of torch's class."""
    mark = keywords.get("pin_memory_device")
    if isinstance(mark, Mark):
        return mark.kind(*arguments, **{**mark.settings, **keywords})
    return torch.utils.data.DataLoader(*arguments, **keywords)
