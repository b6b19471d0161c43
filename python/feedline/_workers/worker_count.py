"""How many worker processes there are if the user does not say."""

from __future__ import annotations

from feedline import _native

__all__ = ["loader_workers", "tuned_workers"]

_MOST = 64
# Work that only waits is fastest with many more workers than there are processors.
_LEAST_TUNED = 16
_MOST_PER_PROCESSOR = 4
# A worker that has imported the usual libraries and makes a batch of images needs about this much.
_LEAST_MEMORY = 512 << 20
# All worker ids of a torch loader have a process, also those that do not compute at present.
_IDS_PER_PROCESSOR = 2
_MEMORY_PER_ID = 1 << 30


def tuned_workers(processors: int | None = None, memory: int | None = None) -> tuple[int, int]:
    """How many run at first, and at most, if any worker may do a task: those that do not run have no
    process, so that there are as many as fit into the memory that is left."""
    processors = _native.processors() if processors is None else processors
    memory = _native.available_memory() if memory is None else memory
    most = min(_wanted(_MOST_PER_PROCESSOR, processors), max(1, memory // _LEAST_MEMORY))
    return min(processors, most), most


def loader_workers(processors: int | None = None, memory: int | None = None) -> tuple[int, int]:
    """How many run at first, and how many ids there are, if tasks belong to workers. Random numbers depend
    on the number of ids, so it follows from the machine alone, and not from what is free at present: a
    restart on the same machine gives the same batches."""
    processors = _native.processors() if processors is None else processors
    memory = _native.allowed_memory() if memory is None else memory
    ids = min(_wanted(_IDS_PER_PROCESSOR, processors), max(1, memory // _MEMORY_PER_ID))
    return min(processors, ids), ids


def _wanted(per_processor: int, processors: int) -> int:
    return min(max(per_processor * processors, _LEAST_TUNED), max(_MOST, processors))
