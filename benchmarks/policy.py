"""Measures what watching over samples costs a run without faults: a policy, a deadline, bounds for leaks.

    python benchmarks/policy.py              for the record
    python benchmarks/policy.py --repeat 3   a quick look

`bare` is feedline.torch.DataLoader without any of it, `guarded` the same with a fault policy (skip, retries,
a limit), a deadline, a stall warning, bounds of memory and samples for each worker, and a callback for
events. They take turns, each measurement in a process of its own, on the workloads `overhead` and `large` of
benchmarks/workers.py with two workers. CPU time is that of the trainer and of all that it started. The goal
is a ratio of 1.02. `bare` beside itself, in the same turns, tells how far from 1 is chance.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from measurement import Task, measure, measure_idle

CONTESTANTS = ("bare", "guarded", "bare")
RESULTS = Path(__file__).parent / "results" / "policy"
GOAL = 1.02


def measure_all(task: Task, repeat: int) -> list[list[float]]:
    """CPU µs for a sample, of each contestant, in turns."""
    values: list[list[float]] = [[] for _ in CONTESTANTS]
    idle = {name: measure_idle(task, name) for name in dict.fromkeys(CONTESTANTS)}
    for repetition in range(repeat):
        order = list(enumerate(CONTESTANTS))
        # Nobody is always the first, which finds the machine cold.
        for place, name in order[repetition % 3 :] + order[: repetition % 3]:
            values[place] += measure(task, name, idle[name]).values["cpu"]
            print(
                f"{task.workload} {repetition + 1}/{repeat} {name}: {values[place][-1]:.2f}", file=sys.stderr
            )
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    lines = [
        "| workload | bare, CPU µs for a sample | guarded | ratio (goal 1.02) | bare beside itself |",
        "|---|---|---|---|---|",
    ]
    numbers = {}
    for task in (Task("overhead", "", 2, 5, 1), Task("large", "", 2, 3, 1)):
        bare, guarded, again = measure_all(task, arguments.repeat)
        numbers[task.workload] = {"bare": bare, "guarded": guarded, "bare again": again}
        middle = median(bare + again)
        spread = [f"{median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in (bare + again, guarded)]
        lines.append(
            f"| {task.workload} | {spread[0]} | {spread[1]} | {median(guarded) / middle:.3f} | "
            f"{median(again) / median(bare):.3f} |"
        )
    print("\n".join(lines))
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/policy.py --repeat {arguments.repeat}"
    (RESULTS / "report.md").write_text(f"`{command}`\n\n" + "\n".join(lines) + "\n")
    (RESULTS / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
