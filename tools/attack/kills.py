"""Kills or stops workers and zygotes while batches are loaded: every batch must still be correct."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import numpy as np
import soak
from faults.remains import nothing_left
from faults.sets import Drawn, Listed, Streamed, expected, is_same, seeded
from feedline.torch import DataLoader

from attack.findings import Finding, expect
from attack.victims import Harm, Killer

__all__ = ["attack"]

ANY_NUMBER = 1 << 20


class Pause:
    """Makes samples take some milliseconds, so that most signals arrive while one is being loaded."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, _index: int) -> None:
        time.sleep(self.seconds)


class SlowNumbers(soak.Numbers):
    """The samples of tools/soak.py, with a pause."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(index)


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Runs three of the scenarios."""
    counts: Counter[str] = Counter()
    for run in draws.sample(RUNS, 3):
        # Each run must leave no processes, threads or files behind.
        with nothing_left():
            counts += run(draws)
        counts["runs"] += 1
    return counts


def few_kills(draws: Random) -> Harm:
    """So few kills that no sample is loading in three deaths, which would make it count as their cause."""
    return Harm(
        worker_kills=draws.randint(0, 2),
        zygote_kills=draws.randint(0, 2),
        stops=draws.randint(0, 4),
        pause=draws.choice([0.01, 0.05, 0.2]),
    )


def many_kills(draws: Random) -> Harm:
    return Harm(worker_kills=20, zygote_kills=4, stops=4, pause=draws.choice([0.05, 0.1]))


def start_method(draws: Random) -> str:
    # A fresh interpreter takes seconds to import torch.
    return draws.choice(["fork"] * 7 + ["spawn"])


def torch_batches(draws: Random) -> Counter[str]:
    """The batches must be those of torch's own loader, bit for bit."""
    kind: Any = draws.choice([Drawn, Listed, Streamed])
    arguments: dict[str, Any] = {
        "batch_size": draws.randint(1, 7),
        "num_workers": draws.randint(1, 4),
        "persistent_workers": draws.random() < 0.5,
        "drop_last": draws.random() < 0.3,
    }
    if kind is not Streamed:
        arguments["shuffle"] = draws.random() < 0.5
    seed, epochs = draws.randrange(1000), draws.randint(1, 3)
    wanted = expected(kind, seed=seed, epochs=epochs, **arguments)
    loader = DataLoader(
        kind(hook=Pause(draws.choice([0.0, 0.002, 0.005]))),
        generator=seeded(seed),
        multiprocessing_context=start_method(draws),
        max_deaths=ANY_NUMBER,
        **arguments,
    )
    with Killer(draws, few_kills(draws)) as killer:
        for epoch in range(epochs):
            must_be_same(loader, wanted[epoch], f"{kind.__name__} with {arguments}, epoch {epoch}")
    must_add_up(loader.report())
    return killer.counts


def torch_skipping(draws: Random) -> Counter[str]:
    """With any number of deaths, each sample must be delivered or named."""
    length, fill = draws.randint(50, 300), draws.random() < 0.5
    loader = DataLoader(
        SlowNumbers(length),
        batch_size=soak.BATCH,
        num_workers=draws.randint(1, 4),
        multiprocessing_context=start_method(draws),
        faults=fl.FaultPolicy("skip", fill=fill, limit=None),
        max_deaths=ANY_NUMBER,
    )
    with Killer(draws, many_kills(draws)) as killer:
        got = [numbers_of(batch) for batch in loader]
    check_skipped(got, loader, length, fill=fill)
    return killer.counts


def stopped_for_good(draws: Random) -> Counter[str]:
    """A stopped worker exceeds its deadline, a stopped zygote counts as hanging; both must be replaced."""
    workers = draws.randint(1, 3)
    length = draws.randint(100, 200)
    of_zygote = draws.random() < 0.5
    loader = DataLoader(
        SlowNumbers(length),
        batch_size=soak.BATCH,
        num_workers=workers,
        faults=fl.FaultPolicy("skip", retry=20, fill=True, limit=None),
        max_deaths=ANY_NUMBER,
        deadline=2.0,
        stall=1.0,
    )
    harm = Harm(worker_stops_for_good=int(not of_zygote), zygote_stops_for_good=int(of_zygote), pause=0.05)
    with Killer(draws, harm) as killer:
        got = [numbers_of(batch) for batch in loader]
    check_skipped(got, loader, length, fill=True)
    return killer.counts


