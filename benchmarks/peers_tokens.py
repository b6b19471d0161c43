"""The contestants of the case `tokens`: windows of a file of uint16, in random order, in batches of 64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from material import TOKEN_FILE, WINDOW
from peers import BATCH, Contestant, Epoch, torch_epochs
from peers_tfrecord import epochs_of, grain_epochs


class Windows:
    """Slices of a file that is mapped into memory, as is usual for language models."""

    def __init__(self, folder: str) -> None:
        import numpy as np

        self.tokens = np.memmap(Path(folder) / TOKEN_FILE, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: Any) -> Any:
        import numpy as np

        start = int(index) * WINDOW
        return np.array(self.tokens[start : start + WINDOW])


class Tensors(Windows):
    """The same slices as tensors."""

    def __getitem__(self, index: Any) -> Any:
        import torch

        return torch.from_numpy(super().__getitem__(index))


def feedline(folder: str, case: str, threads: int) -> Epoch:
    import feedline as fl

    pipeline = fl.tokens(f"{folder}/{TOKEN_FILE}", "uint16", WINDOW).shuffle(1)
    return epochs_of(pipeline.batch(BATCH).loader(threads=threads), "tokens")


def torch_in_process(folder: str, case: str, threads: int) -> Epoch:
    return torch_epochs(Tensors(folder), True, 0, lambda batch: batch)


def torch_workers(folder: str, case: str, threads: int) -> Epoch:
    return torch_epochs(Tensors(folder), True, threads, lambda batch: batch)


def grain(folder: str, case: str, threads: int) -> Epoch:
    import grain

    data = grain.MapDataset.source(Windows(folder)).shuffle(seed=1).batch(BATCH)
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * threads)
    return grain_epochs(data.to_iter_dataset(reading), lambda batch: batch)


WINDOWS = (
    Contestant("feedline", "feedline, threads", ("feedline",), feedline),
    Contestant("torch", "torch DataLoader without workers", ("torch",), torch_in_process),
    Contestant("torch-workers", "torch DataLoader, worker processes", ("torch",), torch_workers),
    Contestant("grain", "grain, threads", ("grain",), grain),
)
