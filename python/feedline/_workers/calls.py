"""What runs in a worker of an executor: calls functions, and sends back what came of it."""

from __future__ import annotations

import functools
import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._workers.tries import BAD, Bad, Faulty, Tries
from feedline._workers.trouble import Trouble
from feedline._workers.worker import FETCHING, PAUSING, Letters
from feedline.faults import FaultPolicy, symptom

__all__ = ["CALLING", "Calls"]

# The stage of a call.
CALLING = "calling"


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
        # Without a policy no call is made again, and no source is waited for.
        policy = FaultPolicy(patience=0) if faults is None else faults
        self._tries = Tries(
            policy, stage=CALLING, pause=self._pause, tell=self._tell, raises=False, home=os.getpid()
        )

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
        from feedline._torch.tensors import reducers

        return reducers()

    def do(self, task: int, body: bytes, letters: Letters) -> object:
        results = []
        position = 0
        try:
            length = int.from_bytes(body[:8], "little")
            function = pickle.loads(body[8 : 8 + length])
            calls = pickle.loads(memoryview(body)[8 + length :])
            for position, (arguments, keywords) in enumerate(calls):
                self._station.reach(position)
                try:
                    results.append(function(*arguments, **keywords))
                except (Exception, SystemExit) as raised:
                    call = functools.partial(function, *arguments, **keywords)
                    results.append(self._tries.again(raised, call, position, task))
                    if results[-1] is BAD and self._tries.bad[-1].action == "raise":
                        # Nobody gets the results of the calls after it.
                        break
        except BaseException as raised:
            if self._station.is_left or isinstance(raised, _native.CutOff):
                raise
            self._tries.bad.append(_fatal(raised, position))
        self._station.made()
        bad = self._tries.take()
        if bad:
            return Faulty([None if result is BAD else result for result in results], bad)
        return results

    def alone(self, body: bytes, letters: Letters, position: int) -> bool:
        """A call is made or not: its result counts, also when it was made alone."""
        return False

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
        results = result.batch if isinstance(result, Faulty) else result
        return ("result", results[0]) if len(results) == 1 else ("results", results)


def _fatal(raised: BaseException, position: int) -> Bad:
    """What no policy is asked about."""
    names, os_error = symptom(raised)
    trouble = Trouble.of(raised, position=position, stage=CALLING, exact=True)
    return Bad(position, names, os_error, trouble, None, 1, "raise")
