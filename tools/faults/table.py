"""Causes every failure in every front, each in a process of its own, and writes the tables of docs/faults.md.

    python tools/faults/table.py                 the table of runs with a policy, into docs/faults.md
    python tools/faults/table.py --default       the table of runs with default settings
    python tools/faults/table.py --only SIGKILL  one failure, whose lines in docs/faults.md are replaced

Each run has a time limit, after which it counts as hanging. After each run the leftover processes and names
in /dev/shm are counted, and the processes are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from failures import FAILURES, LENGTH, SAMPLES, TRAINER, WORKER_FAILURES

sys.path.insert(0, str(Path(__file__).parents[1]))

from marked_processes import marked

PROGRAM = Path(__file__).parent / "failures.py"
FRONTS = ("torch", "feedline", "executor", "native")
NAMES = {
    "torch": "torch's DataLoader",
    "feedline": "feedline.torch.DataLoader",
    "executor": "feedline.Executor",
    "native": "native pipeline",
}
# Failures that are possible in a native pipeline, which runs no user code.
NATIVE = {"exception", "EIO at 10 % of the reads", "mount that vanishes for 1.5 s", *TRAINER}
LIMIT = 20.0
# Failures that hang with default settings, and the time limit by front: the first warning comes after `stall`
# seconds.
HANGS = {failure for failure in WORKER_FAILURES if "hang" in failure} | {"SIGSTOP", "lock held while forking"}
STALLS = {"feedline": 90.0, "executor": 400.0}
GROUP = Path("/sys/fs/cgroup/memory/feedline-table")
DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
MARKS = {
    False: ("<!-- table: begin -->", "<!-- table: end -->"),
    True: ("<!-- default table: begin -->", "<!-- default table: end -->"),
}


@dataclass
class Run:
    """The result of one run."""

    result: dict[str, Any] | None
    code: int | None
    seconds: float
    errors: str
    left: list[str] = field(default_factory=list)
    # Each warning, with the seconds after which it was shown.
    warned: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_hanging(self) -> bool:
        return self.code is None


def run_failure(front: str, failure: str, *, is_default: bool = False) -> Run:
    """Runs one front with one failure; with `is_default`, with default settings."""
    before = shared_names()
    with tempfile.TemporaryDirectory(prefix="feedline-table-") as folder:
        command = [
            sys.executable,
            str(PROGRAM),
            front,
            failure,
            folder,
            *(["--default"] if is_default else []),
        ]
        # With default settings, runs that do not hang get a longer limit, because a busy machine is slow.
        limit = LIMIT if not is_default else STALLS[front] if failure in HANGS else 4 * LIMIT
        marker = f"FEEDLINE_TABLE={os.getpid()}-{time.monotonic_ns()}"
        environment = {**os.environ, **dict([marker.split("=")])}
        in_group = failure.endswith("(cgroup)") and make_group()
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=join_group if in_group else None,
        )
        code, output, errors = watch(process, failure, limit)
        seconds = time.monotonic() - began
        time.sleep(1.0)
        left = [f"process {pid}" for pid in marked(marker)] + staying(shared_names() - before)
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        if in_group:
            GROUP.rmdir()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    warned = [json.loads(line[7:]) for line in output.splitlines() if line.startswith("warned ")]
    return Run(json.loads(lines[-1]) if lines else None, code, seconds, errors, left, warned)


def watch(process: subprocess.Popen[str], failure: str, limit: float) -> tuple[int | None, str, str]:
    """Waits for the end, within the limit; sends the signal of failures that come from outside."""
    output = ""
    outside = {"Ctrl-C": "SIGINT", "SIGTERM of the trainer": "SIGTERM", "SIGKILL of the trainer": "SIGKILL"}
    if failure in outside:
        assert process.stdout is not None
        output = process.stdout.readline()
        process.send_signal(signal.Signals[outside[failure]])
    try:
        more, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired as late:
        output += (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
        return None, output, ""
    return process.returncode, output + more, errors


def staying(names: set[str]) -> list[str]:
    """The names that stay: those of other programs come and go."""
    until = time.monotonic() + LIMIT
    while names and time.monotonic() < until:
        time.sleep(0.2)
        names &= shared_names()
    return sorted(names)


def shared_names() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def make_group() -> bool:
    """Creates a memory cgroup, if this machine allows it."""
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(1536 << 20))
    except OSError:
        return False
    return True


def join_group() -> None:
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def reported(run: Run, failure: str) -> str:
    """What happened and what the user saw, as a short text."""
    if run.is_hanging:
        text = f"hangs, stopped after {run.seconds:.0f} s"
        if run.warned:
            # Rounded to tens of seconds: a busy machine is slow to start.
            text += f"; warned after {10 * (run.warned[0][0] // 10)} s: {shown(run.warned[0][1])}"
            if "; with deadline=" in run.warned[0][1]:
                text += "; names the deadline= that would end it"
        return text
    result = run.result
    if result is None:
        return f"ended with {how(run.code)}"
    delivered, named, ended = result["delivered"], result["named"], result["ended"]
    if ended == "left":
        return f"left after {len(delivered)} samples"
    if ended != "completed":
        if failure in TRAINER:
            return f"`{ended.split(':')[0]}` reached the program"
        names_it = re.search(r"\bsample \d+|Call\(\d+\)", ended) is not None
        where = "names the sample" if names_it else "does not name the sample"
        return f"after {len(delivered)} samples `{shown(ended)}`: {where}"
    text = f"completed: {len(set(delivered))} delivered"
    if named:
        text += f", {len(named)} skipped and named"
    lost = LENGTH - len(set(delivered)) - len(named)
    if lost:
        text += f", **{lost} lost silently**"
    if result["warnings"]:
        text += f"; warned: {shown(result['warnings'][0])}"
    return text


def shown(text: str) -> str:
    line = re.sub(r" \(pid(\(s\))? [\d, ]+\)", "", text.splitlines()[0]).replace("|", "/")
    line = re.sub(r"/\S*/feedline-table-\w+/", "", line)
    return line if len(line) < 110 else line[:107] + "..."


def how(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def lost(run: Run, failure: str) -> str:
    """The number of samples that were neither delivered nor named, in a completed run."""
    if run.result is None or run.result["ended"] != "completed":
        return "-"
    return str(LENGTH - len(set(run.result["delivered"])) - len(run.result["named"]))


def cell(run: Run | None, failure: str) -> str:
    if run is None:
        return "runs no code of yours"
    return f"{reported(run, failure)} | {lost(run, failure)} | {len(run.left)}"


def fronts_of(failure: str, *, is_default: bool) -> list[str]:
    """The fronts in a table. Torch's own loader is only in the table of runs with a policy."""
    fronts = [front for front in FRONTS if front != "native" or failure in NATIVE]
    return [front for front in fronts if not (is_default and front == "torch")]


