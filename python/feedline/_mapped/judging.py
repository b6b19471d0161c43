"""The faults of an epoch with functions: put into words, judged in order, raised where that is wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from feedline import _native, errors
from feedline._account import written
from feedline._mapped.gathering import Batch, Entry, Fault, Row
from feedline._workers.tries import Bad
from feedline._workers.trouble import Trouble
from feedline.errors import NoReplacementError, ShapeMismatchError
from feedline.faults import FaultPolicy, symptom

__all__ = ["Judging"]


class Judging:
    """Speaks with the ledger of a loader."""

    def __init__(self, native: _native.Loader, policy: FaultPolicy | None, where: str) -> None:
        """`where` functions run, in words."""
        self._native = native
        self._where = where
        self._rules = _native.Policy((policy or FaultPolicy()).words())
        self._rank = native.seed_and_rank[1]
        self.ledger = native.ledger
        # Of this epoch, in the order of judging.
        self.skipped = 0
        self.repeated = 0

    # ---- in words ----

    def action(self, names: list[str], os_error: int | None = None) -> str:
        """What the policy wants for such a fault, however many there were."""
        return self._rules.wanted(names, os_error)

    def remarked(self, remark: tuple[int, list[str], int | None, str, str, int | None]) -> Fault:
        """What the native pipeline has met."""
        number, names, os_error, line, action, by = remark
        return Fault(number, json.loads(line)["index"], names, os_error, line, action, by=by)

    def bad(self, bad: Bad, row: Row, worker: int | None) -> Fault:
        """What a function has raised; also one that another try has repaired."""
        action = bad.action and self.action(bad.names, bad.os_error)
        line = self._line(bad.trouble, row, bad.attempts, worker)
        return Fault(
            row.number, row.index, bad.names, bad.os_error, line, action, trouble=bad.trouble, worker=worker
        )

    def told(self, error: BaseException, row: Row, attempts: int, worker: int | None, stage: str) -> Fault:
        """An error that the trainer has made itself."""
        names, os_error = symptom(error)
        trouble = Trouble.told(error, position=None, stage=stage)
        line = self._line(trouble, row, attempts, worker)
        action = self.action(names, os_error)
        return Fault(row.number, row.index, names, os_error, line, action, trouble=trouble, worker=worker)

    def mismatch(self, row: Row, message: str) -> Fault:
        """A sample that does not fit to the others of its batch."""
        path, offset = self._native.location(row.index) or (None, None)
        hint = "return arrays of one shape, or use batch(pad=True)"
        error = ShapeMismatchError.explained(
            message, hint, index=row.index, path=path, offset=offset, stage="collate"
        )
        return self.told(error, row, 1, None, "collate")

    def _line(self, trouble: Trouble, row: Row, attempts: int, worker: int | None) -> str:
        path, offset = self._native.location(row.index) or (None, None)
        line = {
            "index": row.index,
            "epoch": row.epoch,
            "path": None if path is None else written(path),
            "offset": offset,
            "stage": trouble.stage or "worker",
            "kind": trouble.name,
            "message": written(trouble.message),
            "traceback": written(trouble.traceback),
            "attempts": attempts,
            "worker": worker,
            "rank": self._rank,
        }
        return json.dumps(line)

    # ---- in order ----

    def judge(self, entries: Iterable[Entry]) -> None:
        """Counts and judges; raises what ends the run."""
        for entry in entries:
            if entry.what == "good":
                self.ledger.good(entry.count)
            elif entry.what == "repeated":
                self.repeated += entry.count
            elif entry.what == "filtered":
                self.ledger.good(entry.count)
                self.ledger.filtered(entry.count)
            else:
                assert entry.fault is not None
                self._judge(entry, entry.fault)

    def _judge(self, entry: Entry, fault: Fault) -> None:
        if entry.what == "retried":
            self.ledger.retried(fault.line)
        elif entry.what == "replaced":
            self.ledger.replaced(fault.line, json.dumps(entry.by))
        else:
            self._verdict(fault)

    def _verdict(self, fault: Fault) -> None:
        verdict, stopped = self.ledger.judge(fault.names, fault.os_error, fault.line)
        if verdict == "skip":
            self.skipped += 1
        elif verdict == "replace":
            if fault.by is not None:
                self.ledger.replaced(fault.line, json.dumps(fault.by))
        else:
            raise self._error(fault, stopped)

    def batch(self, batch: Batch) -> bool:
        """Judges the functions of a batch. False if all of its samples are left out."""
        for fault in batch.bad:
            if not fault.action:
                self.ledger.retried(fault.line)
                continue
            if fault.action == "replace":
                message = "a batch was bad, and there is no other to take its place"
                hint = 'use by_type to "skip" or "raise" what map_batch functions raise'
                raise NoReplacementError.explained(message, hint) from self._error(fault, None)
            for row in batch.rows:
                self._verdict(self._of_row(fault, row))
            return False
        return True

    def _of_row(self, fault: Fault, row: Row) -> Fault:
        """The fault of a batch as that of one of its samples."""
        path, offset = self._native.location(row.index) or (None, None)
        path = None if path is None else written(path)
        line = {**json.loads(fault.line), "index": row.index, "path": path, "offset": offset}
        return Fault(
            row.number,
            row.index,
            fault.names,
            fault.os_error,
            json.dumps(line),
            fault.action,
            trouble=fault.trouble,
            worker=fault.worker,
        )

    def _error(self, fault: Fault, stopped: tuple[str, str] | None) -> BaseException:
        """What is raised for a fault, or for too many."""
        path, offset = self._native.location(fault.index) or (None, None)
        known: dict[str, Any] = {"index": fault.index, "path": path, "offset": offset, "stage": "worker"}
        cause: BaseException | None = None
        if fault.trouble is not None:
            shown = f"sample {fault.index}" + ("" if path is None else f" ({path})")
            cause = fault.trouble.exception(self._where, f"\nfeedline: at {shown}", **known)
        if stopped is None:
            return NativeError() if cause is None else cause
        kind, message = stopped
        error: BaseException = getattr(errors, kind, errors.FeedlineError).explained(message, **known)
        error.__cause__ = cause
        return error


class NativeError(Exception):
    """Stands for an error that the native pipeline has, and raises itself."""
