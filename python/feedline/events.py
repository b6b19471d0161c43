"""Events of a run, for logs and callbacks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline._native import CoreEvent
    from feedline._notices import Notices

__all__ = ["Event", "notify"]

LOGGER = logging.getLogger("feedline")
# Without this, Python prints warnings to stderr in a program that has not set up logging. What such a program
# must show is issued as a Python warning as well.
LOGGER.addHandler(logging.NullHandler())
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class Event:
    """A decision or an occurrence during a run.

    Attributes:
        name: the kind of event: "sample_skipped", "worker_died", "source_unavailable", ...
        text: a description in one line.
        level: "info", "warning" or "error".
        details: all details, by name.
    """

    name: str
    text: str
    level: str
    details: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def notify(
    events: Iterable[CoreEvent],
    on_event: Callable[[Event], object] | None = None,
    notices: Notices | None = None,
) -> None:
    """Logs events of the core under "feedline" and calls the user's function for each; `notices` turns some
    of them into warnings."""
    for event in events:
        number = LEVELS[event.level]
        if LOGGER.isEnabledFor(number):
            LOGGER.log(number, "%s", event.text)
        if notices is not None:
            notices.add_event(event.name, event.text, event.details_json)
        if on_event is None:
            continue
        try:
            on_event(Event(event.name, event.text, event.level, json.loads(event.details_json)))
        except Exception:
            # An error in the user's callback must not end the run.
            LOGGER.exception("on_event failed for %s: %s", event.name, event.text)
