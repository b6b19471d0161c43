"""What runs in a worker of an executor: calls functions, and sends back the results."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import BAD, FaultyResult, PendingFault
from feedline._workers.worker import Buffers, Worker
from feedline.faults import FaultPolicy, symptom

__all__ = ["CALLING", "ExecutorWork"]

# The stage of a call.
CALLING = "calling"


class ExecutorWork:
    """What the zygote holds for an executor."""

    def __init__(
        self,
        initializer: Callable[..., object] | None,
        arguments: tuple[Any, ...],
        worker_count: int,
        faults: FaultPolicy | None,
    ) -> None:
        self.initializer = initializer
        self.initargs = arguments
        self.worker_count = worker_count
        self.values = True
        self.faults = faults

    def start(self, worker_id: int, connection: _native.WorkerConnection) -> ExecutorWorker:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        if self.initializer is not None:
            self.initializer(*self.initargs)
        return ExecutorWorker(connection, self.faults)


class ExecutorWorker(Worker):
    """Calls functions, in a worker."""

    def __init__(self, connection: _native.WorkerConnection, faults: FaultPolicy | None) -> None:
        super().__init__(connection)
        # Without a policy no call is made again, and no source is waited for.
        policy = FaultPolicy(patience=0) if faults is None else faults
        self._calls = self._retries(policy, stage=CALLING, raises=False)

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        if "torch" not in sys.modules:
            return {}
        from feedline._torch.tensors import reducers

        return reducers()

    def do(self, task: int, body: bytes, received: Buffers) -> object:
        results = []
        offset = 0
        try:
            length = int.from_bytes(body[:8], "little")
            pickled, folders = pickle.loads(body[8 : 8 + length])
            self._calls.know(folders)
            function = pickle.loads(pickled)
            calls = pickle.loads(memoryview(body)[8 + length :])
            for offset, (arguments, keywords) in enumerate(calls):
                self._connection.reach(offset)
                try:
                    results.append(function(*arguments, **keywords))
                except (Exception, SystemExit) as raised:
                    call = functools.partial(function, *arguments, **keywords)
                    results.append(self._calls.again(raised, call, offset, task))
                    if results[-1] is BAD and self._calls.bad[-1].action == "raise":
                        # Nobody gets the results of the calls after it.
                        break
        except BaseException as raised:
            if self._connection.is_forked or isinstance(raised, _native.Disconnected):
                raise
            self._calls.bad.append(_fatal(raised, offset))
        self._connection.made()
        bad = self._calls.take()
        if bad:
            return FaultyResult([None if result is BAD else result for result in results], bad)
        return results

    def alone(self, body: bytes, received: Buffers, offset: int) -> bool:
        """A call is made or not: its result counts, also when it was made alone."""
        return False

    def where(self) -> tuple[int | None, str]:
        return None, "calling"

    def blamed(self, result: Any) -> tuple[str, object]:
        results = result.batch if isinstance(result, FaultyResult) else result
        return ("result", results[0]) if len(results) == 1 else ("results", results)


def _fatal(raised: BaseException, offset: int) -> PendingFault:
    """What no policy is asked about."""
    names, os_error = symptom(raised)
    remote_error = RemoteError.of(raised, offset=offset, stage=CALLING, exact=True)
    return PendingFault(offset, names, os_error, remote_error, None, 1, "raise")
