"""A signal handler raises at a random step of `next()`: no batch is lost, doubled or out of order."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
from faults.interrupts import FRONTS, SAMPLES, Alarm, Interrupter, batches, numbers_of, same

from attack.findings import expect

__all__ = ["attack"]

# More than the steps of one batch, and of one result: with more frequent signals no call would ever finish.
BATCH_STEPS = 1009
RESULT_STEPS = 401
NEVER = 10**9


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Interrupts several fronts, each of them several times."""
    # Before the first batch: Feedline notices handlers that are set later only after some batches.
    signal.signal(signal.SIGUSR2, Interrupter._handle)
    counts: Counter[str] = Counter()
    for front in draws.sample(sorted(FRONTS), 4):
        counts += loaded(draws, front)
    counts += called(draws)
    counts += resumed(draws)
    return counts


def steps(draws: Random, least: int) -> tuple[int, int]:
    """The step of the first signal, and the number of steps between two signals."""
    stride = draws.choice([NEVER, draws.randint(least, 3 * least)])
    return draws.randrange(2 * least if stride == NEVER else stride), stride


def loaded(draws: Random, front: str) -> Counter[str]:
    make, skipped = FRONTS[front]
    wanted = [numbers_of(batch) for batch in make()]
    counts: Counter[str] = Counter()
    for _ in range(3):
        first, stride = steps(draws, BATCH_STEPS)
        loader = make()
        interrupter = Interrupter(first, stride)
        seen = batches(loader, interrupter)
        if interrupter.may_have_lost:
            continue
        what = f"{front}, signals from step {first} on, every {stride}th"
        expect(seen == wanted, f"{what}: the batches are {seen}\nand not {wanted}")
        report = (loader.loader if hasattr(loader, "loader") else loader).report()
        right = (report.delivered, report.skipped) == (SAMPLES - len(skipped), len(skipped))
        expect(right, f"{what}: the report does not add up\n{report}")
        if hasattr(loader, "close"):
            loader.close()
        counts += Counter({"runs": 1, "interrupts": interrupter.raised})
    return counts


def called(draws: Random) -> Counter[str]:
    """Interrupts the iteration over the results of a pool."""
    counts: Counter[str] = Counter()
    with fl.Executor(2) as pool:
        for mapped in (pool.map, fl.map):
            first, stride = steps(draws, RESULT_STEPS)
            chunk = draws.randint(1, 5)
            results: Any = mapped(same, range(40), chunksize=chunk)
            interrupter = Interrupter(first, stride)
            seen = []
            while True:
                try:
                    result = interrupter.next(results)
                except StopIteration:
                    break
                if result is not Alarm:
                    seen.append(result)
            if interrupter.may_have_lost:
                continue
            what = f"{mapped.__qualname__}, chunks of {chunk}, signals from step {first} on, every {stride}th"
            expect(seen == list(range(40)), f"{what}: the results are {seen}")
            counts += Counter({"runs": 1, "interrupts": interrupter.raised})
    return counts


def resumed(draws: Random) -> Counter[str]:
    """Takes a state after an interrupt, which must not count the batch as delivered."""
    front = draws.choice(["native", "map", "map in threads"])
    make = FRONTS[front][0]
    with make() as calm:
        wanted = [numbers_of(batch) for batch in calm]
    first, before = draws.randrange(100), draws.randrange(len(wanted) - 1)
    with make() as loader, make() as later:
        epoch = iter(loader)
        seen = [numbers_of(next(epoch)) for _ in range(before)]
        is_interrupted = Interrupter(first, NEVER).next(epoch) is Alarm
        later.load_state_dict(loader.state_dict())
        seen += [numbers_of(batch) for batch in later]
    right = wanted if is_interrupted else [*wanted[:before], *wanted[before + 1 :]]
    expect(seen == right, f"{front}, a signal at step {first} of batch {before}: {seen}\nand not {right}")
    return Counter({"runs": 1, "interrupts": int(is_interrupted)})
