"""Around each of these tests: what it takes of the system it gives back."""

from __future__ import annotations

import faulthandler
import gc
import sys
from collections.abc import Iterator

import pytest
import torch.utils.data
from feedline.torch import DataLoader

from faults.remains import nothing_left
from faults.sets import Drawn
from faults.trainers import Trainers


@pytest.fixture(autouse=True, scope="session")
def warm() -> Iterator[None]:
    """Both loaders once, so that what they make once for a process is there."""
    list(torch.utils.data.DataLoader(Drawn(4), num_workers=1))
    list(DataLoader(Drawn(4), num_workers=1))
    # What is here now stays; to look at all of it again after each test takes longer than most of them.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def quiet() -> Iterator[None]:
    """pytest has every process that dies of a signal write its stack; here that is what is tested."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    yield
    if was_enabled and sys.__stderr__ is not None:
        faulthandler.enable(file=sys.__stderr__)


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    """Who starts programs."""
    trainers = Trainers(tmp_path_factory.mktemp("trainers"))
    yield trainers
    trainers.close()


@pytest.fixture(autouse=True)
def leaves_nothing(warm: None, trainers: Trainers) -> Iterator[None]:
    """After each test, processes, threads, descriptors and shared memory are what they were before."""
    with nothing_left():
        yield
