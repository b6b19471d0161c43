"""A trainer, for one measurement of the worker benchmark: `trainer.py LOADER measure|idle TASK`.

It imports torch, reads batches and does little else, since each spawned worker imports it again.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import numpy as np
import samples
import torch
from clocks import cpu_seconds, own_cpu_seconds
from measurement import Task, TaskResult
from torch.utils.data import DataLoader, Dataset

# Batches after the measured ones, so that as many are prefetched at the end of the measurement as at its
# start.
AHEAD_BATCHES = 16
OVERHEAD_SAMPLES, OVERHEAD_BATCH = 60_000, 256
LARGE_SAMPLES, LARGE_BATCH = 4096, 64
STARTUP_SAMPLES, STARTUP_BATCH = 256, 4
RECOVERY_BATCH, STEP_SECONDS, CALM_BATCHES = 8, 0.001, 50
POLL_SECONDS, LONGEST_SECONDS = 0.0002, 10.0


def main() -> None:
    loader, how, task = sys.argv[1], sys.argv[2], Task(**json.loads(sys.argv[3]))
    # One thread, as in workers: several threads that wait for each other depend on the rest of the machine.
    torch.set_num_threads(1)
    make_loader = loader_class(loader)
    dataset = data_set(task)
    torch.manual_seed(1)
    set_up = own_cpu_seconds()
    result = run(task, make_loader, dataset) if how == "measure" else TaskResult({})
    print(json.dumps(asdict(replace(result, set_up_cpu_seconds=set_up))), flush=True)
    # Run what ends workers, but not the shutdown of torch, whose cost is large and varies.
    atexit._run_exitfuncs()
    os._exit(0)


def loader_class(name: str) -> Callable[..., DataLoader[Any]]:
    if name in ("bare", "guarded"):
        return guarded_class(name)
    module = {"torch": "torch.utils.data", "feedline": "feedline.torch"}[name]
    found: Callable[..., DataLoader[Any]] = import_module(module).DataLoader
    return found


def guarded_class(name: str) -> Callable[..., DataLoader[Any]]:
    """Feedline's loader with a policy, a deadline and limits, or without any of them."""
    import feedline
    from feedline.torch import DataLoader as Guarded

    if name == "bare":
        return functools.partial(Guarded, stall=None)
    return functools.partial(
        Guarded,
        faults=feedline.FaultPolicy("skip", retry=3, limit=0.01),
        deadline=60.0,
        max_worker_memory="64GiB",
        max_samples_per_worker=1 << 40,
        on_event=lambda event: None,
    )


def data_set(task: Task) -> Dataset[Any]:
    match task.workload:
        case "transport":
            return samples.ready(task.subject, task.warm_up + task.count + AHEAD_BATCHES)
        case "overhead":
            return samples.Rows(OVERHEAD_SAMPLES)
        case "large":
            return samples.Pictures(LARGE_SAMPLES)
        case "startup":
            return samples.Tiny(STARTUP_SAMPLES)
        case "recovery":
            return samples.Signed()


def run(task: Task, make_loader: Callable[..., DataLoader[Any]], dataset: Dataset[Any]) -> TaskResult:
    match task.workload:
        case "transport":
            unbatched = {"batch_size": None, "collate_fn": _same, "num_workers": task.workers}
            return transport(task, make_loader(dataset, **unbatched))
        case "overhead":
            workers = _persistent(task.workers)
            return epochs(task, make_loader(dataset, OVERHEAD_BATCH, shuffle=True, **workers))
        case "large":
            return epochs(task, make_loader(dataset, LARGE_BATCH, **_persistent(task.workers)))
        case "startup":
            return startup(task, make_loader, dataset)
        case "recovery":
            settings = {"num_workers": task.workers, "max_deaths": 1000}
            return recovery(task, make_loader(dataset, RECOVERY_BATCH, **settings))


# ---- the workloads ----


def transport(task: Task, loader: DataLoader[Any]) -> TaskResult:
    delivered = task.warm_up + task.count + AHEAD_BATCHES
    batches = iter(loader)
    wanted = loader.dataset[0]
    for batch in itertools.islice(batches, task.warm_up):
        _check(batch, wanted)
    start = time.perf_counter()
    for _ in range(task.count):
        batch = next(batches)
        del batch
    seconds, cpu = time.perf_counter() - start, cpu_seconds()
    for batch in batches:
        _check(batch, wanted)
    return TaskResult({"time": [1e6 * seconds / task.count]}, delivered, cpu)


