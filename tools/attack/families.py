"""The families of attacks: each is the module of this package with the same name.

A module has one function, `attack(draws, folder)`: it runs one round, which depends only on the random
generator, may write to the folder, and returns counts of what it did. It raises `Finding` if a check fails.
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
    "kills": "workers and zygotes are killed or stopped while batches are loaded",
    "interrupts": "a signal handler raises at a random step of next()",
    "pools": "data sets and functions fork and start pools of their own",
    "tampering": "states, indices, manifests and lists of excluded samples are changed",
    "sizes": "sizes in files lie, in a memory cgroup",
    "shards": "shards and pictures are corrupted",
    "names": "files, classes, members and columns have hostile names",
    "pipelines": "pipelines are built from random calls with random arguments",
}


def load(name: str) -> Attack:
    """The function of a family. Imports the modules that it needs, such as torch."""
    attack: Attack = import_module(f"attack.{name}").attack
    return attack


def generator(seed: int, name: str, number: int) -> Random:
    """The random generator of one round, on which everything in the round depends."""
    return Random(f"{seed}/{number}/{name}")
