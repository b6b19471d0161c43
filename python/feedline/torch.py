"""Batches as torch tensors. Imported only by those who have torch."""

from __future__ import annotations

from typing import Any

from torch.utils.dlpack import from_dlpack

from feedline.loader import Columns, Epoch, Loader

__all__ = ["Batches"]


def _tensors(columns: Columns) -> dict[str, Any]:
    return {name: value if isinstance(value, list) else from_dlpack(value) for name, value in columns}


class Batches:
    """A loader whose batches are dicts of tensors, on the memory they were made in."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Epoch[dict[str, Any]]:
        return self.loader._epoch(_tensors)

    def __len__(self) -> int:
        return len(self.loader)