def table(failures: list[str], fronts: list[str], *, is_default: bool) -> list[str]:
    lines = [
        "| failure | front | what happened, what the user saw | lost | left behind |",
        "|---|---|---|---|---|",
    ]
    for failure in failures:
        for front in fronts_of(failure, is_default=is_default):
            if front not in fronts:
                continue
            run = run_failure(front, failure, is_default=is_default)
            print(
                f"{failure} / {front}: {reported(run, failure)} ({run.seconds:.1f} s)",
                file=sys.stderr,
                flush=True,
            )
            if run.result is None and run.errors and not run.is_hanging and failure not in TRAINER:
                print(run.errors[-800:], file=sys.stderr)
            lines.append(f"| {failure} | {NAMES[front]} | {cell(run, failure)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=FAILURES, metavar="FAILURE")
    parser.add_argument("--front", action="append", choices=FRONTS)
    parser.add_argument("--default", action="store_true", help="runs with default settings")
    arguments = parser.parse_args()
    assert set(FAILURES) == {*WORKER_FAILURES, *SAMPLES, *TRAINER}
    failures, fronts = list(arguments.only or FAILURES), list(arguments.front or FRONTS)
    lines = table(failures, fronts, is_default=arguments.default)
    print("\n".join(lines))
    write(lines, is_default=arguments.default)


def write(lines: list[str], *, is_default: bool) -> None:
    """Replaces the lines of the same failure and front in the document."""
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    made = f"Made by `python tools/faults/table.py{' --default' if is_default else ''}` with {versions}."
    begin, end = MARKS[is_default]
    first, rest = DOCUMENT.read_text().split(begin)
    last = rest.split(end)[1]
    found = {**rows(is_default=is_default), **{key(line): line for line in lines}}
    order = {key: number for number, key in enumerate(keys(is_default=is_default))}
    ordered = sorted(found, key=lambda row: order.get(row, -1))
    table = "\n".join(found[row] for row in ordered)
    DOCUMENT.write_text(f"{first}{begin}\n\n{made}\n\n{table}\n\n{end}{last}")


def rows(*, is_default: bool) -> dict[tuple[str, ...], str]:
    """The lines of the document, by failure and front."""
    begin, end = MARKS[is_default]
    lines = DOCUMENT.read_text().split(begin)[1].split(end)[0].splitlines()
    return {key(line): line for line in lines if line.startswith("|")}


def keys(*, is_default: bool) -> list[tuple[str, ...]]:
    """The failures and fronts that the document must have, in order."""
    return [
        (f"| {failure}", NAMES[front])
        for failure in FAILURES
        for front in fronts_of(failure, is_default=is_default)
    ]


def key(line: str) -> tuple[str, ...]:
    return tuple(line.split(" | ")[:2])


if __name__ == "__main__":
    main()
