"""A signal handler that raises at a chosen step of `next()`, and the fronts to test it on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import feedline as fl
import numpy as np
import torch
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset

__all__ = ["FRONTS", "SAMPLES", "Alarm", "Interrupter", "Numbers", "arrays", "batches", "numbers_of", "same"]

PACKAGE = str(Path(fl.__file__).parent)
SAMPLES = 24


class Alarm(Exception):  # noqa: N818
    """The exception of the handler. A fault policy would take it for a fault if it reached the policy."""


class Numbers(Dataset[Any]):
    """Samples of which some are bad."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.bad:
            raise ValueError(f"sample {index} is bad")
        return torch.full((1000,), index)


class Stream(IterableDataset[Any]):
    """An iterator that continues after an exception, unlike a generator."""

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.full((1000,), index) for index in range(SAMPLES)])


class Generated(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(SAMPLES):
            yield torch.full((1000,), index)


def same(sample: Any) -> Any:
    return sample


def arrays() -> Any:
    return fl.arrays({"x": np.repeat(np.arange(SAMPLES), 1000).reshape(SAMPLES, 1000)})


BAD = frozenset({3, 8, 9, 17})
SKIP = fl.FaultPolicy("skip")
# A factory of the loader, and the samples that it does not deliver.
FRONTS: dict[str, tuple[Callable[[], Any], frozenset[int]]] = {
    "native": (lambda: arrays().batch(4).loader(), frozenset()),
    "native, as tensors": (lambda: arrays().batch(4).loader().torch(), frozenset()),
    "map": (lambda: arrays().map(same).batch(4).loader(workers=2), frozenset()),
    "map in threads": (lambda: arrays().map(same, threads=True).batch(4).loader(workers=2), frozenset()),
    "torch": (lambda: DataLoader(Numbers(), batch_size=4, num_workers=2), frozenset()),
    "torch, skipping": (
        lambda: DataLoader(Numbers(BAD), batch_size=4, num_workers=2, faults=SKIP),
        BAD,
    ),
    "torch, no workers": (lambda: DataLoader(Numbers(), batch_size=4), frozenset()),
    "torch, no workers, skipping": (lambda: DataLoader(Numbers(BAD), batch_size=4, faults=SKIP), BAD),
    "torch, no workers, replacing": (
        lambda: DataLoader(Numbers(BAD), batch_size=4, faults=fl.FaultPolicy("skip", fill=False)),
        BAD,
    ),
    "torch, iterator, no workers": (lambda: DataLoader(Stream(), batch_size=4), frozenset()),
    "torch, generator, no workers": (lambda: DataLoader(Generated(), batch_size=4), frozenset()),
    "torch, iterator": (lambda: DataLoader(Stream(), batch_size=4, num_workers=1), frozenset()),
}


def numbers_of(batch: Any) -> list[int]:
    column = batch["x"] if isinstance(batch, dict) else batch
    return [int(row[0]) for row in column]


class Interrupter:
    """Sends a signal at every `stride`-th step of the package's code, from the `first` on."""

    def __init__(self, first: int, stride: int) -> None:
        self._left = first
        self._stride = stride
        self._home = os.getpid()
        self.sent = 0
        self.raised = 0
        # A second exception within one call that takes longer than a second is raised at once, even if
        # batches are lost. That is documented, and happens on a busy machine.
        self.may_have_lost = False

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if os.getpid() != self._home:
            # A zygote that is forked inside `next`.
            return None
        if not name.startswith(PACKAGE) and name != __file__:
            return None
        frame.f_trace_opcodes = True
        # Interrupt the data sets of this file, but not its other code.
        if frame.f_code in (batches.__code__, Interrupter.next.__code__, Interrupter._handle.__code__):
            return None
        if self._left == 0:
            self._left = self._stride
            self.sent += 1
            signal.raise_signal(signal.SIGUSR2)
        self._left -= 1
        return self

    @staticmethod
    def _handle(_number: int, _frame: Any) -> None:
        raise Alarm

    def next(self, epoch: Iterator[Any]) -> Any:
        """Returns the next batch, or Alarm if the handler raised instead."""
        began, sent = time.monotonic(), self.sent
        sys.settrace(self)
        try:
            return next(epoch)
        except Alarm:
            self.raised += 1
            return Alarm
        finally:
            sys.settrace(None)
            self.may_have_lost |= self.sent > sent + 1 and time.monotonic() > began + 0.9


def batches(loader: Any, interrupter: Interrupter) -> list[list[int]]:
    epoch = iter(loader)
    seen: list[list[int]] = []
    while True:
        try:
            batch = interrupter.next(epoch)
        except StopIteration:
            return seen
        if batch is not Alarm:
            seen.append(numbers_of(batch))
