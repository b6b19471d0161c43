"""Reports of what happens to worker processes, the same on every front: events, warnings, and the error for a
task that kills its worker or hangs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feedline import _native
from feedline._event_log import EventLog
from feedline._workers.death import Death, Stall
from feedline._workers.remote_error import place
from feedline.errors import (
    DeadlineExceededError,
    FeedlineError,
    ResourceShortageWarning,
    WorkerDiedError,
    WorkerStalledWarning,
)
from feedline.faults import FaultPolicy, hint_for

__all__ = ["PoolOwner", "PoolReports", "TaskPlace", "death_without", "lost_task_error"]

# How many frames of a stack and how many deaths an error shows.
_FRAMES, _DEATHS = 8, 5


@dataclass(frozen=True)
class TaskPlace:
    """What a worker is working on: a sample of a batch, or the call of an Executor."""

    index: object = None
    path: str | None = None
    batch_offset: int | None = None
    batch: int | None = None
    what: str | None = None
    # What to type to make the sample again.
    replay: str = ""

    def describe(self, stage: str) -> str:
        if self.what is not None:
            return f"in {self.what}"
        return place(self.index, self.batch_offset, self.batch, None, stage, self.path)


class PoolOwner:
    """A front that owns a worker pool, and knows what the tasks of its workers are."""

    def locate(self, task: int, offset: int | None, stage: str) -> TaskPlace | None:
        """What a worker is working on; None if the task is no longer needed."""
        return None

    def line_of(self, task: int | None) -> tuple[str, int] | None:
        """File and line of the user's code that a warning about a task should show; None for the line that
        is using the loader."""
        return None

    def forget_process(self, worker_id: int) -> str:
        """The process of a worker has ended: returns what it has loaded, as text after its end was
        explained."""
        return ""


class PoolReports:
    """Reports the events of a pool's workers. Refers to nothing that owns the pool, which would never be
    freed otherwise."""

    def __init__(
        self,
        events: EventLog,
        policy: FaultPolicy,
        deaths: list[Death],
        config: dict[str, Any],
        retried: str,
        *,
        shows_repeats: bool = True,
    ) -> None:
        """`deaths` is the owner's list; `retried` says what is done about the task of a dead worker. With
        `shows_repeats`, each death at the same sample is a warning; otherwise the first one."""
        self._events = events
        self._policy = policy
        self._deaths = deaths
        # A call of an Executor is never ended by "auto".
        is_learned = config["deadline"] == "auto"
        self._deadline: float | str | None = config["deadline"]
        if is_learned and config["call"] == "Executor":
            self._deadline = None
        # How often a task is tried if its worker dies or hangs.
        self._attempts: int = config.get("attempts", 2)
        self._hangs: int = config["hangs"]
        self._retried = retried
        self._shows_repeats = shows_repeats

    def watch(self, processes: _native.Processes) -> None:
        """The report of the front has the peaks of these processes too."""
        self._events.ledger.watch_pool(processes)

    def died(self, death: Death, owner: PoolOwner) -> Death:
        """A worker has died. Returns its death with what it was working on."""
        places = ((task, owner.locate(task, death.batch_offset, death.stage)) for task in death.tasks)
        task, located = next((found for found in places if found[1] is not None), (None, None))
        if located is not None:
            hint = hint_for(self._policy, death.hint)
            death = death.explained(**asdict(located), hint=hint)
        else:
            death = death.explained(batch_offset=None)
        self._deaths.append(death)
        owner.forget_process(death.worker)
        self._events.event("worker_died", death.to_dict())
        attempts = self._hangs if death.cause == "deadline passed" else self._attempts
        is_retried = located is not None and attempts > 1
        then = f"it is replaced, and {self._retried}" if is_retried else "it is replaced"
        self._events.notices.died(death, then, owner.line_of(task), shows_repeats=self._shows_repeats)
        self._issue()
        return death

    def stalled(self, stall: Stall, owner: PoolOwner, *, is_restarted_fresh: bool) -> None:
        """A worker makes no progress; if `is_restarted_fresh`, all are restarted from a fresh interpreter."""
        located = None if stall.task is None else owner.locate(stall.task, stall.offset, stall.stage)
        text = stall.describe("" if located is None else located.describe(stall.stage), self._deadline)
        name = "zygote_restarted" if is_restarted_fresh else "worker_stalled"
        details = {"worker": stall.worker, "text": text, "why": text, "stack": list(stall.stack)}
        self._events.event(name, details)
        self._events.notices.add(text, WorkerStalledWarning, owner.line_of(stall.task))
        self._issue()

    def zygote_event(self, name: str, text: str, owner: PoolOwner, *, warns: bool) -> None:
        """An event of the process that forks the workers."""
        self._events.event(name, {"text": text, "level": "warning" if warns else "info"})
        if warns:
            self._events.notices.add(text, WorkerStalledWarning, owner.line_of(None))
        self._issue()

    def renewed(self, renewed: _native.WorkerRenewed, owner: PoolOwner) -> None:
        """A worker that leaked was replaced."""
        details = {
            "worker": renewed.worker,
            "pid": renewed.pid,
            "cause": renewed.cause,
            "why": f"{renewed.why}{owner.forget_process(renewed.worker)}",
            "tasks": renewed.tasks,
        }
        self._events.event("worker_renewed", details)

    def capacity_changed(self, changed: _native.CapacityChanged, owner: PoolOwner) -> None:
        """Another number of workers runs at once."""
        name = "workers_reduced" if changed.shortage is not None else "workers_increased"
        text = describe_capacity(changed)
        level = "info" if changed.shortage is None else "warning"
        self._events.event(name, {"text": text, "level": level, "workers": changed.most, "of": changed.of})
        if changed.shortage is not None:
            self._events.notices.add(text, ResourceShortageWarning, owner.line_of(None))
        self._issue()

    def chosen(self, first: int, of: int) -> None:
        """`of` workers were chosen for the user, and `first` of them run at first."""
        text = f"{first} of {of} workers run at first; their number is tuned"
        self._events.event("workers_chosen", {"text": text, "workers": first, "of": of})

    def tuned(self, before: int, now: int, of: int, why: str) -> None:
        """Another number of workers runs at once, to suit the work."""
        name = "workers_increased" if now > before else "workers_reduced"
        text = f"{now} of {of} workers run at once, {before} before: {why}"
        self._events.event(name, {"text": text, "level": "info", "workers": now, "of": of})

    def noted(self, worker_id: int, name: str, details: dict[str, Any]) -> None:
        """A worker has sent an event of its source."""
        self._events.source_event(name, details, worker_id)
        self._issue()

    def _issue(self) -> None:
        """At once: until the worker is replaced or its source is available, nothing may be delivered."""
        self._events.notify()
        self._events.notices.issue()


def lost_task_error(
    deaths: Sequence[Death], why: str, subject: str, what: str | None = None
) -> FeedlineError:
    """The error for a task that is not retried, because it kills its worker or hangs. `subject` names what
    does that ("a sample"); `what` is the call that each death names, and which is not repeated."""
    last = deaths[-1] if deaths else None
    shown = [death_without(what, death) for death in deaths[-_DEATHS:]]
    story = ":" * bool(shown) + "".join(f"\n  {line}" for line in shown)
    if len(shown) == 1 and what is None:
        story = f": {shown[0]}"
    code = [] if last is None or not last.code else [last.code]
    if why == "hangs":
        head = f"{subject} took longer than its deadline{story}"
        code = list(last.stack[:_FRAMES]) if last is not None else []
    elif last is not None and what is None:
        head = str(last)
    else:
        head = f"{subject} killed its worker{f' {len(deaths)} times' if len(deaths) > 1 else ''}{story}"
    lines = [head, *(f"  code  {frame}" for frame in code)]
    lines += [f"  why   {line}" for line in (last.why if last is not None else ())]
    known = {"index": last.index, "worker": last.worker} if last is not None else {}
    kind = DeadlineExceededError if why == "hangs" else WorkerDiedError
    hint = last.hint if last is not None else ""
    replay = "" if last is None else last.replay
    return kind.explained("\n".join(lines), hint, replay=replay, deaths=tuple(deaths), **known)


def describe_capacity(changed: _native.CapacityChanged) -> str:
    """How many workers run at once now, why, and what helps."""
    now = f"{changed.most} of {changed.of} workers run at once"
    if changed.shortage is None:
        return f"{now}: there is room again"
    then = "they take turns, and the results stay the same"
    if changed.shortage == "processes":
        reason = "unknown reason" if changed.os_error is None else os.strerror(changed.os_error)
        why = f"the system refused another process ({reason})"
        hint = f"lower the number of workers to {changed.most}, or raise the limit: ulimit -u, or the pids "
        hint += "limit of the container; `feedline doctor` shows them"
    else:
        why = f"memory is short; the largest worker used {_mebibytes(changed.largest_worker)}"
        if changed.memory is not None:
            limit, used = changed.memory
            why += f", and {_mebibytes(used)} of the {_mebibytes(limit)} of the container are used"
        hint = f"lower the number of workers to {changed.most}, use smaller batches, or allow more memory"
    return f"{now}: {why}; {then}\nhint: {hint}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def death_without(what: str | None, death: Death) -> str:
    """A death in one line, without the call that was named already."""
    text = str(death)
    return text if what is None else text.replace(f" in {what}", "")
