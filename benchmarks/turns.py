"""Runs measurements in turns: each in a process of its own, and no contestant twice before the others
once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

from report import Measured, Table

LONGEST_SECONDS = 1800


def run_measurement(program: str, *arguments: str) -> Measured:
    """Runs a program that prints one measurement as a line of JSON."""
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return Measured(**json.loads(lines[-1]))


def fill(table: Table, names: Sequence[str], repeat: int, measure: Callable[[str], Measured]) -> None:
    """Measures each contestant `repeat` times. Repetition 1 of all comes before repetition 2 of any, and each
    repetition starts with another; a contestant that cannot run is left out with a note."""
    table.measured.update({name: [] for name in names})
    for repetition in range(repeat):
        turn = repetition % len(names)
        for name in [*names[turn:], *names[:turn]]:
            if name not in table.measured:
                continue
            where = f"{table.size} {table.workload} {repetition + 1}/{repeat} {name}"
            try:
                measured = measure(name)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                del table.measured[name]
                log(f"{where}: left out, {error}")
                continue
            table.measured[name].append(measured)
            rate = f"{measured.rate:.0f} {table.units}/s, {measured.cpu_micros:.1f} CPU µs/{table.unit}"
            log(f"{where}: {rate}, others {measured.others_share:.0%} of a core")


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