def epochs(task: Task, loader: DataLoader[Any]) -> TaskResult:
    warm = sum(_length(batch) for _ in range(task.warm_up) for batch in loader)
    start = time.perf_counter()
    measured = sum(_length(batch) for _ in range(task.count) for batch in loader)
    seconds = time.perf_counter() - start
    return TaskResult({"rate": [measured / seconds]}, warm + measured, cpu_seconds())


def startup(task: Task, make_loader: Callable[..., DataLoader[Any]], dataset: Dataset[Any]) -> TaskResult:
    """Includes the construction of the loader: it must not hide work there."""
    start = time.perf_counter()
    loader = make_loader(
        dataset,
        STARTUP_BATCH,
        num_workers=task.workers,
        multiprocessing_context=task.method,
        persistent_workers=task.persistent,
    )
    values = {}
    for name in ("first", "second"):
        batches = iter(loader)
        batch = next(batches)
        values[name] = [1e3 * (time.perf_counter() - start)]
        assert batch[1, 0] == 1.0
        for _ in batches:
            pass
        del batches
        start = time.perf_counter()
    return TaskResult(values)


def recovery(task: Task, loader: DataLoader[Any]) -> TaskResult:
    batches = iter(loader)
    kills = Kills(batches, task.workers, task.count)
    kills.start()
    for number, batch in enumerate(batches):
        kills.saw(batch, time.perf_counter())
        assert batch[0, 0] == number * RECOVERY_BATCH, "a batch is missing or was delivered twice"
        if not kills.is_alive():
            break
        time.sleep(STEP_SECONDS)
    if kills.error is not None:
        raise kills.error
    return TaskResult({"ready": kills.ready, "delivered": kills.delivered})


class Kills(threading.Thread):
    """Kills one worker after the other and waits each time until its replacement delivers a batch."""

    def __init__(self, batches: Any, workers: int, count: int) -> None:
        super().__init__(daemon=True)
        self.batches, self.workers, self.count = batches, workers, count
        self.ready: list[float] = []
        self.delivered: list[float] = []
        self.error: Exception | None = None
        self._seen = 0
        # By worker: the process that computed its last batch, and the time of its first batch.
        self._makers: dict[int, tuple[int, float]] = {}

    def saw(self, batch: Any, now: float) -> None:
        """Records a delivered batch; the trainer calls this."""
        _index, worker, pid = batch[0].tolist()
        if worker not in self._makers or self._makers[worker][0] != pid:
            self._makers[worker] = pid, now
        self._seen += 1

    def run(self) -> None:
        try:
            for number in range(self.count):
                self._kill(number % self.workers)
        except Exception as error:
            self.error = error

    def _kill(self, worker: int) -> None:
        calm = self._seen + CALM_BATCHES
        self._wait(lambda: self._seen >= calm, f"{CALM_BATCHES} batches")
        old = self.batches._workers[worker].pid
        self._wait(lambda: self._makers.get(worker, (None,))[0] == old, f"a batch of worker {worker}")
        start = time.perf_counter()
        os.kill(old, signal.SIGKILL)
        ready = self._wait(lambda: self._is_replaced(worker, old), f"a new worker {worker}")
        self._wait(lambda: self._makers[worker][0] != old, f"a batch of the new worker {worker}")
        self.ready.append(1e3 * (ready - start))
        self.delivered.append(1e3 * (self._makers[worker][1] - start))

    def _is_replaced(self, worker: int, old: int) -> bool:
        now = self.batches._workers[worker]
        return now.pid not in (None, old) and bool(now.is_ready())

    def _wait(self, done: Callable[[], bool], what: str) -> float:
        deadline = time.perf_counter() + LONGEST_SECONDS
        while not done():
            if time.perf_counter() > deadline:
                raise TimeoutError(f"waited {LONGEST_SECONDS:.0f} s for {what}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter()


# ---- shared by the workloads ----


def _persistent(workers: int) -> dict[str, Any]:
    """Persistent workers; torch rejects persistent_workers if there are none."""
    return {"num_workers": workers, "persistent_workers": workers > 0}


def _same(batch: Any) -> Any:
    return batch


def _length(batch: Any) -> int:
    return len(batch[0]) if isinstance(batch, list | tuple) else len(batch)


def _check(batch: Any, wanted: Any) -> None:
    if type(batch) is not type(wanted):
        raise SystemExit(f"a batch must be a {type(wanted)}, got a {type(batch)}")
    pairs = (
        [(batch[name], wanted[name]) for name in wanted] if isinstance(wanted, dict) else [(batch, wanted)]
    )
    for part, right in pairs:
        if type(part) is not type(right) or not np.array_equal(part, right):
            raise SystemExit("a batch differs from that of its data set")


if __name__ == "__main__":
    main()
