"""Trains a small network on torchvision's ImageFolder. Only the import of DataLoader is Feedline's.

    python examples/train_image_folder.py [FOLDER]

The folder has a sub-folder for each class. Without a folder, photos are created in a temporary one.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from feedline.torch import DataLoader
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

CLASSES = ("coast", "forest", "meadow")
PHOTOS = 48
EPOCHS = 2


class Epoch(NamedTuple):
    loss: float
    samples: int
    # Over all batches, in order: the same as with torch's own DataLoader.
    checksum: int


def make_photos(folder: Path) -> None:
    """Creates photos with noise around a colour for each class."""
    random = np.random.default_rng(7)
    colours = random.integers(60, 190, (len(CLASSES), 3))
    for number in range(PHOTOS):
        kind = number % len(CLASSES)
        pixels = colours[kind] + random.normal(scale=40, size=(60, 80, 3))
        path = folder / CLASSES[kind] / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def make_dataset(folder: Path) -> ImageFolder:
    transforms = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    return ImageFolder(folder, transform=transforms)


def train(dataset: Dataset[Any]) -> list[Epoch]:
    torch.manual_seed(7)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    network = nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, len(CLASSES)),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    epochs = []
    for _ in range(EPOCHS):
        total, samples, checksum = 0.0, 0, 0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
            samples += len(labels)
            checksum = zlib.crc32(labels.numpy(), zlib.crc32(images.numpy(), checksum))
        epochs.append(Epoch(total / samples, samples, checksum))
    return epochs


def show(epochs: list[Epoch]) -> None:
    for number, epoch in enumerate(epochs, 1):
        print(f"epoch {number}: loss {epoch.loss:.3f} over {epoch.samples} samples, {epoch.checksum:08x}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="a sub-folder for each class")
    folder = parser.parse_args().folder
    if folder is not None:
        show(train(make_dataset(folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        make_photos(Path(temporary))
        show(train(make_dataset(Path(temporary))))


if __name__ == "__main__":
    main()
