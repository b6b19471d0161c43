"""The torch front fits into a memory cgroup into which torch's own loader just fits."""

from __future__ import annotations

import pytest

from faults.cgroups import Cgroup
from faults.trainers import Trainers

BATCHES = 48

LOADER = """
import warnings
import torch
(Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))
if arguments[1] == "torch":
    from torch.utils.data import DataLoader
else:
    from feedline.torch import DataLoader

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 32 * int(arguments[2])
    def __getitem__(self, index):
        # Takes a while, as decoding does.
        image = torch.full((3, 256, 256), float(index))
        for _ in range(4):
            image = image.flip(0).clone()
        return image

warnings.simplefilter("ignore")
loader = DataLoader(Images(), batch_size=32, num_workers=8, multiprocessing_context="fork")
seen = 0
for batch in loader:
    seen += len(batch)
    assert batch[-1, 0, 0, 0] == seen - 1
    del batch
say([seen, [death.cause for death in getattr(loader, "deaths", [])]])
"""


@pytest.mark.alone
def test_where_the_loader_of_torch_just_fits_this_one_fits_too(trainers: Trainers, memory: Cgroup) -> None:
    assert trainers.answer(LOADER, memory, "torch", BATCHES, seconds=300) == [32 * BATCHES, []]
    memory.limit(memory.peak_bytes())

    assert trainers.answer(LOADER, memory, "feedline", BATCHES, seconds=300) == [32 * BATCHES, []]
