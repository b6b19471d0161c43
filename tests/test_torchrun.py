"""Under torchrun, a run whose ranks are killed continues with other numbers of ranks, and every sample of the
epoch is trained on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

TRAINER = """
import json, os, signal, sys
from pathlib import Path

# A rank that waits for others must not outlive the test.
signal.alarm(300)

import feedline as fl
import numpy as np
import torch
import torch.distributed as dist
from feedline.torch import DataLoader
from torch.utils.data import Dataset, DistributedSampler

SAMPLES = 61

class Indices(Dataset):
    def __len__(self):
        return SAMPLES
    def __getitem__(self, index):
        return index

def torch_loader():
    data = Indices()
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, seed=7), num_workers=1)

def native_loader():
    data = fl.arrays({"x": np.arange(SAMPLES)})
    return data.shuffle(7).shard("auto").batch(2, index=True).loader(threads=1)

# What each rank saved in the newest step that all ranks saved.
def last_complete(folder):
    for step in sorted(folder.glob("step-*"), reverse=True):
        saved = [json.loads(path.read_text()) for path in sorted(step.glob("rank-*.json"))]
        if saved and len(saved) == saved[0]["world"]:
            return saved
    return []

def save(folder, document):
    step = folder / f"step-{document['steps']:03}"
    step.mkdir(exist_ok=True)
    new = step / f"new-{dist.get_rank()}"
    new.write_text(json.dumps(document))
    new.replace(step / f"rank-{dist.get_rank()}.json")

def main(folder, steps_left):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loaders = {"torch": torch_loader(), "native": native_loader()}
    seen = {name: [] for name in loaders}
    saved = last_complete(folder)
    # All ranks have looked before one of them saves again.
    dist.barrier()
    steps = saved[0]["steps"] if saved else 0
    if saved:
        # torch's needs the state of any rank, the native one takes those of all.
        loaders["torch"].load_state_dict(saved[-1]["states"]["torch"])
        loaders["native"].load_state_dict([one["states"]["native"] for one in saved])
    if rank == 0:
        # What the model was trained on so far, by all ranks.
        seen = {name: [index for one in saved for index in one["seen"][name]] for name in loaders}
    model = torch.nn.Linear(1, 1)
    for batch, columns in zip(*loaders.values(), strict=True):
        indices = {"torch": batch.tolist(), "native": columns["index"].tolist()}
        model(torch.tensor([*indices.values()], dtype=torch.float32)[..., None]).sum().backward()
        # As DistributedDataParallel does it, whose imports would take most of the time of this test.
        dist.all_reduce(model.weight.grad)
        if steps_left == 0 and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        steps, steps_left = steps + 1, steps_left - 1
        seen = {name: seen[name] + indices[name] for name in loaders}
        states = {name: loader.state_dict() for name, loader in loaders.items()}
        save(folder, {"world": world, "steps": steps, "seen": seen, "states": states})
    dist.destroy_process_group()

main(Path(sys.argv[1]), int(sys.argv[2]))
"""


def torchrun(folder: Path, ranks: int, steps: int) -> int:
    """Runs so many ranks, of which the last kills itself after a number of steps; -1 is never."""
    program = folder / "trainer.py"
    program.write_text(TRAINER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen([*launcher, str(program), str(folder), str(steps)], start_new_session=True)
    try:
        return process.wait(280)
    finally:
        # SIGTERM first, because torchrun then ends its ranks, which have sessions of their own.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(20)


def seen(folder: Path, ranks: int) -> dict[str, list[list[int]]]:
    """Of each loader, what each rank had seen in the last step that so many ranks saved."""
    steps = [sorted(step.glob("rank-*.json")) for step in sorted(folder.glob("step-*"))]
    last = [paths for paths in steps if len(paths) == ranks][-1]
    saved = [json.loads(path.read_text())["seen"] for path in last]
    return {name: [one[name] for one in saved] for name in ("torch", "native")}


def lengths(folder: Path, ranks: int) -> list[list[int]]:
    return [[len(rank) for rank in found] for found in seen(folder, ranks).values()]


@pytest.mark.timeout(900)
def test_two_ranks_are_killed_and_continue_as_one_and_then_as_three(tmp_path: Path) -> None:
    assert torchrun(tmp_path, ranks=2, steps=3) != 0
    assert lengths(tmp_path, 2) == [[6, 6]] * 2
    assert torchrun(tmp_path, ranks=1, steps=4) != 0
    assert lengths(tmp_path, 1) == [[20]] * 2
    assert torchrun(tmp_path, ranks=3, steps=-1) == 0
    # 41 samples were left: each of three ranks gets 14, because one sample is repeated.
    assert lengths(tmp_path, 3) == [[34, 14, 14]] * 2
    for found in seen(tmp_path, 3).values():
        counts = Counter(index for rank in found for index in rank)
        assert set(counts) == set(range(61))
        assert counts.total() == 62
