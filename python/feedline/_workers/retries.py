"""Retries a sample as the policy says: after a pause, once its source is available again, or not at all."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from feedline import _native
from feedline._workers.remote_error import ATTEMPTS, RemoteError
from feedline._workers.shortage import leave_if_short, step_back
from feedline._workers.sources import Sources
from feedline.faults import FaultPolicy, symptom

__all__ = ["BAD", "FaultyResult", "PendingFault", "Retries"]

# Takes the place of a sample that could not be loaded.
BAD: Any = object()


@dataclass
class PendingFault:
    """A sample that could not be loaded, or only after retries."""

    offset: int
    names: list[str]
    os_error: int | None
    remote_error: RemoteError
    path: str | None
    attempts: int
    # The action of the policy: "skip", "replace" or "raise"; "" if a retry succeeded.
    action: str

    @property
    def is_fixed(self) -> bool:
        """Whether a retry succeeded."""
        return not self.action

    @classmethod
    def of_error(
        cls, error: BaseException, offset: int | None, stage: str, attempts: int, action: str = "raise"
    ) -> PendingFault:
        """The fault of an error that was created in this process, such as for a sample that kills its
        worker."""
        names, os_error = symptom(error)
        remote_error = RemoteError.reported(error, offset=offset, stage=stage)
        return cls(offset or 0, names, os_error, remote_error, None, attempts, action)

    @classmethod
    def raised(
        cls, error: BaseException, remote_error: RemoteError, offset: int, path: str | None
    ) -> PendingFault:
        """A sample whose exception is to be raised."""
        if remote_error.stage == "collating":
            # It does not fit the others of its batch.
            remote_error.stage = "collate"
        names, os_error = symptom(error)
        return cls(offset, names, os_error, remote_error, path, remote_error.attempts, "raise")


@dataclass
class FaultyResult:
    """A batch with the faults of its samples, which the trainer judges.

    `batch` is None if no sample is left, or if the batch must still be completed: then the worker holds the
    good samples, and `before` is the worker's journal from before the batch.
    """

    batch: Any
    bad: list[PendingFault] = field(default_factory=list)
    is_held: bool = False
    before: bytes | None = None
    # The place of the worker in its data set, if that has one, and whether there are no more samples.
    place: Any = None
    has_ended: bool = False


class Retries:
    """Handles samples that raise, in the process that loads them."""

    def __init__(
        self,
        policy: FaultPolicy,
        *,
        seed: int = 0,
        stage: str = "fetching",
        pause: Callable[[float], None] = time.sleep,
        notify: Callable[[str, dict[str, Any]], None] | None = None,
        raises: bool = True,
        folders: Iterable[str] = (),
        home: int | None = None,
        leaves: bool = False,
        alone: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`stage` is the name of the stage in messages; `pause` waits; `notify` is called with events of the
        source, and of shortages in the trainer. Without `raises`, the action "raise" is recorded as a fault,
        and the caller raises. `folders` existed when the loader was created. `home` is the pid of the worker:
        in a child that was forked in it, nothing is retried. With `leaves`, a worker that is short of
        something ends, and a fresh one takes its task; without it, the sample is made again within `alone`,
        which keeps other threads from making samples."""
        self._policy = _native.Policy(policy.config())
        self._sources = Sources(self._policy.patience, pause, notify, folders)
        self._pause = pause
        self._notify = notify
        self._alone = alone
        self._seed = seed
        self._stage = stage
        self._raises = raises
        self._home = home
        self._leaves = leaves
        # The faults of the current batch, in order; the caller empties the list with `take`.
        self.bad: list[PendingFault] = []

    def again(self, raised: BaseException, make: Callable[[], Any], offset: int, key: int = 0) -> Any:
        """Retries a sample that raised. Returns the sample or BAD, or raises if the policy says so."""
        attempt = 1
        steps_back = 0
        self.end_if_forked(raised)
        while True:
            names, os_error = symptom(raised)
            # A policy may name shortages; then it decides.
            is_named = self._policy.wanted(names, os_error) != "raise"
            if self._leaves and not is_named:
                leave_if_short(raised)
            is_retriable = not self._leaves and not is_named
            if is_retriable and step_back(raised, steps_back, self._pause, self._notify):
                # The machine was short of something: this is no attempt of the policy.
                steps_back += 1
            elif not self._sources.came_back(raised):
                wait = self._policy.retry_after(names, os_error, attempt, [self._seed, key, offset])
                if wait is None:
                    return self._give_up(raised, names, os_error, offset, attempt)
                self._pause(wait)
                attempt += 1
            try:
                with self._alone() if steps_back else contextlib.nullcontext():
                    sample = make()
            except (Exception, SystemExit) as another:
                self.end_if_forked(another)
                raised = another
                continue
            if attempt > 1:
                self.bad.append(self._bad(raised, names, os_error, offset, attempt, ""))
            self._sources.note_success()
            return sample

    def end_if_forked(self, raised: BaseException) -> None:
        """Raises the exception again in a child that was forked in a worker: it is not the worker."""
        if self._home is not None and os.getpid() != self._home:
            raise raised

    def _give_up(
        self, raised: BaseException, names: list[str], os_error: int | None, offset: int, attempt: int
    ) -> Any:
        action = self._policy.rule(names, os_error).action
        if action == "raise" and self._raises:
            if attempt > 1:
                raised.add_note(f"feedline: after {attempt} attempts")
                # A class of the user may forbid it.
                with contextlib.suppress(Exception):
                    setattr(raised, ATTEMPTS, attempt)
            raise raised
        self.bad.append(self._bad(raised, names, os_error, offset, attempt, action))
        return BAD

    def _bad(
        self,
        raised: BaseException,
        names: list[str],
        os_error: int | None,
        offset: int,
        attempts: int,
        action: str,
    ) -> PendingFault:
        path = getattr(raised, "filename", None) or getattr(raised, "path", None)
        remote_error = RemoteError.of(raised, offset=offset, stage=self._stage, exact=True)
        shown = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None
        return PendingFault(offset, names, os_error, remote_error, shown, attempts, action)

    def given_up(self, raised: BaseException, offset: int) -> Any:
        """Records a sample that cannot be retried. Returns BAD, or raises if the policy says so."""
        self.end_if_forked(raised)
        names, os_error = symptom(raised)
        return self._give_up(raised, names, os_error, offset, 1)

    def know(self, folders: Iterable[str]) -> None:
        """Notes that these folders existed."""
        self._sources.know(folders)

    def note_success(self) -> None:
        """Notes that other samples were loaded meanwhile, so the source is available."""
        self._sources.note_success()

    def take(self) -> list[PendingFault]:
        """Returns the faults so far, and empties the list."""
        bad, self.bad = self.bad, []
        return bad
