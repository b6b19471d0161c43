"""The arenas of several torch loaders in one process are within one budget."""

from __future__ import annotations

import textwrap

import pytest

from faults.cgroups import Cgroup
from faults.trainers import Trainers

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

MIB = 1 << 20
BATCH = 8 * MIB

OPENING = """
import warnings
import torch, torch.utils.data
from feedline.torch import DataLoader
warnings.simplefilter("ignore")
MIB = 1 << 20
group = Path(arguments[0])
(group / "cgroup.procs").write_text(str(os.getpid()))
old = group / "memory.limit_in_bytes"
(old if old.exists() else group / "memory.max").write_text(str(1024 * MIB))

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return torch.full((8 * MIB,), index, dtype=torch.uint8)

def loader(**options):
    return DataLoader(Large(), 1, num_workers=2, prefetch_factor=16, **options)

def number(batch):
    return int(batch[0][0])

def peaks(loader):
    return loader.report().resources["shared_memory"].__dict__
"""


def with_opening(program: str) -> str:
    return OPENING + textwrap.dedent(program)


@pytest.mark.parametrize("kept", [0, 4])
def test_a_loader_for_training_and_one_for_validation_share_one_budget(
    trainers: Trainers, memory: Cgroup, kept: int
) -> None:
    program = with_opening(
        f"""
        training, validation = loader(), loader()
        found, kept = [], []
        for pair in zip(training, validation, strict=True):
            found.append([number(batch) for batch in pair])
            kept = [pair, *kept][:{kept}]
            # Workers go on meanwhile, as far as they may.
            time.sleep(0.1)
        say([found, peaks(training), peaks(validation), len(training.deaths) + len(validation.deaths)])
        """
    )

    found, *both, deaths = trainers.answer(program, memory, seconds=300)

    assert found == [[index, index] for index in range(96)]
    assert deaths == 0
    budget = both[0]["process_budget"]
    assert 64 * MIB <= budget <= 256 * MIB
    for peaks in both:
        # The batch that a consumer waits for takes its memory in any case.
        assert budget // 2 < peaks["process_peak"] <= budget + 2 * BATCH
        assert peaks["peak"] <= peaks["process_peak"]


def test_one_loader_after_another_has_the_whole_budget(trainers: Trainers, memory: Cgroup) -> None:
    program = with_opening(
        """
        first = loader()
        running = iter(first)
        next(running)
        second = loader()
        del running
        found = []
        for batch in second:
            found.append(number(batch))
            time.sleep(0.1)
        say([found, peaks(second)])
        """
    )

    found, peaks = trainers.answer(program, memory, seconds=300)

    assert found == list(range(96))
    # All that it wants to hold: what others do not use is not kept for them.
    assert min(peaks["budget"], 32 * BATCH) * 3 // 4 < peaks["peak"] <= peaks["process_budget"] + BATCH
