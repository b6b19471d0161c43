"""One measurement of the worker benchmark: its task, its result, and the process that runs it."""

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
# Long enough for workers that check for their trainer only now and then, as torch's do.
ORPHAN_SECONDS = 30
# The error of /proc, which counts in ticks.
TICKS_SECONDS = 0.1


@dataclass(frozen=True)
class Task:
    """What a trainer does. `warm_up` and `count` are batches, epochs or kills, depending on the workload."""

    workload: Workload
    subject: str
    workers: int
    count: int
    warm_up: int = 0
    method: str | None = None
    persistent: bool = False


@dataclass(frozen=True)
class TaskResult:
    """The result of a trainer: its values, and the number of batches or samples, including the warm-up.

    `cpu_seconds` is the CPU time that it measured while its workers were alive.
    """

    values: dict[str, list[float]]
    delivered: int = 0
    cpu_seconds: float = 0.0
    set_up_cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Measured:
    """The values of a measurement; `others` is the number of cores that the rest of the machine used
    meanwhile."""

    values: dict[str, list[float]]
    others: float


def measure(task: Task, loader: str, idle_seconds: float) -> Measured:
    """The values of one trainer; if it counts what it delivered, also `cpu`, in µs for each batch or sample.

    CPU time is that of the trainer after its set-up and of all its descendants, until the last of them has
    ended, minus `idle_seconds`, the time of a trainer that ends after its set-up.
    """
    result, cpu, others = _run(task, loader, "measure")
    values = dict(result.values)
    if result.delivered:
        values["cpu"] = [1e6 * (cpu - result.set_up_cpu_seconds - idle_seconds) / result.delivered]
    return Measured(values, others)


def measure_idle(task: Task, loader: str) -> float:
    """CPU seconds that a trainer uses after its set-up if it does nothing."""
    result, cpu, _others = _run(task, loader, "idle")
    return cpu - result.set_up_cpu_seconds


def _run(task: Task, loader: str, how: Literal["measure", "idle"]) -> tuple[TaskResult, float, float]:
    """The result, the CPU seconds of the trainer with all its descendants, and the cores that others used."""
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
    result = TaskResult(**json.loads(lines[-1]))
    if cpu < result.cpu_seconds - TICKS_SECONDS:
        # If SIGCHLD is ignored, children are not waited for, and their CPU time is lost.
        raise RuntimeError(
            f"the trainer measured {result.cpu_seconds:.2f} s of CPU time, but {cpu:.2f} s are accounted for"
        )
    return result, cpu, others
