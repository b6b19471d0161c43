"""Trains a small network with Hugging Face Accelerate. Only the import of DataLoader is Feedline's.

python examples/train_accelerate.py
accelerate launch --cpu --num_processes 2 examples/train_accelerate.py
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from feedline.torch import DataLoader
from torch import nn
from torch.utils.data import Dataset, TensorDataset

CLASSES = 3
SAMPLES = 96
EPOCHS = 2


class Epoch(NamedTuple):
    loss: float
    samples: int
    # Over all batches of this process, in order: the same as with torch's own DataLoader.
    checksum: int


def make_dataset() -> TensorDataset:
    """Random points around a center for each class."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(SAMPLES) % CLASSES
    centers = torch.randn(CLASSES, 8, generator=random)
    return TensorDataset(centers[labels] + torch.randn(SAMPLES, 8, generator=random), labels)


def train(dataset: Dataset[Any]) -> list[Epoch]:
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    network, optimizer, loader = accelerator.prepare(
        network,
        torch.optim.Adam(network.parameters(), lr=0.01),
        DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2),
    )
    epochs = []
    for _ in range(EPOCHS):
        total, samples, checksum = 0.0, 0, 0
        for points, labels in loader:
            loss = nn.functional.cross_entropy(network(points), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item() * len(labels)
            samples += len(labels)
            checksum = zlib.crc32(labels.numpy(), zlib.crc32(points.numpy(), checksum))
        epochs.append(Epoch(total / samples, samples, checksum))
    accelerator.end_training()
    return epochs


def main() -> None:
    for number, epoch in enumerate(train(make_dataset()), 1):
        print(f"epoch {number}: loss {epoch.loss:.3f} over {epoch.samples} samples, {epoch.checksum:08x}")


if __name__ == "__main__":
    main()
