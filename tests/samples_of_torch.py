"""torch data sets that several test files use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Noise(Dataset[Tensor]):
    """Tensors of one size, each filled with its index."""

    def __init__(self, length: int, size: int) -> None:
        self.length = length
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((self.size,), float(index))
