"""The part of `feedline demo` that needs Python: an epoch whose workers are killed while it runs."""

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
    """Computes a sample in a few milliseconds, as a real data set would."""
    time.sleep(0.005)
    return np.random.default_rng(index).random((64, 64), dtype=np.float32)


def _kill(pool: Executor, worker_id: int) -> None:
    """Kills a worker with SIGKILL, as the kernel does when memory runs out, and waits for its death."""
    worker = pool.workers[worker_id]
    while not worker.is_ready():
        time.sleep(0.001)
    worker.kill()
    known = len(pool.deaths)
    while len(pool.deaths) == known:
        time.sleep(0.001)


def run(seed: int = 7) -> int:
    """Returns the exit code."""
    draws = random.Random(seed)
    kill_at = set(draws.sample(range(_SAMPLES // 8, _SAMPLES * 7 // 8), _KILLS))
    print(f"\n{_SAMPLES} samples computed by {_WORKERS} Python workers, with {_KILLS} kills while they run")
    correct = 0
    with warnings.catch_warnings(), Executor(_WORKERS) as pool:
        # The deaths are printed below.
        warnings.simplefilter("ignore", WorkerDiedWarning)
        results = pool.map(_sample, range(_SAMPLES), buffersize=4 * _WORKERS)
        for index, sample in enumerate(results):
            correct += np.array_equal(sample, np.random.default_rng(index).random((64, 64), dtype=np.float32))
            if index in kill_at:
                _kill(pool, draws.randrange(_WORKERS))
    for death in pool.deaths:
        print(f"  {death}; replaced")
    lost = len(pool.deaths)
    print(f"{correct} of {_SAMPLES} samples delivered in order with the correct content; {lost} workers lost")
    sys.stdout.flush()
    return 0 if correct == _SAMPLES and lost == _KILLS else 1
