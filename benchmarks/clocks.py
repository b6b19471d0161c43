"""CPU time of a process and all its descendants, and of the rest of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# The CPU time that `check` uses in a process of each kind that could be missed.
BURNT_SECONDS, BURNERS = 0.2, ("grandchild that ends", "grandchild that is killed", "orphan")
BURN = f"""
import os, signal, sys, time

def burn():
    while time.process_time() < {BURNT_SECONDS}:
        pass

def start(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child

def killed():
    burn()
    os.write(writer, b"x")
    signal.pause()

def zygote():
    os.waitpid(start(burn), 0)
    victim = start(killed)
    os.read(reader, 1)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    start(burn)

reader, writer = os.pipe()
os.waitpid(start(zygote), 0)
print(time.process_time())
"""


def cpu_seconds() -> float:
    """CPU time of this process, its threads and its descendants so far.

    The kernel adds the time of a child to its parent's only when it has been waited for. Live workers are
    therefore looked up in /proc; a worker that ends meanwhile moves from there to RUSAGE_CHILDREN.
    """
    alive = sum(_descendant_ticks(os.getpid(), dict(_processes())))
    return own_cpu_seconds() + ended_cpu_seconds() + alive / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds() -> float:
    """CPU time of this process and its threads so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ended_cpu_seconds() -> float:
    """CPU time of the children that were waited for, and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def machine_seconds() -> float:
    """CPU time of everything on this machine so far, including time stolen by its host."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends; `reap_orphans` waits for them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")


def reap_orphans(within_seconds: float) -> None:
    """Waits for all children, including adopted ones; afterwards ended_cpu_seconds() includes their time.

    Children that do not end in time are killed, so that they do not count in the next measurement.
    """
    deadline = time.monotonic() + within_seconds
    late: set[int] = set()
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            if time.monotonic() > deadline:
                late |= {pid for pid, (parent, _ticks) in _processes() if parent == os.getpid()}
                for child in late:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
    if late:
        raise RuntimeError(f"processes {sorted(late)} outlived their trainer by {within_seconds:.0f} s")


def check() -> float:
    """Uses CPU time in each kind of descendant, and raises if some of it is not counted here."""
    before = ended_cpu_seconds()
    done = subprocess.run([sys.executable, "-c", BURN], check=True, stdout=subprocess.PIPE, text=True)
    reap_orphans(within_seconds=10)
    counted = ended_cpu_seconds() - before - float(done.stdout)
    burnt = BURNT_SECONDS * len(BURNERS)
    if counted < 0.95 * burnt:
        raise RuntimeError(
            f"{burnt:.2f} s were burnt by {', '.join(BURNERS)}; only {counted:.2f} s are counted"
        )
    return counted


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """Each process with its parent and its CPU time in ticks, including that of its ended children."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # It ended after the folder was listed.
                continue
            yield int(entry.name), (int(fields[1]), sum(int(field) for field in fields[11:15]))


def _descendant_ticks(of: int, table: dict[int, tuple[int, int]]) -> Iterator[int]:
    for pid, (parent, ticks) in table.items():
        if parent == of:
            yield ticks
            yield from _descendant_ticks(pid, table)
