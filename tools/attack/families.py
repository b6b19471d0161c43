"""The families of attacks: each is the module of this package with the same name.

A module has one function, `attack(draws, folder)`: it does one round, decided by the random generator, may
write to the folder, and returns how often it did what. It raises `Finding` if something does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random

__all__ = ["FAMILIES", "Attack", "generator", "load"]

Attack = Callable[[Random, Path], Counter[str]]

FAMILIES = {
    "kills": "workers and zygotes are killed or stopped while batches are made",
    "interrupts": "a signal handler raises at a random step of next()",
    "pools": "data sets and functions fork and start pools of their own",
    "tampering": "checkpoints, indices, manifests and lists of excluded samples are changed",
    "sizes": "sizes in files lie, in a memory cgroup",
    "shards": "shards and pictures are corrupted",
    "names": "files, classes, members and columns have hostile names",
    "pipelines": "pipelines are built from random calls with random arguments",
}


def load(name: str) -> Attack:
    """The function of a family. Imports what the family needs, such as torch."""
    attack: Attack = import_module(f"attack.{name}").attack
    return attack


def generator(seed: int, name: str, number: int) -> Random:
    """The random generator of one round, which decides all of it."""
    return Random(f"{seed}/{number}/{name}")
