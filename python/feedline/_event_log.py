"""Events of a loader or executor: counted in its ledger, logged, passed to the callback of the user, and some
of them shown as warnings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from feedline import _native
from feedline._notices import Notices
from feedline.events import Event, notify

__all__ = ["EventLog"]


class EventLog:
    """The events of one loader or executor."""

    def __init__(
        self, ledger: _native.Ledger, on_event: Callable[[Event], object] | None, *, raises: bool = True
    ) -> None:
        """Without `raises`, a warning that the user's filters turn into an error is only shown."""
        self.ledger = ledger
        self.notices = Notices(raises=raises)
        self._on_event = on_event
        self._raises = raises
        self._outages = _Outages()

    def notify(self) -> None:
        """Logs the events since the last call, and calls the user's function for each."""
        if self.ledger.has_events:
            notify(self.ledger.take_events(), self._on_event, self.notices)
        if not self._raises:
            self.notices.issue()

    def event(self, name: str, details: dict[str, Any]) -> None:
        self.ledger.event(name, json.dumps(details, default=repr))

    def source_event(self, name: str, details: dict[str, Any], worker: int | None = None) -> None:
        """Records what a worker or thread reports about the source of its samples."""
        news = self._outages.news(name, details, worker)
        if news is not None:
            self.event(name, news)


class _Outages:
    """Sources that are unavailable, and since when each worker knows it. Several workers notice the same
    outage; it is reported once."""

    def __init__(self) -> None:
        self._unavailable: dict[str, dict[int | None, float]] = {}

    def news(self, name: str, details: dict[str, Any], worker: int | None) -> dict[str, Any] | None:
        """The details of an event of a source; None if it was reported already."""
        workers = self._unavailable.setdefault(str(details.get("root")), {})
        if name == "source_unavailable":
            is_news = not workers
            workers[worker] = time.monotonic()
        elif name == "source_recovered":
            since = workers.pop(worker, None)
            is_news = since is not None and not workers
            details = {**details, "seconds": 0.0 if since is None else time.monotonic() - since}
        else:
            # Of all workers that wait for the source, one reports what it finds.
            is_news = worker == next(iter(workers), worker)
        return details if is_news else None
