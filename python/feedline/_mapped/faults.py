"""Exceptions of functions: reports them to the engine, and keeps them in case the engine decides to raise."""

from __future__ import annotations

from typing import Any

from feedline import _native
from feedline._account import fault_line
from feedline._workers.retries import PendingFault
from feedline.errors import replay_line

__all__ = ["FunctionFaults", "Ticket"]

# The position of a sample in the run, its epoch, and its index in the source.
Ticket = tuple[int, int, int]


class FunctionFaults:
    """The faults of functions in an epoch, until the engine has judged them."""

    def __init__(self, loader: _native.Loader, epoch: _native.Epoch, where: str) -> None:
        """`where` names the place where functions run, for messages."""
        self._loader = loader
        self._epoch = epoch
        self._where = where
        self._ledger = loader.ledger
        self._rank = loader.seed_and_rank[1]
        # The fault and its sample, by the engine's number for the fault.
        self._reported: dict[int, tuple[PendingFault, Ticket]] = {}

    def report(self, fault: PendingFault, worker: int | None, key: int, ticket: Ticket) -> None:
        """Reports a sample that is bad, or that succeeded after retries."""
        line = self._line(fault, worker, ticket)
        if fault.is_fixed:
            self._ledger.retried(line)
        else:
            number = self._epoch.bad(key, fault.names, fault.os_error, line)
            self._reported[number] = (fault, ticket)

    def report_batch(
        self, number: int, faults: list[tuple[PendingFault, int, Ticket]], worker: int | None
    ) -> None:
        """Reports a batch whose functions were called; `faults` are those of its samples."""
        bad = []
        for fault, key, ticket in faults:
            line = self._line(fault, worker, ticket)
            if fault.is_fixed:
                self._ledger.retried(line)
            else:
                bad.append((key, fault.names, fault.os_error, line))
        numbers = self._epoch.finished(number, bad)
        remaining = [(fault, ticket) for fault, _, ticket in faults if not fault.is_fixed]
        for reported, (fault, ticket) in zip(numbers, remaining, strict=True):
            self._reported[reported] = (fault, ticket)

    def _line(self, fault: PendingFault, worker: int | None, ticket: Ticket) -> str:
        _, epoch, index = ticket
        path, offset = self._loader.location(index) or (None, None)
        return fault_line(fault, index, epoch, worker, self._rank, path=path, offset=offset)

    def error(self, stop: _native.Stop) -> BaseException:
        """The exception to raise when the engine stops the run."""
        reported = None if stop.cause is None else self._reported.get(stop.cause)
        cause = None if reported is None else self._raised(*reported)
        if stop.error is None:
            assert cause is not None
            return cause
        stop.error.__cause__ = cause
        return stop.error

    def _raised(self, fault: PendingFault, ticket: Ticket) -> BaseException:
        _, epoch, index = ticket
        path, offset = self._loader.location(index) or (None, None)
        known: dict[str, Any] = {"index": index, "path": path, "offset": offset, "stage": "worker"}
        known["epoch"] = epoch
        shown = f"sample {index}" + ("" if path is None else f" ({path})")
        replay = replay_line(index, epoch)
        return fault.remote_error.exception(self._where, f"\nfeedline: at {shown}", replay=replay, **known)
