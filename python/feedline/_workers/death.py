"""Death certificates: the unexpected end of a worker."""

from __future__ import annotations

import dataclasses
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from feedline import _native
from feedline._workers.remote_error import place

__all__ = ["Death", "Stall", "describe"]


@dataclass(frozen=True)
class Death:
    """The unexpected end of a worker.

    Attributes:
        worker: the worker id.
        pid: the process id.
        signal: the name of the signal that killed the worker, such as "SIGKILL".
        exit_code: the exit code, if the worker was not killed by a signal.
        stage: what the worker was doing: starting, waiting, fetching, collating, answering.
        index: the index of the sample that the worker was loading, as the sampler gave it.
        path: the file of that sample, if the data set has it.
        batch_offset: the offset of that sample within its batch.
        batch: the number of the batch in the epoch.
        seconds: how long the worker had been loading the sample.
        resident_bytes: the resident memory of the worker, when last measured.
        peak_bytes: the peak of its resident memory.
        what: the call that the worker was running, for workers of an Executor.
        cause: why the worker died: "out of memory", "bus error", "crash in native code", "limit of the
            system", "deadline passed", "descriptors closed", "exited", "killed from outside",
            "lost with its zygote".
        is_certain: False if the cause is only likely.
        why: the evidence for the cause.
        code: the line of code that was running, if it is known.
        stack: the stack of the worker, innermost frame first.
        hint: what to do.
        replay: what to type to make the sample again.
        replaced: whether a new worker replaces it.
    """

    worker: int
    pid: int | None = None
    signal: str | None = None
    exit_code: int | None = None
    stage: str = "starting"
    index: object = None
    path: str | None = None
    batch_offset: int | None = None
    batch: int | None = None
    seconds: float = 0.0
    resident_bytes: int = 0
    peak_bytes: int = 0
    what: str | None = None
    cause: str = "unknown"
    is_certain: bool = True
    why: tuple[str, ...] = ()
    code: str | None = None
    stack: tuple[str, ...] = ()
    hint: str = ""
    replay: str = ""
    replaced: bool = field(default=True, repr=False)
    tasks: tuple[int, ...] = field(default=(), repr=False)

    @classmethod
    def reported(cls, reported: _native.WorkerDied) -> Death:
        """The death as the supervisor reports it."""
        last = reported.last
        return cls(
            worker=reported.worker,
            pid=reported.pid,
            signal=_signal_name(reported.signal),
            exit_code=reported.exit_code,
            stage=_stage(last),
            batch_offset=None if last is None else last.offset,
            seconds=_seconds(last),
            resident_bytes=0 if last is None else last.resident_bytes,
            peak_bytes=reported.peak_bytes,
            cause=reported.cause,
            is_certain=reported.is_certain,
            why=tuple(reported.why),
            code=reported.code,
            stack=tuple(reported.stack),
            hint=reported.hint,
            replaced=reported.is_replaced,
            tasks=(last.task,) if last is not None and last.task is not None else tuple(reported.tasks),
        )

    def explained(self, **changes: Any) -> Death:
        """The same death with details that the owner of the worker knows."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        """The worker, the cause and the sample, in one line."""
        pid = "" if self.pid is None else f" (pid {self.pid})"
        if self.cause == "deadline passed" and self.stage == "starting":
            how = "took too long and was killed"
        elif self.cause == "deadline passed":
            how = f"was killed by its deadline after {self.seconds:.1f} s"
        elif self.cause == "descriptors closed":
            how = "ended because code in it closed its descriptors"
        elif self.signal is not None:
            how = f"was killed by {self.signal}"
        elif self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        else:
            how = "was lost with its zygote"
        likely = "" if self.is_certain else "likely "
        tail = f", {likely}{self.cause}" if self.cause in ("out of memory", "limit of the system") else ""
        return f"worker {self.worker}{pid} {how} {self._where()}{tail}"

    def _where(self) -> str:
        if self.stage == "starting":
            return "while starting"
        if self.stage == "waiting":
            return "while it had nothing to do"
        if self.what is not None:
            return f"in {self.what}"
        where = place(self.index, self.batch_offset, self.batch, None, self.stage, self.path)
        if where.startswith("batch"):
            # Samples of an iterable data set have no index.
            return f"in {where}"
        return where or f"while {self.stage}"

    @property
    def certificate(self) -> str:
        """The full text: worker, cause, sample, code, evidence and hint."""
        lines = [str(self)]
        if self.code is not None:
            lines.append(f"  code  {self.code}")
        lines += [f"  why   {line}" for line in self.why]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        if self.replay:
            lines.append(self.replay)
        return "\n".join(lines)

    def announced(self, otherwise: str) -> str:
        """A short text: worker, cause, sample, the best evidence and the hint; `otherwise` says what follows
        if the worker is replaced. The certificate has all details."""
        lines = [f"{self}; {otherwise}" if self.replaced else str(self)]
        lines += [] if self.code is None else [f"  code  {self.code}"]
        lines += [f"  why   {line}" for line in self.why[:1]]
        lines += [f"hint: {self.hint}"] if self.hint else []
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All details, for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields.pop("tasks")
        if not isinstance(self.index, (int, str, type(None))):
            fields["index"] = repr(self.index)
        return {**fields, "why": list(self.why), "stack": list(self.stack), "text": str(self)}


def _stage(last: _native.Activity | None) -> str:
    return "starting" if last is None else last.stage


def _seconds(last: _native.Activity | None) -> float:
    """How long the worker has been doing this."""
    return 0.0 if last is None else max(0.0, time.monotonic() - last.since)


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Stall:
    """A worker that makes no progress."""

    worker: int
    pid: int | None
    stage: str
    seconds: float
    process_state: str | None
    stack: tuple[str, ...]
    task: int | None = None
    offset: int | None = None
    # What is done about it.
    remedy: str = ""

    @classmethod
    def reported(cls, reported: _native.WorkerStalled) -> Stall:
        """The stall as the supervisor reports it."""
        last = reported.last
        return cls(
            worker=reported.worker,
            pid=reported.pid,
            stage=_stage(last),
            seconds=_seconds(last),
            process_state=reported.process_state,
            stack=tuple(reported.stack),
            task=None if last is None else last.task,
            offset=None if last is None else last.offset,
        )

    def restarted_fresh(self, why_not_fresh: BaseException | None) -> Stall:
        """The same stall, with a remedy: all workers are restarted, from a fresh interpreter if possible."""
        remedy = "it likely waits for a lock that another thread of the trainer held when it was forked: "
        if why_not_fresh is None:
            remedy += "all workers are restarted from a fresh interpreter, as with "
            remedy += 'multiprocessing_context="spawn"'
        else:
            reason = str(why_not_fresh).splitlines()[0]
            remedy += f"all workers are forked again, and not from a fresh interpreter, since {reason}"
        return dataclasses.replace(self, remedy=remedy)

    def describe(self, where: str, deadline: float | str | None = None) -> str:
        """The worker, how long it has stalled and where, and what is done about it or what you can do."""
        pid = "" if self.pid is None else f" (pid {self.pid})"
        doing = where or f"while {self.stage}"
        lines = [f"worker {self.worker}{pid} has made no progress for {self.seconds:.0f} s {doing}"]
        if self.process_state is not None:
            lines.append(f"  how   {self.process_state}")
        lines += [f"  code  {frame}" for frame in self.stack[:8]]
        if self.remedy:
            lines.append(self.remedy)
        elif isinstance(deadline, (int, float)):
            lines.append(f"it is killed after deadline={deadline:g} s")
        else:
            # About twice as long.
            enough = max(10, 10 * round(self.seconds / 5))
            hint = "it may hang forever"
            if deadline == "auto":
                hint = "it is replaced if it uses no processor time for 5 to 9 minutes"
            hint += f"; with deadline={enough} it would be killed and replaced after {enough} s"
            lines.append(f"hint: {hint}, and faults= would decide about the sample")
        return "\n".join(lines)


def describe(deaths: list[Death], most: int = 20) -> str:
    """The last deaths, one per line."""
    return "".join(f"\n  {death}" for death in deaths[-most:])
