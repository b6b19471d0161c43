"""What becomes of the samples of a loader or the calls of an executor: written down, counted, told."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._described import described
from feedline._notices import Notices
from feedline._workers.death import Death
from feedline._workers.retries import PendingFault
from feedline.errors import DeadlineExceededError, InvalidArgumentError, SampleSkippedWarning
from feedline.events import Event, notify
from feedline.faults import FaultPolicy, symptom
from feedline.report import CallReport, Report

__all__ = ["OVERDUE", "Account", "Outages", "check", "in_json", "written"]

# What a sample that passed its deadline looks like to the policy.
OVERDUE = symptom(DeadlineExceededError(""))[0]
# Letters of an index that a quarantine file has at most.
_WRITTEN = 4096


def check(faults: object, on_event: object) -> None:
    """Refuses what is no policy and what cannot be called."""
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


def in_json(index: object) -> Any:
    """An index as a quarantine file has it: numbers and texts as they are, others in words."""
    if isinstance(index, bool) or index is None:
        return index
    if isinstance(index, str):
        return written(index)
    try:
        # Whole numbers of NumPy and torch are indices too.
        number = operator.index(index)  # type: ignore[arg-type]
    except Exception:
        return written(described(index, _WRITTEN))
    return number if abs(number) < 2**63 else described(number)


def written(text: str) -> str:
    """As a file can have it: bytes of a name that are no UTF-8 are spelled out."""
    return text.encode(errors="backslashreplace").decode()


class Outages:
    """Sources that are unavailable, and since when each worker knows it. Several workers find one unavailable
    and back: it is logged once."""

    def __init__(self) -> None:
        self._away: dict[str, dict[int | None, float]] = {}

    def news(self, name: str, details: dict[str, Any], worker: int | None) -> dict[str, Any] | None:
        """What is to be told of an event of a source; None if it was told already."""
        away = self._away.setdefault(str(details.get("root")), {})
        if name == "source_unavailable":
            is_news = not away
            away[worker] = time.monotonic()
        elif name == "source_recovered":
            since = away.pop(worker, None)
            is_news = since is not None and not away
            details = {**details, "seconds": 0.0 if since is None else time.monotonic() - since}
        else:
            # Of all that wait for it, one tells what it finds.
            is_news = worker == next(iter(away), worker)
        return details if is_news else None


class Account:
    """The ledger of one front, and the callback that hears of its events."""

    def __init__(
        self,
        policy: FaultPolicy | None,
        on_event: Callable[[Event], None] | None,
        *,
        is_of_calls: bool = False,
        raises: bool = True,
    ) -> None:
        """Unless it `raises`, warnings that are errors by the user's filters are shown."""
        self.policy = policy or FaultPolicy()
        self.notices = Notices(raises=raises)
        self._raises = raises
        self._on_event = on_event
        self.rules = _native.Policy(self.policy.config())
        self.ledger = _native.Ledger(self.policy.config(), is_of_calls=is_of_calls)
        self._away = Outages()
        # Samples that took less than this are not among the slowest.
        self.slow_bar = 0.0

    def __getstate__(self) -> tuple[FaultPolicy, Callable[[Event], None] | None, bool]:
        """A copy, and what arrives in another process, begins an account of its own."""
        return self.policy, self._on_event, self._raises

    def __setstate__(self, state: tuple[FaultPolicy, Callable[[Event], None] | None, bool]) -> None:
        policy, on_event, raises = state
        Account.__init__(self, policy, on_event, raises=raises)

    def notify(self) -> None:
        """Hands on what has happened since the last time."""
        if self.ledger.has_events:
            notify(self.ledger.take_events(), self._on_event, self.notices)
        if not self._raises:
            self.notices.issue()

    def action(self, names: list[str], os_error: int | None = None) -> str:
        """What the policy wants for such a fault."""
        action, _ = self.rules.rule(names, os_error)
        return action

    def wish(self, bad: PendingFault) -> str:
        """What the policy wants, as the engine is told. A lack of descriptors, say, is raised unless the
        policy names it."""
        if bad.action == "raise":
            return "raise"
        action = self.rules.wanted(bad.names, bad.os_error)
        return "substitute" if action == "replace" and self.policy.has_replacement else action

    def retries(self, names: list[str]) -> int:
        """How often the policy tries again after such a fault."""
        _, retry = self.rules.rule(names, None)
        return retry if self.rules.retry_after(names, None, 1, [0]) is not None else 0

    def line(
        self,
        bad: PendingFault,
        index: object,
        epoch: int,
        worker: int | None,
        rank: int | None = None,
        call: dict[str, Any] | None = None,
        dataset: str | None = None,
    ) -> str:
        """A fault as the ledger takes it."""
        line = {
            "index": in_json(index),
            "call": call,
            "epoch": epoch,
            "path": None if bad.path is None else written(bad.path),
            "stage": bad.remote_error.stage or "worker",
            "kind": bad.remote_error.name,
            "message": written(bad.remote_error.message),
            "traceback": written(bad.remote_error.traceback),
            "attempts": bad.attempts,
            "worker": worker,
            "rank": rank,
            "dataset": None if dataset is None else written(dataset),
        }
        return json.dumps(line)

    def died(self, death: Death) -> None:
        self.ledger.event("worker_died", json.dumps(death.to_dict(), default=repr))

    def event(self, name: str, details: dict[str, Any]) -> None:
        self.ledger.event(name, json.dumps(details, default=repr))

    def noted(self, name: str, details: dict[str, Any], worker: int | None = None) -> None:
        """What a worker tells of the source of its samples."""
        news = self._away.news(name, details, worker)
        if news is not None:
            self.event(name, news)

    def close(self) -> None:
        """Of a front without epochs: sums up what was left out, and closes the quarantine file."""
        warning = self.ledger.close()
        if warning is not None:
            self.notices.add(warning, SampleSkippedWarning)
        self.notify()

    def slow(self, index: object, seconds: float, worker: int | None, stage: str = "worker") -> None:
        """Notes how long a sample took, if it is among the slowest."""
        if seconds > self.slow_bar:
            self.ledger.slow(json.dumps(in_json(index)), seconds, worker, stage)
            # A little more than the least of the slowest: what is nearly as slow is not worth the telling.
            self.slow_bar = 0.0 if self.ledger.is_slow(seconds / 2) else seconds / 2

    def report(self) -> Report:
        return Report._parse(self.ledger.report_json(), self.ledger.report_text())

    def call_report(self) -> CallReport:
        return CallReport._parse(self.ledger.report_json(), self.ledger.report_text())
