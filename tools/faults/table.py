"""Meets every evil with every front, in processes of their own, and writes the table of docs/faults.md.

    python tools/faults/table.py                 all of it, into docs/faults.md
    python tools/faults/table.py --only SIGKILL  one evil, whose lines in docs/faults.md are made anew

Each run has a time limit: what is not done then hangs, and the table says so. After each run the processes
that it left and the names it left in /dev/shm are counted, then ended.
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

from evils import AT, EVILS, LENGTH, SAMPLES, STRIKES, TRAINER

PROGRAM = Path(__file__).parent / "evils.py"
FRONTS = ("torch", "feedline", "executor", "native")
NAMES = {
    "torch": "torch's DataLoader",
    "feedline": "feedline.torch.DataLoader",
    "executor": "feedline.Executor",
    "native": "native pipeline",
}
# Evils that a native pipeline can meet: it runs no code of others.
NATIVE = {"exception", "EIO at 10 % of the reads", "mount that vanishes for 1.5 s", *TRAINER}
LIMIT = 20.0
GROUP = Path("/sys/fs/cgroup/memory/feedline-table")
DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass
class Run:
    """What became of one run."""

    answer: dict[str, Any] | None
    code: int | None
    seconds: float
    errors: str
    left: list[str] = field(default_factory=list)

    @property
    def is_hanging(self) -> bool:
        return self.code is None


def meet(front: str, evil: str) -> Run:
    """Runs one front against one evil."""
    before = shared_names()
    with tempfile.TemporaryDirectory(prefix="feedline-table-") as folder:
        command = [sys.executable, str(PROGRAM), front, evil, folder]
        marker = f"FEEDLINE_TABLE={os.getpid()}-{time.monotonic_ns()}"
        environment = {**os.environ, **dict([marker.split("=")])}
        in_group = evil.endswith("(cgroup)") and make_group()
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
        code, output, errors = watch(process, evil)
        seconds = time.monotonic() - began
        time.sleep(1.0)
        left = [f"process {pid}" for pid in marked(marker)] + sorted(shared_names() - before)
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        if in_group:
            GROUP.rmdir()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return Run(json.loads(lines[-1]) if lines else None, code, seconds, errors, left)


def watch(process: subprocess.Popen[str], evil: str) -> tuple[int | None, str, str]:
    """Waits for the end, within the limit; does what somebody outside does in the middle."""
    output = ""
    outside = {"Ctrl-C": "SIGINT", "SIGTERM of the trainer": "SIGTERM", "SIGKILL of the trainer": "SIGKILL"}
    if evil in outside:
        assert process.stdout is not None
        output = process.stdout.readline()
        process.send_signal(signal.Signals[outside[evil]])
    try:
        more, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        output += (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
        return None, output, ""
    return process.returncode, output + more, errors


def marked(marker: str) -> list[int]:
    """The processes that were started with a mark in their environment, and are alive."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            has_mark = marker.encode() in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, IndexError):
            continue
        if has_mark and state != "Z":
            found.append(int(folder.name))
    return found


def shared_names() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def make_group() -> bool:
    """A memory cgroup of our own, if this machine lets us."""
    try:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(1536 << 20))
    except OSError:
        return False
    return True


def join_group() -> None:
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def told(run: Run, evil: str) -> str:
    """What happened and what the user saw, in few words."""
    if run.is_hanging:
        return f"hangs, stopped after {LIMIT:.0f} s"
    answer = run.answer
    if answer is None:
        return f"ended with {how(run.code)}"
    delivered, named, ended = answer["delivered"], answer["named"], answer["ended"]
    if ended == "left":
        return f"left after {len(delivered)} samples"
    if ended != "completed":
        if evil in TRAINER:
            return f"`{ended.split(':')[0]}` reached the program"
        names_it = f"sample {AT}" in ended or f"({AT})" in ended
        where = "names the sample" if names_it else "does not name the sample"
        return f"after {len(delivered)} samples `{shown(ended)}`: {where}"
    text = f"completed: {len(set(delivered))} delivered"
    if named:
        text += f", {len(named)} skipped and named"
    lost = LENGTH - len(set(delivered)) - len(named)
    if lost:
        text += f", **{lost} lost in silence**"
    if answer["told"]:
        text += f"; warned: {shown(answer['told'][0])}"
    return text


def shown(text: str) -> str:
    line = re.sub(r" \(pid(\(s\))? [\d, ]+\)", "", text.splitlines()[0]).replace("|", "/")
    return line if len(line) < 110 else line[:107] + "..."


def how(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def lost(run: Run, evil: str) -> str:
    """Samples that were neither delivered nor named, in a run that went on."""
    if run.answer is None or run.answer["ended"] != "completed":
        return "-"
    return str(LENGTH - len(set(run.answer["delivered"])) - len(run.answer["named"]))


def cell(run: Run | None, evil: str) -> str:
    if run is None:
        return "runs no code of yours"
    return f"{told(run, evil)} | {lost(run, evil)} | {len(run.left)}"


def table(evils: list[str], fronts: list[str]) -> list[str]:
    lines = [
        "| evil | front | what happened, what the user saw | lost | left behind |",
        "|---|---|---|---|---|",
    ]
    for evil in evils:
        for front in fronts:
            if front == "native" and evil not in NATIVE:
                continue
            run = meet(front, evil)
            print(f"{evil} / {front}: {told(run, evil)} ({run.seconds:.1f} s)", file=sys.stderr, flush=True)
            if run.answer is None and run.errors and not run.is_hanging and evil not in TRAINER:
                print(run.errors[-800:], file=sys.stderr)
            lines.append(f"| {evil} | {NAMES[front]} | {cell(run, evil)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=EVILS, metavar="EVIL")
    parser.add_argument("--front", action="append", choices=FRONTS)
    arguments = parser.parse_args()
    assert set(EVILS) == {*STRIKES, *SAMPLES, *TRAINER}
    lines = table(list(arguments.only or EVILS), list(arguments.front or FRONTS))
    print("\n".join(lines))
    write(lines)


def write(lines: list[str]) -> None:
    """Puts lines into the document, in the places of those of the same evil and front."""
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    made = f"Made by `python tools/faults/table.py` with {versions}."
    first, rest = DOCUMENT.read_text().split(BEGIN)
    before, last = rest.split(END)
    rows = {key(line): line for line in before.splitlines() if line.startswith("|")}
    rows.update({key(line): line for line in lines})
    DOCUMENT.write_text(f"{first}{BEGIN}\n\n{made}\n\n" + "\n".join(rows.values()) + f"\n\n{END}{last}")


def key(line: str) -> tuple[str, ...]:
    return tuple(line.split(" | ")[:2])


if __name__ == "__main__":
    main()
