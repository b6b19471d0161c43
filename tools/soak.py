"""Runs a loader with injected faults for a while, and checks after each epoch that no sample was lost.

    python tools/soak.py --minutes 10 --workers 8

1 % of the samples kill their worker, 2 % raise at every attempt, 5 % of the reads fail with EIO, 0.1 % hang.
Each epoch must deliver or name every sample, in the order of a run without faults minus the skipped samples;
and over all epochs the memory and the descriptors of the trainer must not grow.
Exit codes: 0 no problems, 1 problems found.
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
# How much more than after the first two epochs, the warm-up, the trainer may use.
MORE_MEMORY = 64 << 20
MORE_DESCRIPTORS = 8


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that contain their index, and are large enough to be sent through the arena."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((512,), index, dtype=torch.int64)


@dataclass
class Usage:
    """The memory, descriptors and threads of this process."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Usage:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(list(Path("/proc/self/fd").iterdir())),
            len(list(Path("/proc/self/task").iterdir())),
        )


def expected_batches(length: int, bad: set[int], *, fill: bool) -> list[list[int]]:
    """The batches of an epoch, computed from the documented rule alone."""
    batches = [list(range(start, min(start + BATCH, length))) for start in range(0, length, BATCH)]
    for number, batch in enumerate(batches):
        # In rounds: first all slots of bad samples, then those whose filling sample is bad as well.
        slots = [position for position, index in enumerate(batch) if index in bad]
        while fill and slots:
            for position in slots:
                if len(batches) - 1 > number:
                    batch[position] = batches[-1].pop()
                    if not batches[-1]:
                        batches.pop()
                else:
                    fill = False
            slots = [position for position in slots if batch[position] in bad]
    kept = [[index for index in batch if index not in bad] for batch in batches]
    return [batch for batch in kept if batch]


def epochs(arguments: argparse.Namespace) -> Iterator[tuple[int, list[str], Any]]:
    """Runs epochs until the time is up; yields the number, the problems and the report of each."""
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
        bad = {index for index in indices if settings.injects("raise_", index)}
        yield number, list(complaints(got, report, bad, arguments.samples, fill=fill)), report
        number += 1


def complaints(got: list[list[int]], report: Any, bad: set[int], length: int, *, fill: bool) -> Iterator[str]:
    """The problems of an epoch."""
    flat = [index for batch in got for index in batch]
    named = {fault.index for fault in report.faults}
    if report.delivered + report.skipped != report.expected or report.expected != length:
        yield f"{report.delivered} delivered + {report.skipped} skipped is not {length}"
    if len(flat) != len(set(flat)):
        yield f"{len(flat) - len(set(flat))} samples were delivered twice"
    lost = set(range(length)) - set(flat) - named
    if lost:
        yield f"samples were lost silently: {sorted(lost)[:10]}"
    if named != bad:
        yield f"the samples named as bad differ from the injected faults: {sorted(named ^ bad)[:10]}"
    if got != expected_batches(length, bad, fill=fill):
        yield "the order is not that of a run without faults minus the skipped samples"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2000, help="samples in an epoch")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds that a sample may take")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    problems: list[str] = []
    warm: Usage | None = None
    most = Usage(0, 0, 0)
    totals = {"epochs": 0, "samples": 0, "skipped": 0, "retried": 0, "deaths": 0}
    print("epoch  delivered  skipped  retried  deaths  memory MiB  descriptors")
    for number, complaint, report in epochs(arguments):
        usage = Usage.now()
        deaths = sum(report.workers_lost.values())
        counts = (1, report.delivered, report.skipped, report.retried, deaths)
        totals = {name: total + count for (name, total), count in zip(totals.items(), counts, strict=True)}
        print(
            f"{number:5}  {report.delivered:9}  {report.skipped:7}  {report.retried:7}  {deaths:6}  "
            f"{usage.memory >> 20:10}  {usage.descriptors:11}",
            flush=True,
        )
        problems += [f"epoch {number}: {text}" for text in complaint]
        if number == 1:
            warm = usage
        most = Usage(
            max(most.memory, usage.memory),
            max(most.descriptors, usage.descriptors),
            max(most.threads, usage.threads),
        )
    if warm is not None and most.memory > warm.memory + MORE_MEMORY:
        problems.append(f"memory grew from {warm.memory >> 20} to {most.memory >> 20} MiB")
    if warm is not None and most.descriptors > warm.descriptors + MORE_DESCRIPTORS:
        problems.append(f"descriptors grew from {warm.descriptors} to {most.descriptors}")
    print("\n".join(problems) or f"no problems: {totals}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
