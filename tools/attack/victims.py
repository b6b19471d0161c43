"""A thread that kills, stops and continues descendants of this process, at random moments."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from types import TracebackType

from faults.remains import children, has_ended

__all__ = ["Harm", "Killer"]

# A run must end if a worker dies three times while starting. So in one run only two workers are killed that
# were seen for less than this time.
_FRESH_SECONDS = 0.3
_FRESH_KILLS = 2


@dataclass(frozen=True)
class Harm:
    """The maximum number of signals in one run; how many are sent depends on how long the run takes.

    Attributes:
        worker_kills: SIGKILL to workers.
        zygote_kills: SIGKILL to zygotes.
        stops: SIGSTOP to either, and SIGCONT some moments later.
        worker_stops_for_good: SIGSTOP to workers, without SIGCONT.
        zygote_stops_for_good: SIGSTOP to zygotes, without SIGCONT; then one of their workers is killed.
        pause: the longest pause between two signals, in seconds.
    """

    worker_kills: int = 0
    zygote_kills: int = 0
    stops: int = 0
    worker_stops_for_good: int = 0
    zygote_stops_for_good: int = 0
    pause: float = 0.05


class Killer:
    """Sends signals while its block runs; `counts` has the signals that were sent."""

    def __init__(self, draws: Random, harm: Harm) -> None:
        self.counts: Counter[str] = Counter()
        self._draws = draws
        self._pause = harm.pause
        self._seen: dict[int, float] = {}
        self._fresh_left = _FRESH_KILLS
        self._left = {
            self._kill_worker: harm.worker_kills,
            self._kill_zygote: harm.zygote_kills,
            self._stop: harm.stops,
            self._stop_worker_for_good: harm.worker_stops_for_good,
            self._stop_zygote_for_good: harm.zygote_stops_for_good,
        }
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._draws.random() * self._pause):
            ways = [way for way, left in self._left.items() if left > 0]
            if not ways:
                return
            way = self._draws.choice(ways)
            # A process that has ended before the signal does not count.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if way():
                    self._left[way] -= 1

    def _zygotes(self) -> list[int]:
        """The children that have children: Python's own helper processes have none."""
        return sorted(pid for pid in children(os.getpid()) if not has_ended(pid) and self._workers_of(pid))

    def _workers_of(self, zygote: int) -> list[int]:
        try:
            return sorted(pid for pid in children(zygote) if not has_ended(pid))
        except (FileNotFoundError, ProcessLookupError):
            return []

    def _worker(self) -> int | None:
        workers = [pid for zygote in self._zygotes() for pid in self._workers_of(zygote)]
        return self._draws.choice(workers) if workers else None

    def _zygote(self) -> int | None:
        zygotes = self._zygotes()
        return self._draws.choice(zygotes) if zygotes else None

    def _send(self, pid: int | None, number: signal.Signals, what: str) -> bool:
        if pid is None:
            return False
        os.kill(pid, number)
        self.counts[what] += 1
        return True

    def _kill(self, pid: int | None, workers: list[int], what: str) -> bool:
        """Kills a worker, or a zygote with its workers, unless too many were killed while starting."""
        now = time.monotonic()
        is_fresh = any(now - self._seen.setdefault(worker, now) < _FRESH_SECONDS for worker in workers)
        if is_fresh and not self._fresh_left:
            return False
        self._fresh_left -= is_fresh
        return self._send(pid, signal.SIGKILL, what)

    def _kill_worker(self) -> bool:
        pid = self._worker()
        return pid is not None and self._kill(pid, [pid], "workers killed")

    def _kill_zygote(self) -> bool:
        pid = self._zygote()
        return pid is not None and self._kill(pid, self._workers_of(pid), "zygotes killed")

    def _stop(self) -> bool:
        pid = self._draws.choice([self._worker, self._zygote])()
        if not self._send(pid, signal.SIGSTOP, "stops"):
            return False
        self._is_over.wait(self._draws.random() * 0.2)
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
        return True

    def _stop_worker_for_good(self) -> bool:
        return self._send(self._worker(), signal.SIGSTOP, "workers stopped for good")

    def _stop_zygote_for_good(self) -> bool:
        zygote = self._zygote()
        workers = [] if zygote is None else self._workers_of(zygote)
        if not workers or not self._send(zygote, signal.SIGSTOP, "zygotes stopped for good"):
            return False
        # So that the zygote is needed to replace it.
        return self._send(self._draws.choice(workers), signal.SIGKILL, "workers killed")
