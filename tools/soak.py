"""Runs a loader for a while under chaos, and checks after each epoch that nothing was lost.

    python tools/soak.py --minutes 10 --workers 8

Workers are killed at 1 % of the samples, 2 % raise whenever they are made, 5 % of the reads fail with EIO,
0.1 % hang. Each epoch is checked: every sample was delivered or is named in the report, in the order of a run
without chaos less what was skipped; and over all epochs memory and descriptors of the trainer stay flat.
Exit codes: 0 all of it held, 1 something did not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import feedline as fl
import torch
from feedline.testing import Chaos, chaos
from feedline.torch import DataLoader

RATES: dict[str, Any] = {"kill": 0.01, "raise_": 0.02, "eio": 0.05, "hang": 0.001}
BATCH = 16
# What the trainer may hold more than after the first two epochs, when all is warm.
MORE_MEMORY = 64 << 20
MORE_DESCRIPTORS = 8


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that tell which they are, on enough memory to travel in the arena."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((512,), index, dtype=torch.int64)


@dataclass
class Held:
    """What a process holds."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(list(Path("/proc/self/fd").iterdir())),
            len(list(Path("/proc/self/task").iterdir())),
        )


def expected_batches(length: int, bad: set[int], *, fill: bool) -> list[list[int]]:
    """The batches of an epoch without workers, computed from the rule alone."""
    batches = [list(range(start, min(start + BATCH, length))) for start in range(0, length, BATCH)]
    for number, batch in enumerate(batches):
        # In rounds: all places first, then those whose filling is bad as well.
        places = [position for position, index in enumerate(batch) if index in bad]
        while fill and places:
            for position in places:
                if len(batches) - 1 > number:
                    batch[position] = batches[-1].pop()
                    if not batches[-1]:
                        batches.pop()
                else:
                    fill = False
            places = [position for position in places if batch[position] in bad]
    kept = [[index for index in batch if index not in bad] for batch in batches]
    return [batch for batch in kept if batch]


def epochs(arguments: argparse.Namespace) -> Iterator[tuple[int, list[str], Any]]:
    """Runs one epoch after the other until the time is up; tells what was wrong with each."""
    until = time.monotonic() + 60 * arguments.minutes
    number = 0
    while time.monotonic() < until or number == 0:
        seed, fill = arguments.seed + number, number % 2 == 0
        policy = fl.FaultPolicy("skip", retry=20, backoff=0.001, fill=fill)
        loader = DataLoader(
            Numbers(arguments.samples),
            batch_size=BATCH,
            num_workers=arguments.workers,
            faults=policy,
            deadline=arguments.deadline,
            max_deaths=1 << 20,
        )
        chaotic = chaos(loader, seed=seed, **RATES)
        got = [[int(row[0]) for row in batch] for batch in chaotic]
        report = chaotic.report()
        settings = Chaos(seed=seed, **RATES)
        indices = range(arguments.samples)
        bad = {index for index in indices if settings.strikes("raise_", index)}
        yield number, list(complaints(got, report, bad, arguments.samples, fill=fill)), report
        number += 1


def complaints(got: list[list[int]], report: Any, bad: set[int], length: int, *, fill: bool) -> Iterator[str]:
    """What does not hold in an epoch."""
    flat = [index for batch in got for index in batch]
    named = {fault.index for fault in report.faults}
    if report.delivered + report.skipped != report.expected or report.expected != length:
        yield f"{report.delivered} delivered + {report.skipped} skipped is not {length}"
    if len(flat) != len(set(flat)):
        yield f"{len(flat) - len(set(flat))} samples were delivered twice"
    lost = set(range(length)) - set(flat) - named
    if lost:
        yield f"samples were lost in silence: {sorted(lost)[:10]}"
    if named != bad:
        yield f"named as bad: {sorted(named ^ bad)[:10]} differ from what chaos did"
    if got != expected_batches(length, bad, fill=fill):
        yield "the order is not that of a run without chaos less what was skipped"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2000, help="of one epoch")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds that a sample may take")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong: list[str] = []
    warm: Held | None = None
    most = Held(0, 0, 0)
    totals = {"epochs": 0, "samples": 0, "skipped": 0, "retried": 0, "deaths": 0}
    print("epoch  delivered  skipped  retried  deaths  memory MiB  descriptors")
    for number, complaint, report in epochs(arguments):
        held = Held.now()
        deaths = sum(report.workers_lost.values())
        counts = (1, report.delivered, report.skipped, report.retried, deaths)
        totals = {name: total + count for (name, total), count in zip(totals.items(), counts, strict=True)}
        print(
            f"{number:5}  {report.delivered:9}  {report.skipped:7}  {report.retried:7}  {deaths:6}  "
            f"{held.memory >> 20:10}  {held.descriptors:11}",
            flush=True,
        )
        wrong += [f"epoch {number}: {text}" for text in complaint]
        if number == 1:
            warm = held
        most = Held(
            max(most.memory, held.memory),
            max(most.descriptors, held.descriptors),
            max(most.threads, held.threads),
        )
    if warm is not None and most.memory > warm.memory + MORE_MEMORY:
        wrong.append(f"memory grew from {warm.memory >> 20} to {most.memory >> 20} MiB")
    if warm is not None and most.descriptors > warm.descriptors + MORE_DESCRIPTORS:
        wrong.append(f"descriptors grew from {warm.descriptors} to {most.descriptors}")
    print("\n".join(wrong) or f"all of it held: {totals}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
