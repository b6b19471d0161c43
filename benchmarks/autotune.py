"""Measures how fast a number of workers that is chosen and tuned ("auto") is, beside fixed numbers.

    python benchmarks/autotune.py           for published results (two hours)
    python benchmarks/autotune.py --quick   one short repetition of `map` (about five minutes)
    python benchmarks/autotune.py --repeat 2 --seconds 16 --settings auto 2 4 16   (20 minutes)

Three kinds of samples: `io` sleeps 20 ms, `cpu` computes for about 4 ms, `mixed` does half of each. The
consumer takes batches of 4 samples and is fast for 4 seconds, then slow for 4 seconds (30 ms for each batch),
in turns. Every measurement is a process of its own. The settings take turns: repetition 1 of all comes before
repetition 2 of any, in another order each time. A ratio compares the median with that of the best fixed
number; the goal for "auto" is 0.9. "auto" tunes the number while it runs, and the time that this takes is in
the figure. The fronts are a pipeline with a function (`map`), torch's loader (`torch`) and `feedline.map`, an
executor (`executor`), of which four results count as a batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import feedline as fl
import numpy as np

RESULTS = Path(__file__).parent / "results" / "autotune"
SETTINGS = ("auto", "1", "2", "4", "8", "16")
WORKLOADS = ("io", "cpu", "mixed")
FRONTS = ("map", "torch", "executor")
SIZE, BATCH = 1_000_000, 4
FAST, SLOW, PAUSE = 4.0, 4.0, 0.03


def load(workload: str) -> int:
    """Makes one sample."""
    sleep, rounds = {"io": (0.02, 0), "cpu": (0.0, 40), "mixed": (0.01, 20)}[workload]
    if sleep:
        time.sleep(sleep)
    # A fixed amount of work: a fixed time would hide that processors are busy.
    return sum(sum(range(10_000)) for _ in range(rounds))


class Samples:
    """A data set for torch's interface."""

    def __init__(self, workload: str) -> None:
        self.workload = workload

    def __getitem__(self, index: int) -> int:
        load(self.workload)
        return index

    def __len__(self) -> int:
        return SIZE


def batches(front: str, workload: str, setting: str) -> Iterator[Any]:
    workers: Any = setting if setting == "auto" else int(setting)
    if front == "torch":
        from feedline.torch import DataLoader

        yield from DataLoader(Samples(workload), batch_size=BATCH, num_workers=workers)  # type: ignore[arg-type]
        return
    if front == "executor":
        with fl.map(load, itertools.repeat(workload, SIZE), workers=workers, chunksize=BATCH) as results:
            while batch := list(itertools.islice(results, BATCH)):
                yield batch
        return

    def function(sample: dict[str, Any]) -> dict[str, Any]:
        load(workload)
        return sample

    source = fl.arrays({"x": np.arange(SIZE)}).map(function).batch(BATCH)
    with source.loader(workers=workers) as loader:
        yield from loader


def measure(front: str, workload: str, setting: str, seconds: float) -> float:
    """Batches per second, from the first one on."""
    iterator = batches(front, workload, setting)
    next(iterator)
    began = time.perf_counter()
    count = 0
    for _ in iterator:
        count += 1
        passed = time.perf_counter() - began
        if passed >= seconds:
            break
        if passed % (FAST + SLOW) >= FAST:
            time.sleep(PAUSE)
    return count / passed


def measured(front: str, workload: str, setting: str, seconds: float) -> float:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--measure", front, workload, setting, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * seconds + 300)
    if done.returncode != 0:
        raise RuntimeError(f"{front} {workload} {setting}: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.splitlines()[-1])


def compare(
    front: str, workload: str, settings: list[str], repeat: int, seconds: float
) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {setting: [] for setting in settings}
    for repetition in range(repeat):
        turn = repetition % len(settings)
        for setting in settings[turn:] + settings[:turn]:
            values[setting].append(measured(front, workload, setting, seconds))
            where = f"{front} {workload} {repetition + 1}/{repeat} {setting}"
            print(f"{where}: {values[setting][-1]:.1f} batches/s", file=sys.stderr, flush=True)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--front", choices=FRONTS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="auto and fixed numbers")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        front, workload, setting, seconds = arguments.measure
        print(measure(front, workload, setting, float(seconds)), flush=True)
        # Workers and buffers end with the process.
        os._exit(0)
    repeat = arguments.repeat or (1 if arguments.quick else 5)
    seconds = arguments.seconds or (16.0 if arguments.quick else 40.0)
    fronts = [arguments.front] if arguments.front else FRONTS[:1] if arguments.quick else FRONTS
    settings = list(dict.fromkeys(["auto", *arguments.settings]))
    lines = [
        f"| front, samples | {' | '.join(settings)} | best, batches/s |",
        "|---|" + "---:|" * (len(settings) + 1),
    ]
    numbers = {}
    for front in fronts:
        for workload in WORKLOADS:
            values = compare(front, workload, settings, repeat, seconds)
            numbers[f"{front} {workload}"] = values
            best = max(median(values[setting]) for setting in settings[1:])
            ratios = [f"{median(values[setting]) / best:.2f}" for setting in settings]
            lines.append(f"| {front}, {workload} | {' | '.join(ratios)} | {best:.1f} |")
    print("\n".join(lines))
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/autotune.py {' '.join(sys.argv[1:])}".strip()
    (RESULTS / "report.md").write_text(f"`{command}`\n\n" + "\n".join(lines) + "\n")
    (RESULTS / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
