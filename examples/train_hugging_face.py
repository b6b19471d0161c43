"""Trains a small network on a Hugging Face data set. Only the import of DataLoader is Feedline's.

python examples/train_hugging_face.py
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import datasets  # type: ignore[import-untyped]
import torch
from feedline.torch import DataLoader
from torch import nn

CLASSES = 3
SAMPLES = 96
EPOCHS = 2


class Epoch(NamedTuple):
    loss: float
    samples: int
    # Over all batches, in order: the same as with torch's own DataLoader.
    checksum: int


def make_dataset() -> datasets.Dataset:
    """Random points around a center for each class. Whole batches are fetched at once, because the data set
    has `__getitems__`."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(SAMPLES) % CLASSES
    centers = torch.randn(CLASSES, 8, generator=random)
    points = centers[labels] + torch.randn(SAMPLES, 8, generator=random)
    dataset = datasets.Dataset.from_dict({"point": points.tolist(), "label": labels.tolist()})
    dataset.set_format("torch")
    return dataset


def train(dataset: Any) -> list[Epoch]:
    torch.manual_seed(7)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    epochs = []
    for _ in range(EPOCHS):
        total, samples, checksum = 0.0, 0, 0
        for batch in loader:
            points, labels = batch["point"], batch["label"]
            loss = nn.functional.cross_entropy(network(points), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
            samples += len(labels)
            checksum = zlib.crc32(labels.numpy(), zlib.crc32(points.numpy(), checksum))
        epochs.append(Epoch(total / samples, samples, checksum))
    return epochs


def main() -> None:
    for number, epoch in enumerate(train(make_dataset()), 1):
        print(f"epoch {number}: loss {epoch.loss:.3f} over {epoch.samples} samples, {epoch.checksum:08x}")


if __name__ == "__main__":
    main()
