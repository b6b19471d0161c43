"""Lets one thread call functions alone while the others wait between two samples: a machine that is short of
memory or descriptors may have enough for one sample at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["Turns"]


class Turns:
    """The threads of a loader that call functions now, and the one that wants to do so alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        # Threads that are calling functions.
        self._running = 0
        # The thread that runs alone, or waits for the others to stop.
        self._owner: int | None = None
        self._is_closed = False

    def begin(self) -> None:
        """Waits while another thread runs alone."""
        with self._changed:
            mine = threading.get_ident()
            self._wait(lambda: self._owner in (None, mine))
            self._running += 1

    def end(self) -> None:
        """This thread calls no function for now."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def reach(self, offset: int) -> None:
        """Between two samples: lets a thread run alone that wants to."""
        # Without the lock, since this is called for each sample; one that is missed waits for the next.
        if self._owner is not None and self._owner != threading.get_ident():
            self.end()
            self.begin()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """This thread waits for something else meanwhile."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other thread calls functions, and keeps them from it meanwhile."""
        if self._owner == threading.get_ident():
            yield
            return
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
            self._wait(lambda: self._owner is None)
            self._owner = threading.get_ident()
            self._wait(lambda: self._running == 0)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()

    def close(self) -> None:
        """Ends every wait, now and later."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, is_so: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._is_closed or is_so())
