"""Trains a small network on a folder of images for two epochs, skips bad files and names them.

    python examples/train_torch.py [FOLDER]

The folder has a sub-folder for each class. Without a folder, photos are created in a temporary one; the last
of them is truncated.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import feedline as fl
import numpy as np
import torch
from PIL import Image
from torch import nn

CLASSES = ("coast", "forest", "meadow")
PHOTOS = 96
EPOCHS = 2


def make_photos(folder: Path) -> None:
    """Creates photos with noise around a colour for each class; the last photo is truncated."""
    random = np.random.default_rng(7)
    colours = random.integers(60, 190, (len(CLASSES), 3))
    path = folder
    for number in range(PHOTOS):
        kind = number % len(CLASSES)
        pixels = colours[kind] + random.normal(scale=40, size=(120, 160, 3))
        path = folder / CLASSES[kind] / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def make_network(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def train(folder: Path) -> None:
    loader = (
        fl.images(folder)
        .shuffle(seed=7)
        .decode()
        .random_resized_crop(64)
        .flip()
        .to_float(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        .batch(16)
        .loader(faults=fl.FaultPolicy(action="skip", limit=0.05))
    )
    torch.manual_seed(7)
    network = make_network(len(loader.classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        total, samples = 0.0, 0
        for batch in loader.torch():
            loss = nn.functional.cross_entropy(network(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(batch["label"])
            samples += len(batch["label"])
        print(f"epoch {epoch + 1}: loss {total / samples:.3f} over {samples} samples")
    print(loader.report())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="a sub-folder for each class")
    folder = parser.parse_args().folder
    if folder is not None:
        train(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        make_photos(Path(temporary))
        train(Path(temporary))


if __name__ == "__main__":
    main()
