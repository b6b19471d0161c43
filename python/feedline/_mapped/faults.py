"""What functions have raised: told to the engine in words, and raised if the engine says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._account import written
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import PendingFault
from feedline.faults import symptom

__all__ = ["Fault", "Faults", "Ticket"]

# The position of a sample in the run, its epoch, and its index in the source.
Ticket = tuple[int, int, int]


@dataclass
class Fault:
    """A sample or a batch for which a function has failed."""

    names: list[str]
    os_error: int | None
    remote_error: RemoteError
    attempts: int
    worker: int | None
    # Whether another attempt went well.
    is_fixed: bool = False


class Faults:
    """The faults of functions in an epoch, until the engine has judged them."""

    def __init__(self, loader: _native.Loader, epoch: _native.Epoch, where: str) -> None:
        """`where` functions run, in words."""
        self._loader = loader
        self._epoch = epoch
        self._where = where
        self._ledger = loader.ledger
        self._rank = loader.seed_and_rank[1]
        # By the number that the engine has for it.
        self._reported: dict[int, tuple[Fault, int]] = {}

    @staticmethod
    def of(bad: PendingFault, worker: int | None) -> Fault:
        """What a function has raised."""
        return Fault(bad.names, bad.os_error, bad.remote_error, bad.attempts, worker, is_fixed=not bad.action)

    @staticmethod
    def of_error(error: BaseException, attempts: int, worker: int | None) -> Fault:
        """An error that was made in this process: a function kills its worker, or takes too long."""
        names, os_error = symptom(error)
        remote_error = RemoteError.reported(error, position=None, stage="worker")
        return Fault(names, os_error, remote_error, attempts, worker)

    def notify(self, fault: Fault, key: int, ticket: Ticket) -> None:
        """A sample is bad, or was made after some attempts."""
        line = self._line(fault, ticket)
        if fault.is_fixed:
            self._ledger.retried(line)
        else:
            number = self._epoch.bad(key, fault.names, fault.os_error, line)
            self._reported[number] = (fault, ticket[2])

    def report_batch(self, number: int, faults: list[tuple[Fault, int, Ticket]]) -> None:
        """A batch was finished; these of its samples are bad after all."""
        for fault, _, ticket in faults:
            if fault.is_fixed:
                self._ledger.retried(self._line(fault, ticket))
        lasting = [one for one in faults if not one[0].is_fixed]
        bad = [
            (key, fault.names, fault.os_error, self._line(fault, ticket)) for fault, key, ticket in lasting
        ]
        numbers = self._epoch.finished(number, bad)
        for reported, (fault, _, ticket) in zip(numbers, lasting, strict=True):
            self._reported[reported] = (fault, ticket[2])

    def _line(self, fault: Fault, ticket: Ticket) -> str:
        _, epoch, index = ticket
        path, offset = self._loader.location(index) or (None, None)
        line = {
            "index": index,
            "epoch": epoch,
            "path": None if path is None else written(path),
            "offset": offset,
            "stage": fault.remote_error.stage or "worker",
            "kind": fault.remote_error.name,
            "message": written(fault.remote_error.message),
            "traceback": written(fault.remote_error.traceback),
            "attempts": fault.attempts,
            "worker": fault.worker,
            "rank": self._rank,
        }
        return json.dumps(line)

    def error(self, stop: _native.Stop) -> BaseException:
        """What a run ends with."""
        reported = None if stop.cause is None else self._reported.get(stop.cause)
        cause = None if reported is None else self._raised(*reported)
        if stop.error is None:
            assert cause is not None
            return cause
        stop.error.__cause__ = cause
        return stop.error

    def _raised(self, fault: Fault, index: int) -> BaseException:
        path, offset = self._loader.location(index) or (None, None)
        known: dict[str, Any] = {"index": index, "path": path, "offset": offset, "stage": "worker"}
        shown = f"sample {index}" + ("" if path is None else f" ({path})")
        return fault.remote_error.exception(self._where, f"\nfeedline: at {shown}", **known)
