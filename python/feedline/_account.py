"""The account of a loader or executor: its ledger and events, and what its fault policy says."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._described import described
from feedline._event_log import EventLog
from feedline._workers.retries import PendingFault
from feedline.errors import (
    DeadlineExceededError,
    FeedlineWarning,
    InvalidArgumentError,
    SampleSkippedWarning,
)
from feedline.events import Event
from feedline.faults import FaultPolicy, symptom
from feedline.report import CallReport, Report

__all__ = ["OVERDUE", "Account", "check", "fault_line", "json_index"]

# What a sample that passed its deadline looks like to the policy.
OVERDUE = symptom(DeadlineExceededError(""))[0]
# The longest index that is written to a quarantine file, in characters.
_LONGEST_INDEX = 4096
# Seconds after which drawing samples again is worth a warning.
_SLOW_RESUME = 10.0


def check(faults: object, on_event: object) -> None:
    """Refuses a policy that is none, and a callback that cannot be called."""
    if faults is not None and not isinstance(faults, FaultPolicy):
        raise InvalidArgumentError.explained(
            f"faults must be a feedline.FaultPolicy, got {described(faults)}",
            "see help(feedline.FaultPolicy)",
        )
    if on_event is not None and not callable(on_event):
        raise InvalidArgumentError.explained(
            f"on_event must be callable, got {described(on_event)}",
            "give a function that takes a feedline.Event",
        )


def json_index(index: object) -> Any:
    """An index as a quarantine file has it: integers and strings unchanged, everything else described."""
    if isinstance(index, bool) or index is None:
        return index
    if isinstance(index, str):
        return valid_utf8(index)
    try:
        # Integers of NumPy and torch are indices too.
        number = operator.index(index)  # type: ignore[arg-type]
    except Exception:
        return valid_utf8(described(index, _LONGEST_INDEX))
    return number if abs(number) < 2**63 else described(number)


def valid_utf8(text: str) -> str:
    """The text with bytes that are not UTF-8 escaped, so that a file can hold it."""
    return text.encode(errors="backslashreplace").decode()


def fault_line(
    fault: PendingFault,
    index: object,
    epoch: int,
    worker: int | None,
    rank: int | None = None,
    **more: Any,
) -> str:
    """A fault as the ledger takes it, in JSON; `more` is what only some fronts know."""
    line = {
        "index": json_index(index),
        "epoch": epoch,
        "path": fault.path,
        "stage": fault.remote_error.stage or "worker",
        "kind": fault.remote_error.name,
        "message": fault.remote_error.message,
        "traceback": fault.remote_error.traceback,
        "attempts": fault.attempts,
        "worker": worker,
        "rank": rank,
        **more,
    }
    return json.dumps(
        {name: valid_utf8(value) if isinstance(value, str) else value for name, value in line.items()}
    )


class Account(EventLog):
    """The ledger, the events and the fault policy of a loader or executor."""

    def __init__(
        self,
        policy: FaultPolicy | None,
        on_event: Callable[[Event], object] | None,
        *,
        is_of_calls: bool = False,
        raises: bool = True,
    ) -> None:
        self.policy = policy or FaultPolicy()
        config = self.policy.config()
        super().__init__(_native.Ledger(config, is_of_calls=is_of_calls), on_event, raises=raises)
        self.rules = _native.Policy(config)
        # Before any worker starts: workers inherit the limit.
        raised = _native.raise_open_files()
        if raised is not None:
            self.event("open_files_raised", {"from": raised[0], "to": raised[1]})

    def __getstate__(self) -> tuple[FaultPolicy, Callable[[Event], object] | None, bool]:
        """A copy, and what arrives in another process, begins an account of its own."""
        return self.policy, self._on_event, self._raises

    def __setstate__(self, state: tuple[FaultPolicy, Callable[[Event], object] | None, bool]) -> None:
        policy, on_event, raises = state
        Account.__init__(self, policy, on_event, raises=raises)

    def action(self, names: list[str], os_error: int | None = None) -> str:
        """What the policy wants for such a fault."""
        return self.rules.rule(names, os_error).action

    def policy_action(self, bad: PendingFault) -> str:
        """The action of the policy, as the engine gets it. A lack of descriptors, say, is raised unless the
        policy names it."""
        if bad.action == "raise":
            return "raise"
        action = self.rules.wanted(bad.names, bad.os_error)
        return "substitute" if action == "replace" and self.policy.has_replacement else action

    def retries(self, names: list[str]) -> int:
        """How often the policy tries again after such a fault."""
        retry = self.rules.rule(names, None).retry
        return retry if self.rules.retry_after(names, None, 1, [0]) is not None else 0

    def close(self) -> None:
        """Of a front without epochs: sums up what was left out, and closes the quarantine file."""
        warning = self.ledger.close()
        if warning is not None:
            self.notices.add(warning, SampleSkippedWarning)
        self.notify()

    def slow(self, index: object, seconds: float, worker: int | None, stage: str = "worker") -> None:
        """Notes how long a sample took that is among the slowest."""
        self.ledger.slow(json.dumps(json_index(index)), seconds, worker, stage)

    def slow_resume(self, seconds: float, samples: int) -> None:
        """Warns if drawing samples again took long, to come to the place where a run continues."""
        if seconds > _SLOW_RESUME:
            self.notices.add(
                f"{samples} samples of the data set were drawn again to continue behind them, which took "
                f"{seconds:.0f} s\nhint: give the data set or its iterator state_dict and load_state_dict",
                FeedlineWarning,
            )

    def report(self) -> Report:
        return Report._parse(self.ledger.report_json(), self.ledger.report_text())

    def call_report(self) -> CallReport:
        return CallReport._parse(self.ledger.report_json(), self.ledger.report_text())
