"""Runs one round in a process of its own, and returns its outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from marked_processes import marked

from attack.memory_group import remove_group

__all__ = ["Outcome", "run"]

TOOLS = Path(__file__).parents[1]
# Seconds that processes of a round may take to end after it.
_GRACE = 30.0
# How many bytes of the end of stderr are shown.
_SHOWN = 8000


@dataclass
class Outcome:
    """The outcome of a round."""

    counts: Counter[str] = field(default_factory=Counter)
    finding: str | None = None
    # Why the attack is not possible on this machine.
    not_possible: str | None = None
    seconds: float = 0.0


def run(seed: int, name: str, number: int, limit: float) -> Outcome:
    """Runs one round, which may take `limit` seconds."""
    with tempfile.TemporaryDirectory(prefix="feedline-attack-", ignore_cleanup_errors=True) as folder:
        marker = f"FEEDLINE_ATTACK={os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "attack.child", str(seed), name, str(number), folder]
        began = time.monotonic()
        # To a file: leftover processes would keep a pipe open.
        with (Path(folder) / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                [*command, str(0.9 * limit)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=_environment(marker, folder),
                cwd=folder,
                start_new_session=True,
            )
            try:
                code = _wait(process, limit)
            except BaseException:
                # Ctrl-C does not reach the round, which has its own session.
                process.kill()
                process.wait()
                _left(marker, 0.0)
                remove_group(process.pid)
                raise
        outcome = _read(Path(folder), code, limit)
        left = _left(marker, 0.0 if code is None else _GRACE)
        remove_group(process.pid)
        if left and outcome.finding is None:
            outcome.finding = f"processes are left behind: {', '.join(left)}"
        outcome.seconds = time.monotonic() - began
        return outcome


def _environment(marker: str, folder: str) -> dict[str, str]:
    paths = [str(TOOLS), str(TOOLS.parent / "tests"), str(TOOLS.parent / "python")]
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **dict([marker.split("=")]),
        "PYTHONPATH": os.pathsep.join([*paths, *([known] if known else [])]),
        "FEEDLINE_CACHE": f"{folder}/cache",
    }


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code; None if the process does not end in time."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _read(folder: Path, code: int | None, limit: float) -> Outcome:
    try:
        result = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        result = {}
    outcome = Outcome(Counter(result.get("counts")), result.get("finding"), result.get("not_possible"))
    if outcome.finding is not None:
        return outcome
    output = (folder / "stderr").read_bytes()[-_SHOWN:].decode(errors="backslashreplace")
    if code is None:
        outcome.finding = f"hangs: no end after {limit:.0f} s\n{output}"
    elif code != 0 or not result:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        outcome.finding = f"the process ended with {how}\n{output}"
    return outcome


def _left(marker: str, seconds: float) -> list[str]:
    """The processes of a round that are still alive after some seconds; kills them."""
    until = time.monotonic() + seconds
    while (pids := marked(marker)) and time.monotonic() < until:
        time.sleep(0.01)
    left = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue
        left.append(f"{pid} ({command[:100].strip()})")
    return left
