"""The part of `feedline demo` that needs Python: an epoch in which workers are killed while it runs."""

from __future__ import annotations

import random
import sys
import time
import warnings

import numpy as np

from feedline.errors import WorkerDiedWarning
from feedline.executor import Executor

__all__ = ["run"]

_WORKERS = 2
_SAMPLES = 120
_KILLS = 3


def _sample(index: int) -> np.ndarray:
    """A sample that takes some milliseconds to make, as samples do."""
    time.sleep(0.005)
    return np.random.default_rng(index).random((64, 64), dtype=np.float32)


def _kill(pool: Executor, number: int) -> None:
    """As the kernel does when memory runs out: at once and without a word."""
    worker = pool.workers[number]
    while not worker.is_ready():
        time.sleep(0.001)
    worker.kill()
    known = len(pool.deaths)
    while len(pool.deaths) == known:
        time.sleep(0.001)


def run(seed: int = 7) -> int:
    """Returns the exit code."""
    draws = random.Random(seed)
    at = set(draws.sample(range(_SAMPLES // 8, _SAMPLES * 7 // 8), _KILLS))
    print(
        f"\n{_SAMPLES} samples made by Python in {_WORKERS} workers, {_KILLS} of which are killed on the way"
    )
    right = 0
    with warnings.catch_warnings(), Executor(_WORKERS) as pool:
        # They are told below.
        warnings.simplefilter("ignore", WorkerDiedWarning)
        results = pool.map(_sample, range(_SAMPLES), buffersize=4 * _WORKERS)
        for index, sample in enumerate(results):
            right += np.array_equal(sample, np.random.default_rng(index).random((64, 64), dtype=np.float32))
            if index in at:
                _kill(pool, draws.randrange(_WORKERS))
    for death in pool.deaths:
        print(f"  {death}; replaced")
    lost = len(pool.deaths)
    print(f"{right} of {_SAMPLES} samples delivered in order, each as it must be; {lost} workers lost")
    sys.stdout.flush()
    return 0 if right == _SAMPLES and lost == _KILLS else 1
