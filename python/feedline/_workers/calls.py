"""What runs in a worker of an executor: calls functions, and sends back what came of it."""

from __future__ import annotations

import functools
import json
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._workers.tries import BAD, Faulty, Tries
from feedline._workers.worker import FETCHING, PAUSING, Letters
from feedline.faults import FaultPolicy, explain_shortage

__all__ = ["Calls", "Raised"]


class RemoteTraceback(Exception):
    """The traceback of the worker, as the cause of its exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass
class Raised:
    """An exception of a call."""

    exception: bytes | None
    name: str
    text: str

    def made(self) -> BaseException:
        exception: BaseException
        try:
            exception = (
                RuntimeError(f"{self.name} in a worker") if self.exception is None else _unpickle(self)
            )
        except Exception:
            exception = RuntimeError(f"{self.name} in a worker")
        exception.__cause__ = RemoteTraceback(self.text)
        return exception


def _unpickle(raised: Raised) -> BaseException:
    assert raised.exception is not None
    exception: BaseException = pickle.loads(raised.exception)
    return exception


class Calls:
    """What the zygote holds for an executor."""

    def __init__(
        self,
        initializer: Callable[..., object] | None,
        arguments: tuple[Any, ...],
        posts: int,
        faults: FaultPolicy | None,
    ) -> None:
        self.initializer = initializer
        self.initargs = arguments
        self.posts = posts
        self.values = True
        self.faults = faults

    def start(self, post: int, station: _native.Station) -> Caller:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        if self.initializer is not None:
            self.initializer(*self.initargs)
        return Caller(station, self.faults)


class Caller:
    """Calls functions, in a worker."""

    def __init__(self, station: _native.Station, faults: FaultPolicy | None) -> None:
        self._station = station
        self._tries = None if faults is None else self._make_tries(faults)

    def _make_tries(self, faults: FaultPolicy) -> Tries:
        return Tries(faults, stage="calling", pause=self._pause, tell=self._tell)

    def _pause(self, seconds: float) -> None:
        self._station.enter(PAUSING)
        time.sleep(seconds)
        self._station.enter(FETCHING)

    def _tell(self, name: str, details: dict[str, Any]) -> None:
        self._station.tell(json.dumps([name, details]).encode())

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        if "torch" not in sys.modules:
            return {}
        import torch

        from feedline._torch.tensors import reduce_tensor

        return {torch.Tensor: reduce_tensor}

    def do(self, task: int, body: bytes, letters: Letters) -> object:
        results = []
        try:
            length = int.from_bytes(body[:8], "little")
            function = pickle.loads(body[8 : 8 + length])
            calls = pickle.loads(memoryview(body)[8 + length :])
            for position, (arguments, keywords) in enumerate(calls):
                self._station.reach(position)
                try:
                    results.append(function(*arguments, **keywords))
                except (Exception, SystemExit) as raised:
                    if self._tries is None:
                        raise
                    call = functools.partial(function, *arguments, **keywords)
                    results.append(self._tries.again(raised, call, position, task))
        except BaseException as raised:
            if self._tries is not None:
                self._tries.take()
            return self._raised(raised)
        self._station.made()
        bad = [] if self._tries is None else self._tries.take()
        if bad:
            return Faulty([None if result is BAD else result for result in results], bad)
        return results

    def alone(self, body: bytes, letters: Letters, position: int) -> bool:
        """A call is made or not: its result counts, also when it was made alone."""
        return False

    def _raised(self, raised: BaseException) -> Raised:
        explain_shortage(raised)
        text = "".join(traceback.format_exception(raised))
        pickled: bytes | None
        try:
            pickled = pickle.dumps(raised)
            pickle.loads(pickled)
        except Exception:
            pickled = None
        return Raised(pickled, type(raised).__name__, text)

    def resume(self, body: bytes) -> None:
        """There are no epochs."""

    def where(self) -> tuple[int | None, str]:
        return None, "calling"

    def journal(self) -> bytes | None:
        """A call depends on nothing that came before."""
        return None

    def recall(self, journal: bytes | None) -> None:
        """As above."""

    def blamed(self, result: Any) -> tuple[str, object]:
        return ("result", result[0]) if isinstance(result, list) and len(result) == 1 else ("results", result)
