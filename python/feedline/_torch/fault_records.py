"""The faults of one epoch, which the engine knows by number: their lines in the ledger and in the quarantine
file, and the errors that they become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from feedline import errors
from feedline._account import Account, fault_line, json_index
from feedline._native import Action, BadSample, Verdict
from feedline._torch.batch import Batch
from feedline._torch.samples import Samples
from feedline._workers.remote_error import place
from feedline._workers.retries import PendingFault

__all__ = ["FaultRecords"]


class FaultRecords:
    """Names faults for the engine, and performs what it decides about them."""

    def __init__(
        self,
        account: Account,
        samples: Samples,
        *,
        epoch: int,
        rank: int | None,
        is_map: bool,
        is_batched: bool,
        has_replacement: bool,
        seed: int | None = None,
    ) -> None:
        """`seed` is what a sample can be made again with, if it has random numbers of its own."""
        self._seed = seed
        self._account = account
        self._samples = samples
        self._epoch = epoch
        self._rank = rank
        self._is_map = is_map
        self._is_batched = is_batched
        self._has_replacement = has_replacement
        # By number, until it is decided: the batch, the fault, and the index of the sample.
        self._faults: list[tuple[Batch, PendingFault, Any] | None] = []
        # The message, once there are too many faults.
        self._too_many: str | None = None

    def add_all(self, batch: Batch, bad: Sequence[PendingFault]) -> list[BadSample]:
        """The faults of a batch, as the engine knows them."""
        batch.retried = [*batch.retried, *(one for one in bad if not one.action)]
        faults = [one for one in bad if one.action]
        if not self._is_map:
            # A sample that an iterator could not give came before the one that is at its offset.
            faults.sort(key=lambda one: one.offset)
        named, gaps = [], 0
        for one in faults:
            offset = one.offset
            if not self._is_map:
                offset = min(offset, batch.samples) + gaps
                gaps += self.leaves_gap(one)
            named.append(self.add(batch, one, offset, self._account.policy_action(one)))
        return named

    def add(self, batch: Batch, fault: PendingFault, offset: int, action: str) -> BadSample:
        """A fault at an offset, as the engine knows it."""
        sample = batch.sample(fault.offset, is_batched=self._is_batched) if self._is_map else None
        self._faults.append((batch, fault, sample))
        return BadSample(offset, len(self._faults) - 1, action, is_misfit=self.is_misfit(fault))

    def is_misfit(self, fault: PendingFault) -> bool:
        """Whether the sample could be loaded, and does not fit into its batch."""
        return self._is_map and fault.remote_error.stage == "collate"

    def leaves_gap(self, bad: PendingFault) -> bool:
        """Whether nothing is in the place of a bad sample of an iterator."""
        return bad.action == "skip" or (bad.action == "replace" and not self._has_replacement)

    def report_retried(self, batch: Batch) -> None:
        """Reports the samples that could be loaded after some attempts."""
        for bad in batch.retried:
            sample = batch.sample(bad.offset, is_batched=self._is_batched) if self._is_map else None
            self._account.ledger.retried(self._line(batch, bad, sample))
        batch.retried = ()

    def record(self, fault: int, verdict: Verdict, *, is_expected: bool) -> None:
        """Records the verdict of the engine. Samples of a pass that is not counted are not expected."""
        batch, bad, sample = self._fault(fault)
        self.report_retried(batch)
        line = self._line(batch, bad, sample)
        self._too_many = self._account.ledger.record(bad.names, bad.os_error, line, verdict)
        if verdict.name == "skip":
            self._faults[fault] = None
            if not is_expected:
                self._account.ledger.expect(1)
        elif verdict.name == "substitute":
            self._faults[fault] = None

    def record_replacement(self, fault: int, by: Any) -> None:
        batch, bad, sample = self._fault(fault)
        self._faults[fault] = None
        self._account.ledger.replaced(self._line(batch, bad, sample), json.dumps(json_index(by)))

    def error(self, action: Action) -> BaseException:
        """The error that ends the run."""
        if isinstance(action, Action.Fail):
            return errors.InternalError.explained(action.message)
        assert isinstance(action, (Action.Raise, Action.NoReplacement))
        batch, bad, sample = self._fault(action.fault)
        if isinstance(action, Action.Raise) and isinstance(batch.content, BaseException):
            return batch.content
        where = place(sample, bad.offset, batch.number, batch.worker, "fetching", bad.path)
        known: dict[str, Any] = {
            "index": sample,
            "batch_offset": bad.offset,
            "batch": batch.number,
            "worker": batch.worker,
            "epoch": self._epoch,
            **({} if bad.path is None else {"path": bad.path}),
        }
        replay = self.replay_line(None if self.is_misfit(bad) else sample, batch.number)
        cause = bad.remote_error.exception("in a sample", f"\nfeedline: {where}", replay=replay, **known)
        error: BaseException
        if isinstance(action, Action.NoReplacement):
            message = f"{action.tried} samples tried in place of sample {sample} were bad as well"
            error = errors.NoReplacementError.explained(message, replay=replay, **known)
        elif self._too_many is None:
            return cause
        else:
            error = errors.TooManyFaultsError.explained(self._too_many, replay=replay, **known)
        error.__cause__ = cause
        return error

    def replay_line(self, index: Any, batch: int) -> str:
        """What to type to make a sample of this epoch again, or a batch if the index is None; empty if that
        is not possible."""
        if not self._is_map:
            return ""
        if index is None:
            return f"replay: loader.replay(batch={batch}, epoch={self._epoch})"
        return errors.replay_line(index, self._epoch, self._seed)

    def _fault(self, fault: int) -> tuple[Batch, PendingFault, Any]:
        found = self._faults[fault]
        assert found is not None, "a fault is judged once"
        return found

    def _line(self, batch: Batch, bad: PendingFault, sample: Any) -> str:
        name = None
        if self._is_map:
            bad.path = self._samples.path(sample) or bad.path
            name = self._samples.name
        known = {"dataset": name, "seed": self._seed}
        return fault_line(bad, sample, epoch=self._epoch, worker=batch.worker, rank=self._rank, **known)
