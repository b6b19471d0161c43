"""Warnings that are on by default: they point at the user's own line and never cost a sample."""

from __future__ import annotations

import json
import warnings
from collections import Counter, deque

from feedline._code import users_line, warn_user
from feedline._workers.death import Death
from feedline.errors import (
    FeedlineWarning,
    SampleSkippedWarning,
    SourceUnavailableWarning,
    WorkerDiedWarning,
)

__all__ = ["Notices"]

_FAULTS = ("sample_skipped", "sample_replaced")


class Notices:
    """The warnings of one loader or executor.

    The user's filters may turn a warning into an error, which must not be raised in the middle of an
    operation. So warnings wait here until the caller is at a point where raising one would lose nothing.
    """

    def __init__(self, *, raises: bool = True) -> None:
        """Without `raises`, a warning that filters turn into an error is shown: no caller could catch it."""
        self._raises = raises
        self._waiting: deque[tuple[str, type[FeedlineWarning], tuple[str, int] | None]] = deque()
        self._faults = 0
        self._deaths: Counter[str] = Counter()
        # Where the loader was created: for threads, whose frames are all Feedline's.
        self._origin = users_line()

    def add_event(self, name: str, text: str, details: str) -> None:
        """Adds a warning for an event, if there is one."""
        if name in _FAULTS:
            self._faults += 1
            if self._faults == 1:
                more = "more of them are counted at 10, 100, 1000, ... and at the end; report() lists them"
                self.add(f"{text}\n{more}", SampleSkippedWarning)
            elif set(str(self._faults)[1:]) == {"0"} and str(self._faults)[0] == "1":
                self.add(f"{self._faults} samples were {name[7:]} so far; {text}", SampleSkippedWarning)
        elif name == "epoch_started":
            # The end of the last epoch was raised as an error, which says the same.
            self._waiting.clear()
        elif name == "epoch_ended":
            warning = json.loads(details)["warning"]
            if warning:
                self.add(warning, SampleSkippedWarning)
        elif name == "source_unavailable":
            hint = "hint: bring it back; faults=FaultPolicy(patience=...) says how long to wait for it"
            self.add(f"{text}\n{hint}", SourceUnavailableWarning)
        elif name == "source_recovered":
            self.add(text, SourceUnavailableWarning)

    def add(self, text: str, category: type[FeedlineWarning], line: tuple[str, int] | None = None) -> None:
        """Adds a warning; `line` is the file and line of the user's code to show it at, if that is not the
        line that calls Feedline."""
        self._waiting.append((text, category, line))

    def died(
        self, death: Death, then: str, line: tuple[str, int] | None = None, *, shows_repeats: bool = True
    ) -> None:
        """Warns of a death and says what is done about it; if the same sample has killed before, in one line
        or, without `shows_repeats`, not at all."""
        sample = death.what or (None if death.index is None else repr((death.index, death.batch)))
        self._deaths[sample or ""] += 1
        times = self._deaths[sample or ""]
        if sample is None or times == 1:
            self.add(death.announced(then), WorkerDiedWarning, line)
        elif shows_repeats:
            self.add(f"{death}, for the {times}{_ORDINALS.get(times, 'th')} time", WorkerDiedWarning, line)

    def issue(self, *, is_safe: bool = True) -> None:
        """Shows the waiting warnings. A warning that the user's filters turn into an error is raised if this
        `is_safe` now, and keeps waiting otherwise."""
        while self._waiting:
            text, category, line = self._waiting[0]
            line = line or self._origin
            try:
                warn_user(text, category, line)
            except category:
                if self._raises and not is_safe:
                    return
                self._waiting.popleft()
                if self._raises:
                    raise
                # A new warning: the one that was raised keeps the frames of the pool alive.
                warnings.showwarning(category(text), category, *line)
            else:
                self._waiting.popleft()


_ORDINALS = {2: "nd", 3: "rd"}
