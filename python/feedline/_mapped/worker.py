"""The worker process of a pipeline with functions: runs tasks and returns their results."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feedline import _native
from feedline._mapped.run_functions import FunctionRunner, FunctionTask, Plan, Watcher
from feedline._native import WorkerActivity
from feedline._workers.worker import Buffers, Worker

__all__ = ["MapWork", "pack_task", "reducers"]

# A column of at most this many bytes is sent inline, and need not be in the arena.
_SMALL = 4096


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Reducers for pickle: tensors are sent without a copy, if torch is imported."""
    if "torch" not in sys.modules:
        return {}
    from feedline._torch import tensors

    return tensors.reducers()


def pack_task(task: FunctionTask, content: bytes) -> bytes:
    """A task and its pickled content, as bytes."""
    head = pickle.dumps(dataclasses.replace(task, content=None), protocol=5)
    return len(head).to_bytes(8, "little") + head + content


def unpack_task(body: bytes, received: Sequence[Any]) -> FunctionTask:
    """A task from its bytes, on the memory of the received buffers."""
    length = int.from_bytes(body[:8], "little")
    task: FunctionTask = pickle.loads(memoryview(body)[8 : 8 + length])
    task.content = pickle.loads(memoryview(body)[8 + length :], buffers=received)
    return task


class MapWork:
    """The functions, which the zygote passes to its workers."""

    def __init__(self, plan: Plan, worker_count: int, *, values: bool) -> None:
        self.plan = plan
        self.worker_count = worker_count
        self.values = values

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> MapWorker:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        return MapWorker(self.plan, connection)


class _ConnectionWatcher(Watcher):
    """Records the progress of the worker in its black box, and allocates columns in the arena."""

    def __init__(self, connection: _native.WorkerConnection) -> None:
        self._connection = connection
        self.reach = connection.reach  # type: ignore[method-assign]

    def reach_batch(self, offset: int) -> None:
        self._connection.enter(WorkerActivity.Fetching)
        self._connection.reach(offset)

    def finished(self, samples: int) -> None:
        self._connection.made(samples)
        self._connection.enter(WorkerActivity.Collating)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        count = int(np.prod(shape))
        if count * dtype.itemsize > _SMALL:
            slot = self._connection.take(count * dtype.itemsize)
            if slot is not None:
                memory: Any = slot
                return np.frombuffer(memory, dtype, count).reshape(shape)
        return np.empty(shape, dtype)


class MapWorker(Worker):
    """Runs tasks in a worker process."""

    def __init__(self, plan: Plan, connection: _native.WorkerConnection) -> None:
        super().__init__(connection)
        retries = self._retries(plan.policy, stage="worker", raises=False, folders=plan.folders, leaves=True)
        self._runner = FunctionRunner(plan, retries, _ConnectionWatcher(connection), seeds_all=True)

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        return reducers()

    def do(self, number: int, body: bytes, received: Buffers) -> object:
        task = unpack_task(body, received)

        def again() -> Any:
            return unpack_task(body, [buffer.original() for buffer in received]).content

        return self._runner.run(task, again)

    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        """Calls the functions for one sample; False for a batch, whose samples cannot be computed alone."""
        task = unpack_task(body, received)
        if not task.is_of_samples or offset >= len(task.indices):
            return False
        self._runner.run_sample(task, offset)
        return True

    def where(self) -> tuple[int | None, str]:
        return None, "worker"

    def blamed(self, result: Any) -> tuple[str, object]:
        if not result.is_batch:
            return "sample", [run.tree for run in result.runs]
        return "batch", result.batch
