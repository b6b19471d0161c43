"""How many worker processes there are if the user does not say."""

from __future__ import annotations

from feedline import _native

__all__ = ["loader_workers", "tuned_workers"]

# Workers for each processor: while some wait for files, others compute.
_PER_PROCESSOR = 2
_MOST = 64
_MOST_TUNED_PER_PROCESSOR, _LEAST_TUNED = 4, 16
# A worker that has imported the usual libraries and makes a batch of images needs about this much.
_LEAST_MEMORY = 512 << 20


def tuned_workers(processors: int | None = None, memory: int | None = None) -> tuple[int, int]:
    """How many run at first, and at most, if their number is tuned while they run: work that only waits is
    fastest with many more than there are processors."""
    processors = _native.processors() if processors is None else processors
    memory = _native.available_memory() if memory is None else memory
    fit = max(1, memory // _LEAST_MEMORY)
    most = min(max(_MOST_TUNED_PER_PROCESSOR * processors, _LEAST_TUNED), max(_MOST, processors), fit)
    return min(processors, most), most


def loader_workers(processors: int | None = None, memory: int | None = None) -> int:
    """For a data set that may wait for files: twice the processors that this process may use, and no more
    than fit into the memory that is left."""
    processors = _native.processors() if processors is None else processors
    memory = _native.available_memory() if memory is None else memory
    wanted = min(_PER_PROCESSOR * processors, max(_MOST, processors))
    return max(1, min(wanted, memory // _LEAST_MEMORY))
