"""Measures the cost of a fault policy, a deadline and limits for leaks in a run without faults.

    python benchmarks/policy.py              for published results
    python benchmarks/policy.py --repeat 3   a quick run

`bare` is feedline.torch.DataLoader without any of these, `guarded` the same with a fault policy (skip,
retries, a limit), a deadline, a stall warning, limits of memory and samples for each worker, and a callback
for events. They take turns, each measurement in a process of its own, on the workloads `overhead` and `large`
of benchmarks/workers.py with two workers. CPU time is that of the trainer and all its descendants. The goal
is a ratio of 1.02. `bare` compared with itself, in the same turns, shows how far from 1 noise can be.
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
    """CPU µs per sample of each contestant, measured in turns."""
    values: list[list[float]] = [[] for _ in CONTESTANTS]
    idle = {name: measure_idle(task, name) for name in dict.fromkeys(CONTESTANTS)}
    for repetition in range(repeat):
        order = list(enumerate(CONTESTANTS))
        # In another order each time: the first one finds the machine cold.
        for number, name in order[repetition % 3 :] + order[: repetition % 3]:
            values[number] += measure(task, name, idle[name]).values["cpu"]
            print(
                f"{task.workload} {repetition + 1}/{repeat} {name}: {values[number][-1]:.2f}", file=sys.stderr
            )
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    lines = [
        "| workload | bare, CPU µs per sample | guarded | ratio (goal 1.02) | bare / bare |",
        "|---|---|---|---|---|",
    ]
    numbers = {}
    for task in (Task("overhead", "", 2, 5, 1), Task("large", "", 2, 3, 1)):
        bare, guarded, again = measure_all(task, arguments.repeat)
        numbers[task.workload] = {"bare": bare, "guarded": guarded, "bare again": again}
        middle = median(bare + again)
        spread = [
            f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})" for times in (bare + again, guarded)
        ]
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
