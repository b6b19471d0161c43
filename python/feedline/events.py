"""What was decided or has happened, for logs and callbacks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline._notices import Notices

__all__ = ["Event", "notify"]

LOGGER = logging.getLogger("feedline")
# Nothing is logged by a program that has set up no logging; what must be seen is a warning besides.
LOGGER.addHandler(logging.NullHandler())
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class Event:
    """Something was decided or has happened.

    Attributes:
        name: what: "sample_skipped", "worker_died", "source_unavailable", ...
        text: in a line.
        level: "info", "warning" or "error".
        details: all that is known of it.
    """

    name: str
    text: str
    level: str
    details: dict[str, Any]

    def __str__(self) -> str:
        return self.text


def notify(
    events: Iterable[tuple[str, str, str, str]],
    on_event: Callable[[Event], object] | None = None,
    notices: Notices | None = None,
) -> None:
    """Logs events, as the core gives them, under "feedline", and calls the user's function for each.
    `notices` hears them too, to warn of some."""
    for level, name, text, details in events:
        number = LEVELS[level]
        if LOGGER.isEnabledFor(number):
            LOGGER.log(number, "%s", text)
        if notices is not None:
            notices.hear(name, text, details)
        if on_event is None:
            continue
        try:
            on_event(Event(name, text, level, json.loads(details)))
        except Exception:
            # The run is worth more than what is told of it.
            LOGGER.exception("on_event failed for %s: %s", name, text)
