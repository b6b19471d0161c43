"""The rest of an epoch that N ranks began, divided among M: for torch's DistributedSampler, whose order is
one permutation for all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from feedline.errors import StateMismatchError

__all__ = ["batches_of_rest", "rest_of_rank", "why_not_elastic", "with_other_ranks"]

_WORLD = ("num_replicas", "rank")


def why_not_elastic(settings: Mapping[str, Any], position: list[Any], *, has_state: bool) -> str:
    """Why an epoch cannot be continued with another number of ranks; empty if it can be."""
    if settings.get("sampler") != DistributedSampler.__qualname__:
        return "only the order of torch's DistributedSampler is known for all ranks"
    if not settings.get("in_order", True):
        return "in_order=False: ranks do not have the same samples of the order"
    if "excluded" in settings:
        return "exclude= has moved samples of this rank"
    if position[1] or position[2]:
        return "skipped samples were replaced by others of this rank, which the other ranks do not know"
    if has_state:
        return "the data set or the sampler has a state of its own, which belongs to one rank"
    return ""


def with_other_ranks(state: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A state as ranks of this world load it: the same if the world is the same."""
    was = state["settings"]
    if any("num_replicas" not in settings for settings in (was, now)):
        return state
    if all(was[name] == now[name] for name in _WORLD):
        return state
    settings = {**was, **{name: now[name] for name in _WORLD}}
    if not state["is_begun"]:
        return {**state, "settings": settings}
    why = state.get("not_elastic", "")
    if why:
        raise StateMismatchError.explained(
            f"the state is of rank {was['rank']} of {was['num_replicas']}, this is rank {now['rank']} of "
            f"{now['num_replicas']}, and the epoch cannot be divided again: {why}",
            "resume each rank with its own state and with as many ranks, or save states between epochs",
        )
    size = was["batch_size"] or 1
    done = state.get("begun_at", 0) + state["batches"] * size * was["num_replicas"]
    position = [0, 0, 0, 0, 0, 0, []]
    return {**state, "settings": settings, "begun_at": done, "batches": 0, "position": position}


def rest_of_rank(sampler: DistributedSampler[Any], done: int) -> list[int]:
    """The indices of this rank behind the first `done` of all ranks. All ranks get equally many: the first of
    the epoch are repeated for that, or the last left out with drop_last, as the sampler does it."""
    whole: DistributedSampler[Any] = DistributedSampler(
        sampler.dataset, num_replicas=1, rank=0, shuffle=sampler.shuffle, seed=sampler.seed
    )
    whole.set_epoch(sampler.epoch)
    order = list(whole)
    rest, ranks = order[done:], sampler.num_replicas
    if sampler.drop_last:
        rest = rest[: len(rest) // ranks * ranks]
    else:
        missing = -len(rest) % ranks
        rest += (order * -(-missing // max(1, len(order))))[:missing]
    return rest[sampler.rank :: ranks]


def batches_of_rest(
    sampler: DistributedSampler[Any], done: int, batch_size: int | None, *, drop_last: bool
) -> int:
    """How many batches `rest_of_rank` has."""
    left = max(0, len(sampler.dataset) - done) / sampler.num_replicas  # type: ignore[arg-type]
    samples = math.floor(left) if sampler.drop_last else math.ceil(left)
    batches = samples / (batch_size or 1)
    return math.floor(batches) if drop_last else math.ceil(batches)
