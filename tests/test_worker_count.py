"""How many workers and threads there are if the user does not say."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import feedline as fl
import numpy as np
import pytest
import torch
from feedline import _native
from feedline._workers.worker_count import loader_workers, tuned_workers
from feedline.errors import InvalidArgumentError
from feedline.torch import DataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
METHODS = ["fork", "spawn"]


class Numbers(Dataset[Any]):
    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        return torch.tensor([index, info.id, info.num_workers, torch.get_num_threads()])

    def __len__(self) -> int:
        return 64


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 64, info.num_workers)


def test_auto_is_as_many_as_the_machine_allows() -> None:
    gibibyte = 1 << 30
    # Those that compute at first, and all ids.
    assert loader_workers(2, 64 * gibibyte) == (2, 16)
    assert loader_workers(12, 64 * gibibyte) == (12, 24)
    assert loader_workers(64, 512 * gibibyte) == (64, 64)
    assert loader_workers(128, 512 * gibibyte) == (128, 128)
    # Memory for three.
    assert loader_workers(16, 3 * gibibyte) == (3, 3)
    assert loader_workers(16, 0) == (1, 1)


def test_the_number_of_ids_does_not_depend_on_what_is_free_at_present(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = loader_workers()
    monkeypatch.setattr(_native, "available_memory", lambda: 0)
    assert loader_workers() == before
    monkeypatch.setattr(_native, "allowed_memory", lambda: 0)
    assert loader_workers() == (1, 1)


# Of more workers than processors, which a user of "auto" does not ask for.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_loader_with_auto_gives_the_batches_of_that_number() -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers="auto")
    assert loader.num_workers == loader_workers()[1]
    batches = list(loader)
    expected = list(DataLoader(Numbers(), batch_size=4, num_workers=loader.num_workers))
    assert all(torch.equal(one, other) for one, other in zip(batches, expected, strict=True))
    # torch's own workers have one thread, too.
    assert {int(sample[3]) for batch in batches for sample in batch} == {1}


def test_torch_does_not_warn_of_a_number_that_was_chosen_for_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(Numbers(), batch_size=16, num_workers="auto"))) == 4


def test_an_iterable_data_set_is_shared_by_that_number() -> None:
    loader = DataLoader(Stream(), batch_size=None, num_workers="auto")
    assert sorted(int(sample) for sample in loader) == list(range(64))


@pytest.mark.parametrize("value", ["many", "4", "AUTO"])
def test_other_text_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="num_workers must be a whole number") as raised:
        DataLoader(Numbers(), num_workers=value)  # type: ignore[arg-type]
    assert 'num_workers="auto"' in str(raised.value)
    with pytest.raises(InvalidArgumentError, match="workers must be"):
        fl.Executor(value)  # type: ignore[arg-type]


def test_an_executor_takes_auto() -> None:
    with fl.Executor("auto") as pool:
        assert pool.submit(os.getpid).result() != os.getpid()
        first, most = tuned_workers()
        assert (len(pool.workers), pool._pool.running) == (most, first)


def environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in NAMES}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 64])
def test_libraries_in_workers_get_their_share_of_the_processors(
    monkeypatch: pytest.MonkeyPatch, method: str, workers: int
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with fl.Executor(workers, method) as pool:
        seen = pool.submit(environment).result()
    share = max(1, _native.processors() // workers)
    assert seen == dict.fromkeys(NAMES, str(share))
    # The program itself keeps its processors.
    assert environment() == dict.fromkeys(NAMES)


@pytest.mark.parametrize("method", METHODS)
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with fl.Executor(64, method) as pool:
        seen = pool.submit(environment).result()
    # OpenMP's variable holds for the libraries below it.
    assert seen == {**dict.fromkeys(NAMES), "OMP_NUM_THREADS": "7", "OPENCV_FOR_THREADS_NUM": "1"}


def nested(workers: int) -> dict[str, str | None]:
    with fl.Executor(workers, "fork") as pool:
        return pool.submit(environment).result()


def test_a_pool_in_a_worker_does_not_exceed_the_share_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    with fl.Executor(64, "fork") as pool:
        assert pool.submit(nested, 1).result()["OMP_NUM_THREADS"] == "1"


def test_the_doctor_and_the_loader_know_the_same_processors() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += (
        "from feedline._workers.worker_count import loader_workers; print(*loader_workers(memory=1 << 40))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout == "1 16\n"


class Shares(Dataset[Any]):
    """What the libraries of its worker would read, as numbers."""

    def __getitem__(self, index: int) -> list[int]:
        return shares()

    def __len__(self) -> int:
        return 32


def shares(_: Any = None) -> list[int]:
    return [int(value or -1) for value in environment().values()]


def shared(sample: dict[str, Any]) -> dict[str, Any]:
    return {"shares": np.array(shares())}


def of_torch(method: str) -> tuple[list[list[int]], int]:
    # A data set in this file, so that a fresh interpreter finds it.
    loader = DataLoader(Shares(), batch_size=None, num_workers="auto", multiprocessing_context=method)
    return list(loader), loader.num_workers


def of_executor(method: str) -> tuple[list[list[int]], int]:
    with fl.Executor("auto", method) as pool:
        return list(pool.map(shares, range(32))), pool._count


def of_map(method: str) -> tuple[list[list[int]], int]:
    pipeline = fl.arrays({"x": np.arange(32)}).map(shared).batch(1)
    with pipeline.loader(mp_context=method) as loader:
        return [batch["shares"][0].tolist() for batch in loader], loader.count  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("front", [of_torch, of_executor, of_map])
def test_libraries_get_their_share_on_every_front_if_fewer_workers_run_than_there_are(
    monkeypatch: pytest.MonkeyPatch, front: Callable[[str], tuple[list[list[int]], int]], method: str
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    found, workers = front(method)
    share = max(1, _native.processors() // workers)
    assert len(found) == 32
    assert {tuple(one) for one in found} == {(share,) * len(NAMES)}
