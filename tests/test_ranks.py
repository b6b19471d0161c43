"""`shard("auto")`: which rank this process is, as launchers and frameworks say it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from feedline._ranks import rank_and_world
from feedline.errors import InvalidArgumentError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.distributed", "jax", "ray.train"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def torch_distributed(rank: int, world: int, *, is_initialized: bool = True) -> Any:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: is_initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: world,
    )


def jax(rank: int, world: int, *, is_initialized: bool = True) -> Any:
    def must_not_start() -> int:
        assert is_initialized
        return rank

    distributed = SimpleNamespace(is_initialized=lambda: is_initialized)
    return SimpleNamespace(distributed=distributed, process_index=must_not_start, process_count=lambda: world)


def ray(rank: int, world: int) -> Any:
    context = SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: world)
    return SimpleNamespace(get_context=lambda: context)


def outside_ray() -> Any:
    def get_context() -> Any:
        raise RuntimeError("not in a worker")

    return SimpleNamespace(get_context=get_context)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        (TORCHRUN, (5, 8)),
        (SRUN, (1, 2)),
        # A batch script has these, but it is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "6"}, (3, 6)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        # srun started torchrun once on each node.
        ({**SRUN, **TORCHRUN}, (5, 8)),
        # A script that sets what torchrun would set, from what SLURM says.
        ({**SRUN, "RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_launchers_say_it_in_the_environment(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world(environment) == expected


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [
        ("torch.distributed", torch_distributed(3, 4), (3, 4)),
        ("torch.distributed", torch_distributed(3, 4, is_initialized=False), (0, 1)),
        ("jax", jax(1, 3), (1, 3)),
        ("jax", jax(1, 3, is_initialized=False), (0, 1)),
        ("jax", SimpleNamespace(), (0, 1)),
        ("ray.train", ray(2, 5), (2, 5)),
        ("ray.train", outside_ray(), (0, 1)),
    ],
)
def test_frameworks_are_asked_if_they_are_set_up(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any, expected: tuple[int, int]
) -> None:
    monkeypatch.setitem(sys.modules, name, module)

    assert rank_and_world({}) == expected


def test_a_framework_knows_better_than_the_launcher_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", ray(2, 5))

    assert rank_and_world(SRUN) == (2, 5)


@pytest.mark.parametrize(
    ("environment", "modules", "message"),
    [
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "1"}, {}, "SLURM .* says rank 1 of 2"),
        (
            TORCHRUN,
            {"torch.distributed": torch_distributed(0, 8)},
            "says rank 5 of 8, but torch.distributed says rank 0 of 8",
        ),
        (
            {},
            {"jax": jax(0, 2), "ray.train": ray(1, 2)},
            "JAX says rank 0 of 2, but Ray Train says rank 1 of 2",
        ),
        ({"RANK": "2"}, {}, "must be whole numbers, got '2' and None"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, {}, "must be whole numbers, got '-1' and '4'"),
        ({"SLURM_PROCID": "x", "SLURM_STEP_NUM_TASKS": "2"}, {}, "must be whole numbers, got 'x' and '2'"),
    ],
)
def test_contradictions_and_half_truths_are_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], modules: dict[str, Any], message: str
) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

    with pytest.raises(InvalidArgumentError, match=message):
        rank_and_world(environment)
