"""Trains a small network in several processes with DistributedDataParallel. Only the import of DataLoader is
Feedline's.

torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from feedline.torch import DataLoader
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 3
SAMPLES = 96
EPOCHS = 2


class Epoch(NamedTuple):
    loss: float
    samples: int
    # Over all batches of each process, in order: the same as with torch's own DataLoader.
    checksums: list[int]


def make_dataset() -> TensorDataset:
    """Random points around a center for each class."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(SAMPLES) % CLASSES
    centers = torch.randn(CLASSES, 8, generator=random)
    return TensorDataset(centers[labels] + torch.randn(SAMPLES, 8, generator=random), labels)


def train(dataset: Dataset[Any]) -> list[Epoch]:
    torch.manual_seed(7)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=7)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    network = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES)))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    epochs = []
    for number in range(EPOCHS):
        sampler.set_epoch(number)
        total, samples, checksum = 0.0, 0, 0
        for points, labels in loader:
            loss = nn.functional.cross_entropy(network(points), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
            samples += len(labels)
            checksum = zlib.crc32(labels.numpy(), zlib.crc32(points.numpy(), checksum))
        epochs.append(over_all_processes(total, samples, checksum))
    return epochs


def over_all_processes(total: float, samples: int, checksum: int) -> Epoch:
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, (total, samples, checksum))
    totals, counts, checksums = zip(*shares, strict=True)
    return Epoch(sum(totals) / sum(counts), sum(counts), list(checksums))


def main() -> None:
    dist.init_process_group("gloo")
    epochs = train(make_dataset())
    if dist.get_rank() == 0:
        for number, epoch in enumerate(epochs, 1):
            checksums = " ".join(f"{checksum:08x}" for checksum in epoch.checksums)
            print(f"epoch {number}: loss {epoch.loss:.3f} over {epoch.samples} samples, {checksums}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
