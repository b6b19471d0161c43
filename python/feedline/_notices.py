"""What is shown without any setting: warnings that point at the user's own line, and never cost a sample."""

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

    A warning that the user's filters make an error must not be raised in the middle of something. So warnings
    wait here until the front says that it is at a point where nothing would be lost.
    """

    def __init__(self, *, raises: bool = True) -> None:
        """Unless it `raises`, there is nobody to whom a warning could be raised as an error: it is shown."""
        self._raises = raises
        self._waiting: deque[tuple[str, type[FeedlineWarning]]] = deque()
        self._faults = 0
        self._deaths: Counter[str] = Counter()
        # Where the loader was made: for threads, in which no frame is the user's.
        self._origin = users_line()

    def hear(self, name: str, text: str, details: str) -> None:
        """Takes note of an event."""
        if name in _FAULTS:
            self._faults += 1
            if self._faults == 1:
                more = "more of them are counted at 10, 100, 1000, ... and at the end; report() lists them"
                self.add(f"{text}\n{more}", SampleSkippedWarning)
            elif set(str(self._faults)[1:]) == {"0"} and str(self._faults)[0] == "1":
                self.add(f"{self._faults} samples were {name[7:]} so far; {text}", SampleSkippedWarning)
        elif name == "epoch_started":
            # What the last epoch ended with was raised as an error.
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

    def add(self, text: str, category: type[FeedlineWarning]) -> None:
        self._waiting.append((text, category))

    def died(self, death: Death, then: str) -> None:
        """Tells of a death, and what is done about it; in one line if the same sample has killed before."""
        at = death.what or (None if death.index is None else repr((death.index, death.batch)))
        self._deaths[at or ""] += 1
        times = self._deaths[at or ""]
        if at is not None and times > 1:
            text = f"{death}, for the {times}{_ORDINALS.get(times, 'th')} time"
        else:
            text = death.announced(then)
        self.add(text, WorkerDiedWarning)

    def issue(self, *, is_safe: bool = True) -> None:
        """Shows what waits. What is an error by the user's filters is raised, if it `is_safe` to do so now;
        if not, it waits on."""
        while self._waiting:
            text, category = self._waiting[0]
            try:
                warn_user(text, category, self._origin)
            except category:
                if self._raises and not is_safe:
                    return
                self._waiting.popleft()
                if self._raises:
                    raise
                # Another one: what was raised keeps the frames of the pool alive.
                warnings.showwarning(category(text), category, *self._origin)
            else:
                self._waiting.popleft()


_ORDINALS = {2: "nd", 3: "rd"}
