"""User objects with hostile methods neither break a pool nor make it hang."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import feedline as fl
import pytest
import torch
from feedline.torch import DataLoader
from torch.utils.data import Dataset

pytestmark = pytest.mark.timeout(300)


class Undescribable:
    """Cannot be described: its methods raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__

    def __int__(self) -> int:
        return 3

    __index__ = __int__


def fails(_argument: Any) -> None:
    raise ValueError("always")


def same(argument: Any) -> Any:
    return argument


def test_a_call_whose_arguments_cannot_be_described_fails_alone() -> None:
    arguments: list[Any] = [10**5000, Undescribable(), [Undescribable()], {"a": 10**5000}, "\x1b" * 10**6]
    for argument, policy in itertools.product(arguments, (None, fl.FaultPolicy("skip", limit=None))):
        with fl.Executor(1, faults=policy) as pool:
            bad = pool.submit(fails, argument)
            good = pool.submit(same, 5)
            assert isinstance(bad.exception(60), ValueError)
            assert good.result(60) == 5
            assert len(str(pool.report())) < 5000


class Fails(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> torch.Tensor:
        if int(index) >= 3:
            raise ValueError("bad")
        return torch.tensor(int(index))


class Strange(torch.utils.data.Sampler[Any]):
    def __init__(self, index: Any) -> None:
        self.index = index

    def __iter__(self) -> Iterator[Any]:
        yield from [0, self.index, 1]

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_that_cannot_be_described_is_a_fault_like_any_other(workers: int) -> None:
    for index in (Undescribable(), 10**5000):
        loader = DataLoader(
            Fails(), sampler=Strange(index), num_workers=workers, faults=fl.FaultPolicy("skip", limit=None)
        )
        assert [int(batch) for batch in loader] == [0, 1]
        assert loader.report().skipped == 1
        assert len(str(loader.report())) < 5000
        with pytest.raises(ValueError, match="bad"):
            list(DataLoader(Fails(), sampler=Strange(index), num_workers=workers))


def exits(_future: Any) -> None:
    raise SystemExit(3)


def test_a_callback_that_raises_system_exit_does_not_end_the_pool() -> None:
    with fl.Executor(2) as pool:
        futures = [pool.submit(same, number) for number in range(8)]
        for future in futures[::2]:
            future.add_done_callback(exits)
        assert [future.result(60) for future in futures] == list(range(8))
        assert pool.submit(same, 8).result(60) == 8


class ExitsOnArrival:
    def __reduce__(self) -> Any:
        return exits, (None,)


def make_exit(_number: int) -> Any:
    return ExitsOnArrival()


def test_a_result_that_exits_when_it_is_unpickled_is_the_error_of_its_call() -> None:
    with fl.Executor(1) as pool:
        bad = pool.submit(make_exit, 0)
        good = pool.submit(same, 1)
        assert isinstance(bad.exception(60), SystemExit)
        assert good.result(60) == 1


class Garbage:
    """Submits a call when it is garbage-collected, in any thread."""

    submit: Callable[[], Any] | None = None

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if Garbage.submit is not None:
            Garbage.submit()


def make_garbage(_number: int) -> Garbage:
    return Garbage()


def test_a_finalizer_that_submits_a_call_does_not_deadlock() -> None:
    submitted: list[Any] = []
    before = gc.get_threshold()
    with fl.Executor(2) as pool:
        Garbage.submit = lambda: submitted.append(pool.submit(abs, -1))
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(5):
                for future in [pool.submit(make_garbage, number) for number in range(20)]:
                    future.result(60)
        finally:
            gc.set_threshold(*before)
            Garbage.submit = None
        assert submitted
        assert {future.result(60) for future in submitted} == {1}
