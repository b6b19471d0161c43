"""Exceptions of functions: reports them to the engine, and keeps them in case the engine decides to raise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._account import written
from feedline._workers.remote_error import RemoteError
from feedline._workers.retries import PendingFault
from feedline.faults import symptom

__all__ = ["FunctionFault", "FunctionFaults", "Ticket"]

# The position of a sample in the run, its epoch, and its index in the source.
Ticket = tuple[int, int, int]


@dataclass
class FunctionFault:
    """A failed call of a function, for a sample or a batch."""

    names: list[str]
    os_error: int | None
    remote_error: RemoteError
    attempts: int
    worker: int | None
    # Whether a retry succeeded.
    is_fixed: bool = False


class FunctionFaults:
    """The faults of functions in an epoch, until the engine has judged them."""

    def __init__(self, loader: _native.Loader, epoch: _native.Epoch, where: str) -> None:
        """`where` names the place where functions run, for messages."""
        self._loader = loader
        self._epoch = epoch
        self._where = where
        self._ledger = loader.ledger
        self._rank = loader.seed_and_rank[1]
        # The fault and the index of its sample, by the engine's number for the fault.
        self._reported: dict[int, tuple[FunctionFault, int]] = {}

    @staticmethod
    def of(bad: PendingFault, worker: int | None) -> FunctionFault:
        """The fault of an exception that a function raised."""
        return FunctionFault(
            bad.names, bad.os_error, bad.remote_error, bad.attempts, worker, is_fixed=not bad.action
        )

    @staticmethod
    def of_error(error: BaseException, attempts: int, worker: int | None) -> FunctionFault:
        """The fault of an error that was created in this process: a function kills its worker or hangs."""
        names, os_error = symptom(error)
        remote_error = RemoteError.reported(error, position=None, stage="worker")
        return FunctionFault(names, os_error, remote_error, attempts, worker)

    def report(self, fault: FunctionFault, key: int, ticket: Ticket) -> None:
        """Reports a sample that is bad, or that succeeded after retries."""
        line = self._line(fault, ticket)
        if fault.is_fixed:
            self._ledger.retried(line)
        else:
            number = self._epoch.bad(key, fault.names, fault.os_error, line)
            self._reported[number] = (fault, ticket[2])

    def report_batch(self, number: int, faults: list[tuple[FunctionFault, int, Ticket]]) -> None:
        """Reports a batch whose functions were called; `faults` are those of its samples."""
        for fault, _, ticket in faults:
            if fault.is_fixed:
                self._ledger.retried(self._line(fault, ticket))
        remaining = [reported for reported in faults if not reported[0].is_fixed]
        bad = [
            (key, fault.names, fault.os_error, self._line(fault, ticket)) for fault, key, ticket in remaining
        ]
        numbers = self._epoch.finished(number, bad)
        for reported, (fault, _, ticket) in zip(numbers, remaining, strict=True):
            self._reported[reported] = (fault, ticket[2])

    def _line(self, fault: FunctionFault, ticket: Ticket) -> str:
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
        """The exception to raise when the engine stops the run."""
        reported = None if stop.cause is None else self._reported.get(stop.cause)
        cause = None if reported is None else self._raised(*reported)
        if stop.error is None:
            assert cause is not None
            return cause
        stop.error.__cause__ = cause
        return stop.error

    def _raised(self, fault: FunctionFault, index: int) -> BaseException:
        path, offset = self._loader.location(index) or (None, None)
        known: dict[str, Any] = {"index": index, "path": path, "offset": offset, "stage": "worker"}
        shown = f"sample {index}" + ("" if path is None else f" ({path})")
        return fault.remote_error.exception(self._where, f"\nfeedline: at {shown}", **known)
