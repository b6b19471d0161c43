"""Fixtures for the tests of faults: each test must return all resources that it takes."""

from __future__ import annotations

import faulthandler
import gc
import sys
from collections.abc import Iterator

import pytest
import torch.utils.data
from feedline.torch import DataLoader

from faults.cgroups import Cgroup, cgroup
from faults.remains import nothing_left
from faults.sets import Drawn
from faults.trainers import Trainers


@pytest.fixture(autouse=True, scope="session")
def warm() -> Iterator[None]:
    """Uses both loaders once, so that their one-time set-up does not count as a leak."""
    list(torch.utils.data.DataLoader(Drawn(4), num_workers=1))
    list(DataLoader(Drawn(4), num_workers=1))
    # Objects that exist now stay. Collecting them after each test would take longer than most tests.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def quiet() -> Iterator[None]:
    """pytest makes every process that dies from a signal write its stack, which would disturb these tests."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    yield
    if was_enabled and sys.__stderr__ is not None:
        faulthandler.enable(file=sys.__stderr__)


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    """Starts programs in processes of their own."""
    trainers = Trainers(tmp_path_factory.mktemp("trainers"))
    yield trainers
    trainers.close()


@pytest.fixture
def processes() -> Iterator[Cgroup]:
    """A control group that limits processes and threads."""
    with cgroup("pids") as group:
        yield group


@pytest.fixture
def memory() -> Iterator[Cgroup]:
    """A control group that limits memory."""
    with cgroup("memory") as group:
        yield group


@pytest.fixture(autouse=True)
def leaves_nothing(warm: None, trainers: Trainers) -> Iterator[None]:
    """After each test, processes, threads, descriptors and shared memory are the same as before."""
    with nothing_left():
        yield
