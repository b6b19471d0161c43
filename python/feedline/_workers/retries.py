"""One sample, tried as the policy says: again after a pause, once its source is back, or given up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from feedline import _native
from feedline._workers.remote_error import RemoteError
from feedline._workers.sources import Sources
from feedline.faults import FaultPolicy, symptom

__all__ = ["BAD", "FaultyResult", "PendingFault", "Retries"]

# In the place of a sample that could not be made.
BAD: Any = object()


@dataclass
class PendingFault:
    """A sample that could not be made, or was made only after some tries."""

    position: int
    names: list[str]
    os_error: int | None
    remote_error: RemoteError
    path: str | None
    attempts: int
    # What the policy wants: "skip", "replace" or "raise"; "" if another try went well.
    action: str


@dataclass
class FaultyResult:
    """A batch on its way to the trainer, with the faults of its samples, which are judged there.

    `batch` is None if nothing is left of it, or if it is still to be completed: then the worker holds the
    samples that are good, and `before` is what its journal said when it began.
    """

    batch: Any
    bad: list[PendingFault] = field(default_factory=list)
    is_held: bool = False
    before: bytes | None = None


class Retries:
    """What is done in the process that makes samples, when one of them raises."""

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
    ) -> None:
        """`stage` is what making a sample is called; `pause` waits; `notify` hears what becomes of the
        source. Unless it `raises`, what is to be raised is a fault as any other, for others to raise.
        `folders` were there when the loader was made. `home` is the worker's process: in a child that
        was forked in it, nothing is retried."""
        self._policy = _native.Policy(policy.config())
        self._sources = Sources(self._policy.patience, pause, notify, folders)
        self._pause = pause
        self._seed = seed
        self._stage = stage
        self._raises = raises
        self._home = home
        # Of the batch at hand, in order; the code that makes it empties it.
        self.bad: list[PendingFault] = []

    def again(self, raised: BaseException, make: Callable[[], Any], position: int, key: int = 0) -> Any:
        """The sample after all, or BAD. Raises where the policy wants that."""
        attempt = 1
        self.end_if_forked(raised)
        while True:
            names, os_error = symptom(raised)
            if not self._sources.came_back(raised):
                wait = self._policy.retry_after(names, os_error, attempt, [self._seed, key, position])
                if wait is None:
                    return self._give_up(raised, names, os_error, position, attempt)
                self._pause(wait)
                attempt += 1
            try:
                sample = make()
            except (Exception, SystemExit) as another:
                self.end_if_forked(another)
                raised = another
                continue
            if attempt > 1:
                self.bad.append(self._bad(raised, names, os_error, position, attempt, ""))
            self._sources.is_well()
            return sample

    def end_if_forked(self, raised: BaseException) -> None:
        """A child that was forked in a worker is no worker: what ends it is raised on."""
        if self._home is not None and os.getpid() != self._home:
            raise raised

    def _give_up(
        self, raised: BaseException, names: list[str], os_error: int | None, position: int, attempt: int
    ) -> Any:
        action, _ = self._policy.rule(names, os_error)
        if action == "raise" and self._raises:
            if attempt > 1:
                raised.add_note(f"feedline: it was tried {attempt} times")
            raise raised
        self.bad.append(self._bad(raised, names, os_error, position, attempt, action))
        return BAD

    def _bad(
        self,
        raised: BaseException,
        names: list[str],
        os_error: int | None,
        position: int,
        attempts: int,
        action: str,
    ) -> PendingFault:
        path = getattr(raised, "filename", None) or getattr(raised, "path", None)
        remote_error = RemoteError.of(raised, position=position, stage=self._stage, exact=True)
        shown = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None
        return PendingFault(position, names, os_error, remote_error, shown, attempts, action)

    def given_up(self, raised: BaseException, position: int) -> Any:
        """BAD, for a sample that cannot be retried. Raises where the policy wants that."""
        self.end_if_forked(raised)
        names, os_error = symptom(raised)
        return self._give_up(raised, names, os_error, position, 1)

    def know(self, folders: Iterable[str]) -> None:
        """These folders were there."""
        self._sources.know(folders)

    def is_well(self) -> None:
        """Other samples were made meanwhile: what failed was not the source."""
        self._sources.is_well()

    def take(self) -> list[PendingFault]:
        """The faults so far, which are then forgotten."""
        bad, self.bad = self.bad, []
        return bad
