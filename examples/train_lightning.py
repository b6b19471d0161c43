"""Trains a small network with Lightning's Trainer. Only the import of DataLoader is Feedline's.

python examples/train_lightning.py
"""

from __future__ import annotations

import logging
import warnings
import zlib
from typing import Any, NamedTuple

import lightning
import torch
from feedline.torch import DataLoader
from torch import nn
from torch.utils.data import Dataset, TensorDataset

CLASSES = 3
SAMPLES = 96
EPOCHS = 2


class Epoch(NamedTuple):
    loss: float
    samples: int
    # Over all batches, in order: the same as with torch's own DataLoader.
    checksum: int


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        self.epochs: list[Epoch] = []

    def on_train_epoch_start(self) -> None:
        self.epoch = Epoch(0.0, 0, 0)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        points, labels = batch
        loss: torch.Tensor = nn.functional.cross_entropy(self.layers(points), labels)
        checksum = zlib.crc32(labels.numpy(), zlib.crc32(points.numpy(), self.epoch.checksum))
        samples = self.epoch.samples + len(labels)
        self.epoch = Epoch(self.epoch.loss + loss.item() * len(labels), samples, checksum)
        return loss

    def on_train_epoch_end(self) -> None:
        self.epochs.append(self.epoch._replace(loss=self.epoch.loss / self.epoch.samples))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def make_dataset() -> TensorDataset:
    """Random points around a center for each class."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(SAMPLES) % CLASSES
    centers = torch.randn(CLASSES, 8, generator=random)
    return TensorDataset(centers[labels] + torch.randn(SAMPLES, 8, generator=random), labels)


def train(dataset: Dataset[Any]) -> list[Epoch]:
    lightning.seed_everything(7, workers=True, verbose=False)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    network = Network()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(network, loader)
    return network.epochs


def main() -> None:
    # Lightning recommends more workers, and logs which GPUs it does not find.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    for number, epoch in enumerate(train(make_dataset()), 1):
        print(f"epoch {number}: loss {epoch.loss:.3f} over {epoch.samples} samples, {epoch.checksum:08x}")


if __name__ == "__main__":
    main()