def numbers_of(batch: Any) -> list[int]:
    return [int(row[0]) for row in batch]


def check_skipped(got: list[list[int]], loader: Any, length: int, *, fill: bool) -> None:
    report = loader.report()
    named = {fault.index for fault in report.faults}
    for complaint in soak.complaints(got, report, named, length, fill=fill):
        raise Finding(f"{complaint}\n{report}")
    kinds = {fault.kind for fault in report.faults}
    expect(kinds <= {"WorkerDiedError", "DeadlineExceededError"}, f"samples are blamed for {kinds}\n{report}")


def disturb(sample: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    time.sleep(0.002)
    return {"x": sample["x"] + random.integers(0, 1000)}


def mapped(draws: Random) -> Counter[str]:
    """The batches of functions in processes must be those of the same functions in threads."""
    samples, size, epochs = draws.randint(20, 200), draws.randint(1, 9), draws.randint(1, 2)
    source = fl.arrays({"x": np.repeat(np.arange(samples), 700).reshape(samples, 700)})
    if draws.random() < 0.5:
        source = source.shuffle(draws.randrange(1000))
    with source.map(disturb, threads=True).batch(size).loader(workers=1) as calm:
        wanted = [list(calm) for _ in range(epochs)]
    skips = draws.random() < 0.5
    policy = fl.FaultPolicy("skip", limit=None) if skips else None
    with (
        source.map(disturb)
        .batch(size)
        .loader(
            workers=draws.randint(1, 4),
            faults=policy,
            max_deaths=ANY_NUMBER,
            mp_context=start_method(draws),
        ) as loader,
        Killer(draws, few_kills(draws)) as killer,
    ):
        for epoch in range(epochs):
            must_be_same(loader, wanted[epoch], f"map, {samples} samples by {size}, epoch {epoch}")
        must_add_up(loader.report())
    return killer.counts


def slow_square(number: int) -> Any:
    time.sleep(0.002)
    return np.full(500, number) ** 2


def called(draws: Random) -> Counter[str]:
    """Every call of an executor must have its own result in order or, with many deaths, be skipped."""
    count, skips = draws.randint(20, 200), draws.random() < 0.5
    context = multiprocessing.get_context(start_method(draws))
    policy = fl.FaultPolicy("skip", limit=None) if skips else None
    harm = many_kills(draws) if skips else few_kills(draws)
    with (
        fl.Executor(draws.randint(1, 4), context, faults=policy, max_deaths=ANY_NUMBER) as pool,
        Killer(draws, harm) as killer,
    ):
        if skips or draws.random() < 0.5:
            seen = list(pool.map(slow_square, range(count), chunksize=draws.randint(1, 5)))
        else:
            seen = [future.result() for future in [pool.submit(slow_square, n) for n in range(count)]]
        report = pool.report()
    expect(len(seen) == count, f"{len(seen)} results of {count} calls\n{report}")
    skipped = 0
    for number, result in enumerate(seen):
        if isinstance(result, fl.Skipped):
            skipped += 1
            continue
        right = isinstance(result, np.ndarray) and len(result) == 500 and (result == number**2).all()
        expect(right, f"call {number} has the result {result!r:.200}\n{report}")
    counted = (report.submitted, report.returned, report.skipped)
    expect(counted == (count, count - skipped, skipped), f"the report does not add up\n{report}")
    expect(skips or skipped == 0, f"calls were skipped\n{report}")
    return killer.counts


def must_be_same(batches: Iterable[Any], wanted: list[Any], what: str) -> None:
    """Compares each batch when it is delivered: keeping batches would use up the arena."""
    number = -1
    for number, batch in enumerate(batches):
        expect(number < len(wanted), f"{what}: more than {len(wanted)} batches")
        expect(
            is_same(batch, wanted[number]),
            f"{what}: batch {number} is {batch!r:.500}\nand not {wanted[number]!r:.500}",
        )
    expect(number + 1 == len(wanted), f"{what}: {number + 1} batches of {len(wanted)}")


def must_add_up(report: Any) -> None:
    right = report.delivered - report.repeated + report.skipped + report.pending == report.expected
    expect(right, f"the report does not add up\n{report}")
    expect(report.skipped == 0, f"samples were skipped\n{report}")


RUNS = [torch_batches, torch_batches, torch_skipping, stopped_for_good, mapped, called]
