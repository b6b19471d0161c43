"""Runs programs for tests that need a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["answer", "descriptors", "endings", "run", "start", "threads"]

# The prelude of each program: it imports feedline, and `say` prints the program's answer.
OPENING = """
import json, os, signal, sys, threading, time
from pathlib import Path
import feedline as fl

# A process that is started in the background ignores Ctrl-C, which these programs test.
signal.signal(signal.SIGINT, signal.default_int_handler)
arguments = sys.argv[1:]

def say(value):
    print(json.dumps(value), flush=True)

def memory(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10

def descriptors():
    return len(os.listdir("/proc/self/fd")) - 1

# Counts the open files of a folder repeatedly while its block runs.
class Watch:
    def __init__(self, folder):
        self.folder, self.most, self.running = str(folder), 0, True
    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self
    def look(self):
        while self.running:
            self.most = max(self.most, self.count())
    def count(self):
        # A fork copies the descriptor table at one instant. Reading the table of a running process
        # may see one descriptor close and another open, and count both.
        child = os.fork()
        if child == 0:
            open_now = 255
            try:
                os.close(0)
                open_now = sum(map(self.is_ours, os.listdir("/proc/self/fd")))
            finally:
                os._exit(open_now)
        _, status = os.waitpid(child, 0)
        counted = os.waitstatus_to_exitcode(status)
        assert 0 <= counted < 255, counted
        return counted
    def is_ours(self, number):
        try:
            return os.readlink(f"/proc/self/fd/{number}").startswith(self.folder)
        except FileNotFoundError:  # The descriptor of this listing itself.
            return False
    def __exit__(self, *error):
        self.running = False
        self.thread.join()
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts a program; the caller must wait for it."""
    text = OPENING + textwrap.dedent(program)
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(program: str, *arguments: object, seconds: float = 200) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program, which is killed if it does not end in time."""
    with start(program, *arguments) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"no end after {seconds} s; it said {output!r}, {errors!r}") from None
    return process.returncode, output, errors


def answer(program: str, *arguments: object, seconds: float = 200) -> Any:
    """The answer of a program, which must succeed."""
    code, output, errors = run(program, *arguments, seconds=seconds)
    assert code == 0, errors
    return json.loads(output)


def endings(opening: str, programs: list[str], *arguments: object) -> list[tuple[int, str]]:
    """Exit code and stderr of each program. Each program is a fork of one interpreter that has run
    `opening`, and ends as an interpreter does."""
    text = textwrap.dedent(opening) + textwrap.dedent(
        f"""
        ended = []
        for program in {list(map(textwrap.dedent, programs))!r}:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.dup2(write, 2)
                os.close(read)
                os.close(write)
                break
            os.close(write)
            with open(read) as errors:
                said = errors.read()
            ended.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said])
        else:
            say(ended)
            program = ""
        exec(program)
        """
    )
    return [(code, said) for code, said in answer(text, *arguments)]


def threads() -> set[int]:
    """The ids of the threads of this process."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def descriptors() -> int:
    """The number of open descriptors, without the one that is opened to count them."""
    return len(list(Path("/proc/self/fd").iterdir())) - 1
