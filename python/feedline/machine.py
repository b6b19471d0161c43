"""What this machine allows, and what is dangerous about it."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from feedline import _native
from feedline._described import described
from feedline.errors import InvalidArgumentError

__all__ = ["Diagnosis", "Fact", "Finding", "Limits", "doctor", "limits"]

# Causes of an exception that are looked at.
_CAUSES = 10
_COLOURS = {"danger": "#c00", "warning": "#b60", "note": "#666"}


@dataclass(frozen=True)
class Limits:
    """What this machine allows this process, containers included. Amounts of memory are in bytes.

    Attributes:
        processors: how many threads or processes can compute at once, by affinity, cpuset and CPU quota.
        memory: what can still be used, of the machine, of its cgroups and of the address space; None if the
            system does not say.
        open_files: the soft limit of open files; None if there is none.
        open_files_hard: what the process may raise it to; None if there is no limit.
        processes: how many more processes and threads can be started; None if there is no limit.
        shared_memory: the size of /dev/shm; None if there is none.
        shared_memory_free: what is free of it.
        details: everything that was read, by subject: "open_files", "tasks", "memory", "processors",
            "shared_memory" and "kernel".
    """

    processors: int
    memory: int | None
    open_files: int | None
    open_files_hard: int | None
    processes: int | None
    shared_memory: int | None
    shared_memory_free: int | None
    details: dict[str, Any] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All of it, details included."""
        return dict(self.__dict__)

    def to_json(self) -> str:
        """All of it, details included."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return _html_table(self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        shared = "none"
        if self.shared_memory is not None:
            shared = f"{_in_bytes(self.shared_memory_free)} free of {_in_bytes(self.shared_memory)}"
        return [
            ("processors", f"{self.processors:,}"),
            ("memory", _in_bytes(self.memory)),
            ("open files", f"{_counted(self.open_files)}, hard limit {_counted(self.open_files_hard)}"),
            ("more processes", _counted(self.processes)),
            ("/dev/shm", shared),
        ]


@dataclass(frozen=True)
class Finding:
    """Something that you should know or do.

    Attributes:
        severity: "danger", "warning" or "note".
        name: a name for programs, which stays the same.
        text: what is the case, and what comes of it.
        fix: a command or a setting that changes it.
    """

    severity: str
    name: str
    text: str
    fix: str | None


@dataclass(frozen=True)
class Fact:
    """A number beside the findings: what is allowed or used, and what Feedline chooses."""

    name: str
    value: str
    choice: str


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `feedline.doctor` found.

    Attributes:
        subject: "machine", "process", "data" or "message".
        is_dangerous: whether a finding is a danger.
        findings: the findings, worst first.
        facts: the numbers beside them.
        details: everything that was read; for a message, its name, its meaning, how to tell, and what to do.
        text: what `feedline doctor` prints.
    """

    subject: str
    is_dangerous: bool
    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...]
    details: dict[str, Any]
    text: str

    @classmethod
    def _parse(cls, text: str, native: str) -> Diagnosis:
        fields: dict[str, Any] = json.loads(native)
        findings = tuple(Finding(**finding) for finding in fields.pop("findings", ()))
        facts = tuple(Fact(**fact) for fact in fields.pop("facts", ()))
        is_dangerous = fields.pop("is_dangerous", False)
        subject = fields.pop("subject")
        return cls(subject, is_dangerous, findings, facts, fields.pop("details", fields), text)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the text."""
        fields = {name: value for name, value in self.__dict__.items() if name != "text"}
        fields["findings"] = [finding.__dict__ for finding in self.findings]
        fields["facts"] = [fact.__dict__ for fact in self.facts]
        return fields

    def to_json(self) -> str:
        """All of it but the text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        if self.subject == "message":
            return f"<pre>{escape(self.text)}</pre>"
        parts = [_html_finding(finding) for finding in self.findings]
        if not parts:
            parts.append(f"<p>{escape(self.text.splitlines()[0])}</p>")
        rows = [(fact.name, fact.value, fact.choice) for fact in self.facts]
        return "".join(parts) + _html_table(rows)


def limits() -> Limits:
    """What this machine allows this process: open files, processes, memory, processors, shared memory. A CPU
    quota of 2 cores on a machine with 64 is 2 processors.

    >>> import feedline as fl
    >>> fl.limits().processors >= 1
    True
    """
    read = json.loads(_native.machine())
    machine, usable = read["machine"], read["usable"]
    open_files = machine["open_files"]["limit"] or {}
    shared = machine["shared_memory"] or {}
    return Limits(
        processors=usable["processors"],
        memory=usable["memory"],
        open_files=open_files.get("soft"),
        open_files_hard=open_files.get("hard"),
        processes=usable["tasks"],
        shared_memory=shared.get("bytes"),
        shared_memory_free=shared.get("free_bytes"),
        details=machine,
    )


def doctor(
    subject: str | os.PathLike[str] | BaseException | Iterable[str | os.PathLike[str]] | None = None,
    *,
    pid: int | None = None,
) -> Diagnosis:
    """Examines this machine and this process, and names each danger with what fixes it.

    Args:
        subject: the paths of a data set to examine, or an error message or exception to explain.
        pid: the id of a running process to examine instead.

    In this process it also knows how many threads there are, how multiprocessing starts processes, and how
    torch shares tensors.

    >>> print(fl.doctor("OSError: [Errno 24] Too many open files").text.splitlines()[0])
    EMFILE (24): Too many open files
    """
    if subject is not None and pid is not None:
        raise InvalidArgumentError.explained(
            f"doctor: got both a subject, {described(subject)}, and pid={described(pid)}",
            "examine one after the other",
        )
    given: list[str | os.PathLike[str]]
    if subject is None:
        given = []
    elif isinstance(subject, BaseException):
        given = [_in_words(subject)]
    elif isinstance(subject, (str, os.PathLike)):
        given = [subject]
    else:
        given = list(subject)
    return Diagnosis._parse(*_native.diagnose(given, pid, json.dumps(_around())))


def _in_words(error: BaseException) -> str:
    """An exception and its causes: torch says that a worker ended, and its cause says by which signal."""
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(lines) < _CAUSES:
        lines.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n".join(lines)


def _around() -> dict[str, Any]:
    """What only this process knows."""
    torch = sys.modules.get("torch")
    sharing = getattr(getattr(torch, "multiprocessing", None), "get_sharing_strategy", None)
    method = multiprocessing.get_start_method(allow_none=True)
    return {
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        # Without a choice so far, the first one is the default.
        "start_method": method or multiprocessing.get_all_start_methods()[0],
        "sharing_strategy": None if sharing is None else sharing(),
    }


def _in_bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _counted(count: int | None) -> str:
    return "unlimited" if count is None else f"{count:,}"


def _html_finding(finding: Finding) -> str:
    colour = _COLOURS.get(finding.severity, "inherit")
    fix = "" if finding.fix is None else f"<br><code>{escape(finding.fix)}</code>"
    return f'<p><b style="color:{colour}">{escape(finding.severity)}</b> {escape(finding.text)}{fix}</p>'


def _html_table(rows: Iterable[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"
