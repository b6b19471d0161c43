"""Functions in supervised worker processes, from the trainer's side."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline import _native
from feedline._account import Outages
from feedline._mapped.run_functions import Job, Made, Plan
from feedline._mapped.worker import MapWork, closed, reducers
from feedline._notices import Notices
from feedline._workers.death import Death, Stall
from feedline._workers.open_files import warn_of_shared_files
from feedline._workers.pickling import ERRORS, Packer, not_picklable
from feedline._workers.remote_error import RemoteError, place
from feedline._workers.worker_pool import GaveUp, Handle, WorkerPool, load
from feedline.errors import FeedlineWarning, WorkerStalledWarning
from feedline.faults import FaultPolicy, hint_for

__all__ = ["Workers"]


@dataclass
class _Sent:
    """The content of a job, outside of this process's own memory."""

    pickled: bytes
    task_buffers: _native.TaskBuffers | None


class Workers:
    """Worker processes that do jobs, epoch after epoch; they start with the first."""

    where = "in a worker of feedline.Loader"
    # Functions of samples and of batches in one go.
    may_be_whole = True

    def __init__(
        self,
        plan: Plan,
        config: dict[str, Any],
        event: Callable[[str, dict[str, Any]], None],
        *,
        fresh: bool,
        notices: Notices,
        location: Callable[[int], tuple[str, int | None] | None],
        notify: Callable[[], Callable[[], None] | None],
    ) -> None:
        """`event` hears what is told of workers, `notices` what the user must see; `location` knows the file
        of a sample; `notify` refers to what hands events on."""
        self._notify = notify
        self._notices = notices
        self._location = location
        self._away = Outages()
        self.count: int = config["workers"]
        self._plan = plan
        self._config = config
        self._event = event
        self._fresh = fresh
        self._worker_pool: WorkerPool | None = None
        self._jobs: dict[int, Job] = {}
        self.deaths: list[Death] = []
        self._has_looked = False

    @property
    def workers(self) -> list[Handle]:
        return [] if self._worker_pool is None else self._worker_pool.workers

    def start(self) -> None:
        if self._worker_pool is None:
            self._look_for_open_files()
            work = MapWork(self._plan, self.count, values=self._fresh)
            self._worker_pool = WorkerPool(work, self._config, fresh=self._fresh, name="Loader", front=self)
            self._worker_pool.start()

    def _look_for_open_files(self) -> None:
        """Once. One worker alone has nobody to share an offset with."""
        if self._fresh or self.count < 2 or self._has_looked:
            return
        self._has_looked = True
        for step in self._plan.steps:
            warn_of_shared_files(step.function, step.name)

    def wake_by(self, epoch: _native.Epoch) -> None:
        assert self._worker_pool is not None
        self._worker_pool.wake_by(epoch)

    def forget(self) -> None:
        """What was handed in so far is of an epoch that is over."""
        self._jobs.clear()

    def submit(self, task: int, job: Job) -> None:
        assert self._worker_pool is not None
        if not isinstance(job.content, _Sent):
            # From here on it lies where workers find it, as often as it is handed in.
            job.content = self._sent(job.content)
        self._jobs[task] = job
        self._worker_pool.submit(
            task, closed(job, job.content.pickled), task_buffers=job.content.task_buffers
        )

    def _sent(self, content: Any) -> _Sent:
        assert self._worker_pool is not None
        try:
            pickled, *buffers = Packer(reducers(), values=self._fresh).pack(content)
        except ERRORS as raised:
            raise not_picklable(content, "batch", raised, pickle.dumps) from raised
        return _Sent(bytes(pickled), self._worker_pool.load(buffers))

    def next(
        self, oldest: int, *, looks: bool
    ) -> tuple[int, Made | RemoteError | GaveUp, _native.TaskResult | None] | None:
        """What came of a job; None if something else has happened."""
        assert self._worker_pool is not None
        try:
            answer = self._worker_pool.next(oldest)
        except FeedlineWarning:
            raise
        except Exception:
            # The next epoch starts others.
            self.close()
            raise
        if answer is None or self._jobs.pop(answer.task, None) is None:
            return None
        if isinstance(answer, GaveUp):
            return answer.task, answer, None
        return answer.task, load(answer), answer

    def close(self) -> None:
        worker_pool, self._worker_pool = self._worker_pool, None
        self._jobs.clear()
        if worker_pool is not None:
            worker_pool.close()

    def __del__(self) -> None:
        if getattr(self, "_worker_pool", None) is not None:
            self.close()

    # ---- what is known of the workers ----

    def _place(self, task: int | None, position: int | None) -> tuple[Any, int | None]:
        job = None if task is None else self._jobs.get(task)
        if job is None:
            return None, None
        if job.is_of_samples and position is not None and position < len(job.indices):
            return job.indices[position], position
        return job.indices, None

    def explain(self, death: Death) -> Death:
        index, position = self._place(next(iter(death.tasks), None), death.position)
        hint = hint_for(self._plan.faults or FaultPolicy(), death.hint)
        return death.explained(index=index, position=position, hint=hint)

    def died(self, death: Death) -> None:
        self.deaths.append(death)
        self._event("worker_died", death.to_dict())
        self._notices.died(death, "it is replaced, and its samples are made again")
        self._notices.issue()

    def stalled(self, still: Stall, *, is_restarted_fresh: bool) -> None:
        index, position = self._place(still.task, still.position)
        path, _ = (self._location(index) if isinstance(index, int) else None) or (None, None)
        text = still.describe(place(index, position, None, None, still.stage), self._config["deadline"], path)
        name = "zygote_restarted" if is_restarted_fresh else "worker_stalled"
        self._event(name, {"worker": still.worker, "text": text, "why": text, "stack": list(still.stack)})
        self._notices.add(text, WorkerStalledWarning)
        self._notices.issue()

    def zygote_event(self, name: str, text: str, *, warns: bool) -> None:
        self._event(name, {"text": text, "level": "warning" if warns else "info"})
        if warns:
            self._notices.add(text, WorkerStalledWarning)
            self._notices.issue()

    def retired(self, reported: dict[str, Any]) -> None:
        self._event("worker_renewed", reported)

    def noted(self, worker_id: int, name: str, details: dict[str, Any]) -> None:
        news = self._away.news(name, details, worker_id)
        if news is not None:
            self._event(name, news)
            # Now: while the source is unavailable, nothing else happens.
            if (notify := self._notify()) is not None:
                notify()
            self._notices.issue()
