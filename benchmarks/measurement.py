"""One measurement of the worker benchmark: what is asked, what is answered, and the process it is made in."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import clocks

Workload = Literal["transport", "overhead", "large", "startup", "recovery"]
WORKLOADS: tuple[Workload, ...] = get_args(Workload)
LOADERS = ("torch", "feedline")
TRAINER = Path(__file__).with_name("trainer.py")
LONGEST_SECONDS = 600
# Long enough for workers that look for their trainer only now and then, as torch's do.
ORPHAN_SECONDS = 30
# What /proc may show too much: it counts in ticks.
TICKS_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """What a trainer does. `warm_up` and `count` are batches, epochs or kills, after the workload."""

    workload: Workload
    subject: str
    workers: int
    count: int
    warm_up: int = 0
    method: str | None = None
    persistent: bool = False


@dataclass(frozen=True)
class TaskResult:
    """What a trainer found: its values, and how many batches or samples it had in all, the warm-up included.

    `cpu_seconds` is what it knew of while its workers lived.
    """

    values: dict[str, list[float]]
    delivered: int = 0
    cpu_seconds: float = 0.0
    set_up_cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Measured:
    """An answer, seen from outside: `others` is how many cores the rest of the machine took meanwhile."""

    values: dict[str, list[float]]
    others: float


def measure(task: Task, loader: str, idle_seconds: float) -> Measured:
    """Values of one trainer; if it says how much it delivered, then `cpu` too, in µs for each of that.

    CPU time is that of the trainer after its set-up and of all that it started, until the last of them has
    ended, less `idle_seconds`: what a trainer takes that ends after its set-up.
    """
    answer, cpu, others = _run(task, loader, "measure")
    values = dict(answer.values)
    if answer.delivered:
        values["cpu"] = [1e6 * (cpu - answer.set_up_cpu_seconds - idle_seconds) / answer.delivered]
    return Measured(values, others)


def measure_idle(task: Task, loader: str) -> float:
    """CPU seconds that a trainer takes after its set-up if it does nothing."""
    answer, cpu, _others = _run(task, loader, "idle")
    return cpu - answer.set_up_cpu_seconds


def _run(task: Task, loader: str, how: Literal["measure", "idle"]) -> tuple[TaskResult, float, float]:
    """The answer, CPU seconds of the trainer with all its descendants, and cores that others took."""
    command = [sys.executable, str(TRAINER), loader, how, json.dumps(asdict(task))]
    busy, cpu, start = clocks.machine_seconds(), clocks.ended_cpu_seconds(), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    finally:
        clocks.reap_orphans(ORPHAN_SECONDS)
    cpu, seconds = clocks.ended_cpu_seconds() - cpu, time.monotonic() - start
    others = max(0.0, clocks.machine_seconds() - busy - cpu) / seconds
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    answer = TaskResult(**json.loads(lines[-1]))
    if cpu < answer.cpu_seconds - TICKS_SECONDS:
        # A child that nobody waits for, because SIGCHLD is ignored, takes its CPU time with it.
        raise RuntimeError(
            f"the trainer saw {answer.cpu_seconds:.2f} s of CPU time, {cpu:.2f} s are accounted"
        )
    return answer, cpu, others
