"""Which rank this process is, and how many there are, as launchers and frameworks say it.

Nothing is imported or started for it: only frameworks that the program uses already are asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from feedline.errors import InvalidArgumentError

__all__ = ["rank_and_world"]


@dataclass(frozen=True)
class _Told:
    """What one launcher or framework says."""

    by: str
    rank: int
    world: int

    def __str__(self) -> str:
        return f"{self.by} says rank {self.rank} of {self.world}"


# Launchers that start one process for each rank, or one for each node that starts the ranks. SLURM sets
# SLURM_STEP_NUM_TASKS only in processes that srun started; a batch script has SLURM_PROCID too.
_LAUNCHERS = {
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
}


def rank_and_world(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """This rank and the number of ranks; (0, 1) if nothing says that there are several.

    Refuses contradictions. torchrun, and frameworks that are set up already, know the ranks themselves: a
    launcher below them may have started one process for each node.
    """
    environment = os.environ if environment is None else environment
    told = [_in_environment(environment, "the environment", "RANK", "WORLD_SIZE", must_be_whole=True)]
    told += [ask() for ask in (_torch, _jax, _ray)]
    known = [one for one in told if one is not None]
    launched = [
        one
        for by, (rank, world) in _LAUNCHERS.items()
        if (one := _in_environment(environment, by, rank, world, must_be_whole=False)) is not None
    ]
    knows_ranks = len(known) > 1 or (known and not known[0].by.startswith("the environment"))
    if not (knows_ranks or "TORCHELASTIC_RUN_ID" in environment):
        known += launched
    if not known:
        return 0, 1
    first = known[0]
    for other in known[1:]:
        if (other.rank, other.world) != (first.rank, first.world):
            raise InvalidArgumentError.explained(
                f"shard: {first}, but {other}",
                "give them: shard(rank, world)",
            )
    return first.rank, first.world


def _in_environment(
    environment: Mapping[str, str], by: str, rank: str, world: str, *, must_be_whole: bool
) -> _Told | None:
    values = [environment.get(rank), environment.get(world)]
    if values == [None, None] or (None in values and not must_be_whole):
        return None
    if not all(value is not None and value.isdecimal() for value in values):
        raise InvalidArgumentError.explained(
            f"shard: {rank} and {world} must be whole numbers, got {values[0]!r} and {values[1]!r}",
            "set both, or give them: shard(rank, world)",
        )
    return _Told(f"{by} ({rank}, {world})", int(values[0] or 0), int(values[1] or 1))


def _torch() -> _Told | None:
    """What torch.distributed says, if a process group was made."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _Told("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _jax() -> _Told | None:
    """What JAX says, if `jax.distributed.initialize` was called; before, asking would start a back end."""
    jax: Any = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or is_initialized is None or not is_initialized():
        return None
    return _Told("JAX", jax.process_index(), jax.process_count())


def _ray() -> _Told | None:
    """What Ray Train says, in one of its workers."""
    train: Any = sys.modules.get("ray.train")
    get_context: Callable[[], Any] | None = getattr(train, "get_context", None)
    if get_context is None:
        return None
    try:
        context = get_context()
        rank, world = context.get_world_rank(), context.get_world_size()
    except Exception:
        # Outside a worker; the kind of error depends on the version of Ray.
        return None
    return None if rank is None or world is None else _Told("Ray Train", int(rank), int(world))
