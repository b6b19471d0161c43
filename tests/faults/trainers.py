"""Runs programs in forks of a process that has imported torch, because the import is slow."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from programs import OPENING

from faults.remains import eventually

__all__ = ["Trainer", "Trainers"]

# Forks a process for each program. The process continues as if it had been started with the program.
NURSERY = """
import json, os, sys
import torch, torch.utils.data, feedline.torch

def next_program():
    while line := sys.stdin.readline():
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            for number, path in ((0, "/dev/null"), (1, job["output"]), (2, job["errors"])):
                os.dup2(os.open(path, os.O_RDWR), number)
            sys.argv = ["-c", *job["arguments"]]
            return job["program"]
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""

exec(compile(next_program(), "<program>", "exec"))
"""


class Trainer:
    """A running program."""

    def __init__(self, pid: int, output: Path, errors: Path, trainers: Trainers) -> None:
        self.pid = pid
        self._output = output
        self._errors = errors
        self._trainers = trainers

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def first_answer(self) -> Any:
        """The first line of its output."""
        assert eventually(lambda: "\n" in self.output or self.errors)
        assert "\n" in self.output, self.errors
        return json.loads(self.output.splitlines()[0])

    def wait(self, seconds: float = 200) -> int:
        """Its exit code. A program that does not end in time is killed, and the test fails."""
        return self._trainers.wait(self, seconds)


class Trainers:
    """Starts programs, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def start(self, program: str, *arguments: object) -> Trainer:
        self._count += 1
        output, errors = (self.folder / f"{self._count}.{kind}" for kind in ("output", "errors"))
        output.touch()
        errors.touch()
        job = {
            "program": OPENING + textwrap.dedent(program),
            "arguments": list(map(str, arguments)),
            "output": str(output),
            "errors": str(errors),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        return Trainer(self._read(), output, errors, self)

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def wait(self, trainer: Trainer, seconds: float) -> int:
        """The forking process also waits for it, and reports how it ended."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        if not poll.poll(seconds * 1000):
            os.kill(trainer.pid, signal.SIGKILL)
            self._read()
            raise AssertionError(f"no end after {seconds} s; it said {trainer.output!r}, {trainer.errors!r}")
        return self._read()

    def run(self, program: str, *arguments: object, seconds: float = 200) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        trainer = self.start(program, *arguments)
        code = trainer.wait(seconds)
        return code, trainer.output, trainer.errors

    def answer(self, program: str, *arguments: object, seconds: float = 200) -> Any:
        """The output of a program, which must succeed."""
        code, output, errors = self.run(program, *arguments, seconds=seconds)
        assert code == 0, errors
        return json.loads(output)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(200)
        self._process.stdout.close()
